"""A compiled program as XLA scheduled and placed it; read by `hlo`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

CPU, GPU, TPU = "cpu", "gpu", "tpu"
Index = tuple[int, ...]
"""Position in a result: () for an array or a tuple's table, (i,) for entry i."""
MAX_INTEGERS = 4096
"""Elements of constants that are read."""
Groups = tuple[tuple[int, ...], ...]
"""Device groups of a collective, as positions; [()] has all devices, [] is an unknown encoding."""


@dataclass(frozen=True)
class Array:
    """Type of an array; a tuple's table has dtype "tuple" and one pointer per entry.

    Attributes:
        dtype: XLA's name.
        layout: dimensions, fastest first.
        bits: of one element.
        tiles: nested blocks of contiguous elements (TPUs only); each divides the last dimensions that the previous tile
            leaves. A negative size joins a dimension with the next.
    """

    dtype: str
    dims: tuple[int, ...]
    layout: tuple[int, ...]
    bits: int
    tiles: tuple[tuple[int, ...], ...] = ()

    @property
    def count(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        return (self.count * self.bits + 7) // 8

    @cached_property
    def padded_bytes(self) -> int:
        """Bytes with padded last tiles (openxla/xla, docs/tiled_layout.md)."""
        shape = [self.dims[dim] for dim in reversed(self.layout)]
        for tile in self.tiles:
            for i, size in enumerate(tile):
                if size < 0:
                    position = len(shape) - len(tile) + i
                    shape[position : position + 2] = [1, shape[position] * shape[position + 1]]
            shape = [1] * (len(tile) - len(shape)) + shape
            sizes = [max(1, size) for size in tile]
            blocks = [-(-size // block) for size, block in zip(shape[-len(tile) :], sizes, strict=True)]
            shape = [*shape[: -len(tile)], *blocks, *sizes]
        return (math.prod(shape) * self.bits + 7) // 8

    @property
    def row_major(self) -> bool:
        return self.layout == tuple(reversed(range(len(self.dims)))) and (len(self.dims) < 2 or not self.tiles)

    def same_order(self, other: "Array") -> bool:
        """True if arrays of equal dimensions have the same memory order."""
        return self.layout == other.layout and (self.tiles == other.tiles or self.count == 1)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class Instruction:
    """An HLO instruction.

    Attributes:
        arrays: result types by index, with tables of tuples.
        called: computation ids; of a while, body and condition.
        op_name, source: JAX's name with scopes, and "file:line" of the innermost user frame, or "".
        attributes: other fields of the value, verbatim.
        fusion_kind: such as "kLoop", or "".
        integers: of an integer constant with at most `MAX_INTEGERS` elements.
        is_zero: a constant's bits are 0.
    """

    id: int
    name: str
    opcode: str
    computation: int
    arrays: Mapping[Index, Array]
    operands: tuple[int, ...]
    called: tuple[int, ...]
    op_name: str
    source: str
    parameter: int
    tuple_index: int
    slices: tuple[tuple[int, int, int], ...]
    slice_sizes: tuple[int, ...]
    target: str
    aliasing: tuple[tuple[Index, int, Index], ...]
    groups: Groups | None
    backend_config: bytes
    attributes: bytes
    fusion_kind: str
    integers: tuple[int, ...]
    is_zero: bool

    @property
    def scalar(self) -> int | None:
        """An integer constant of one element, else None."""
        return self.integers[0] if len(self.integers) == 1 else None

    @property
    def array(self) -> Array:
        return self.arrays[()]


@dataclass(frozen=True)
class Computation:
    """Instructions, operands before users, and the root's id.

    Attributes:
        read: decodes the instructions on demand.
    """

    id: int
    name: str
    is_fusion: bool
    root: int
    read: Callable[[], tuple[Instruction, ...]] = field(repr=False, compare=False)

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        return self.read()

    @cached_property
    def by_id(self) -> dict[int, Instruction]:
        return {instruction.id: instruction for instruction in self.instructions}

    @property
    def result(self) -> Instruction:
        return self.by_id[self.root]

    @property
    def results(self) -> list[Instruction]:
        return self.operands(self.result) if self.result.opcode == "tuple" else [self.result]

    def operands(self, instruction: Instruction) -> list[Instruction]:
        return [self.by_id[operand] for operand in instruction.operands]

    def unviewed(self, instruction: Instruction) -> Instruction:
        """Follow bitcasts back to their operand."""
        while instruction.opcode == "bitcast":
            instruction = self.by_id[instruction.operands[0]]
        return instruction

    @cached_property
    def users(self) -> dict[int, list[Instruction]]:
        users: dict[int, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in instruction.operands:
                users.setdefault(operand, []).append(instruction)
        return users

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        return {
            instruction.parameter: instruction for instruction in self.instructions if instruction.opcode == "parameter"
        }


@dataclass(frozen=True)
class Module:
    """A scheduled module.

    Attributes:
        instructions: by id, of scheduled computations.
        schedule: computation id -> instruction ids in execution order, without fusions and scalar functions.
        aliases: (parameter, index) -> output in its bytes.
    """

    name: str
    entry: int
    computations: Mapping[int, Computation]
    instructions: Mapping[int, Instruction]
    schedule: Mapping[int, tuple[int, ...]]
    aliases: Mapping[tuple[int, Index], Index]

    @property
    def main(self) -> Computation:
        return self.computations[self.entry]


@dataclass(frozen=True)
class Slice:
    """Bytes of an allocation."""

    allocation: int
    offset: int
    size: int

    def overlaps(self, other: "Slice") -> bool:
        return (
            self.allocation == other.allocation
            and self.offset < other.offset + other.size
            and other.offset < self.offset + self.size
        )

    def __str__(self) -> str:
        return f"allocation {self.allocation}[{self.offset}:{self.offset + self.size}]"


@dataclass(frozen=True)
class Allocation:
    """A piece of memory.

    Attributes:
        parameter: number of its entry parameter.
        live_out: it holds an output.
        space: 0 is device memory; other spaces of a TPU are on the chip.
    """

    index: int
    size: int
    parameter: int | None
    live_out: bool
    is_constant: bool
    is_thread_local: bool
    space: int = 0

    @property
    def is_temp(self) -> bool:
        return self.parameter is None and not (self.live_out or self.is_constant or self.is_thread_local)


@dataclass(frozen=True)
class Buffers:
    """Buffer assignment; `slices` maps (instruction, index) to bytes."""

    allocations: Mapping[int, Allocation]
    slices: Mapping[tuple[int, Index], Slice]

    @property
    def temp_bytes(self) -> int:
        return sum(allocation.size for allocation in self.allocations.values() if allocation.is_temp)


@dataclass(frozen=True)
class Executable:
    """The parts of an executable that the audit reads.

    Attributes:
        parameters: flattened argument -> entry parameter, if used.
        fingerprint: hash without source lines and file names, equal in every process.
    """

    module: Module
    buffers: Buffers
    parameters: Mapping[int, int]
    platform: str
    temp_bytes: int
    fingerprint: str

    def on_chip(self, place: Slice | None) -> bool:
        """True for bytes in a TPU's on-chip memory."""
        return place is not None and self.platform == TPU and self.buffers.allocations[place.allocation].space != 0
