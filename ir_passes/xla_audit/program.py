"""A compiled program as XLA scheduled and placed it: immutable objects, read by `hlo`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ir_passes.xla_audit.array import Array

CPU, GPU, TPU = "cpu", "gpu", "tpu"
Index = tuple[int, ...]
"""A place in a result: () for an array or a tuple's table, (i,) for entry i of a tuple."""


Groups = tuple[tuple[int, ...], ...]
"""Devices that talk to each other in a collective, as positions in the device assignment.

A single empty group has all devices. Without a group the encoding is not known.
"""


@dataclass(frozen=True)
class Instruction:
    """One HLO instruction.

    Attributes:
        id: unique in the module.
        arrays: type of every part of the result by its index, tables of tuples included.
        operands: instruction ids.
        called: computation ids: of a while its body and its condition.
        op_name: JAX's name of the operation, with scopes; may be empty.
        source: "file:line" of the innermost user's frame; may be empty.
        backend_config: the backend's own settings, verbatim.
        attributes: every other field that the value depends on, verbatim.
        fusion_kind: of a fusion, as "kLoop"; else empty.
        scalar: value of an integer constant with one element, else None.
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
    scalar: int | None

    @property
    def array(self) -> Array:
        """The type of the result; for a tuple, the type of its table of pointers."""
        return self.arrays[()]


@dataclass(frozen=True)
class Computation:
    """A computation: its instructions, operands before users, and its root's id.

    Attributes:
        read: its instructions; most of a program's are inside fusions, which few questions look into.
    """

    id: int
    name: str
    is_fusion: bool
    root: int
    read: Callable[[], tuple[Instruction, ...]] = field(repr=False, compare=False)

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """Operands before users."""
        return self.read()

    @cached_property
    def by_id(self) -> dict[int, Instruction]:
        """The instructions by id."""
        return {instruction.id: instruction for instruction in self.instructions}

    @property
    def result(self) -> Instruction:
        """The root."""
        return self.by_id[self.root]

    @property
    def results(self) -> list[Instruction]:
        """The root, or the operands of one that is a tuple."""
        return self.operands(self.result) if self.result.opcode == "tuple" else [self.result]

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """Return the operands of an instruction of this computation."""
        return [self.by_id[operand] for operand in instruction.operands]

    def unviewed(self, instruction: Instruction) -> Instruction:
        """Follow bitcasts back to the instruction that they view."""
        while instruction.opcode == "bitcast":
            instruction = self.by_id[instruction.operands[0]]
        return instruction

    @cached_property
    def users(self) -> dict[int, list[Instruction]]:
        """The instructions that have an instruction as an operand."""
        return _users(self.instructions)

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """The parameters by number."""
        return {
            instruction.parameter: instruction for instruction in self.instructions if instruction.opcode == "parameter"
        }


@dataclass(frozen=True)
class Module:
    """A scheduled module.

    Attributes:
        instructions: by id, of every computation that has a schedule.
        schedule: computation id -> instruction ids in execution order; fusions and scalar functions are absent.
        aliases: parameter, with the index of its part -> output that is written into its bytes.
    """

    name: str
    entry: int
    computations: Mapping[int, Computation]
    instructions: Mapping[int, Instruction]
    schedule: Mapping[int, tuple[int, ...]]
    aliases: Mapping[tuple[int, Index], Index]

    @property
    def main(self) -> Computation:
        """The entry computation."""
        return self.computations[self.entry]

    @cached_property
    def users(self) -> dict[int, list[Instruction]]:
        """The instructions that have an instruction as an operand."""
        return _users(self.instructions.values())


def _users(instructions: Iterable[Instruction]) -> dict[int, list[Instruction]]:
    users: dict[int, list[Instruction]] = {}
    for instruction in instructions:
        for operand in instruction.operands:
            users.setdefault(operand, []).append(instruction)
    return users


@dataclass(frozen=True)
class Slice:
    """Bytes of an allocation."""

    allocation: int
    offset: int
    size: int

    def overlaps(self, other: "Slice") -> bool:
        """Whether both have a byte in common."""
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
        parameter: number of the entry parameter it belongs to, else None.
        live_out: it holds an output of the module.
        space: the memory that it is in; 0 is the device's own, others of a TPU are on the chip.
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
        """Whether it is scratch: XLA's own arena, nobody's argument, output or constant."""
        return self.parameter is None and not (self.live_out or self.is_constant or self.is_thread_local)


@dataclass(frozen=True)
class Buffers:
    """The buffer assignment.

    Attributes:
        slices: the bytes of the value that an instruction defines at an index.
    """

    allocations: Mapping[int, Allocation]
    slices: Mapping[tuple[int, Index], Slice]

    @property
    def temp_bytes(self) -> int:
        """Bytes of scratch."""
        return sum(allocation.size for allocation in self.allocations.values() if allocation.is_temp)


@dataclass(frozen=True)
class Executable:
    """The parts of one executable that the audit reads.

    Attributes:
        parameters: flattened argument -> entry parameter number; arguments that the step does not use are absent.
        platform: platform that it was compiled for: "cpu", "gpu" or "tpu".
        temp_bytes: bytes of scratch that XLA reports.
        fingerprint: hash of the program without source lines and file names; the same in every process.
    """

    module: Module
    buffers: Buffers
    parameters: Mapping[int, int]
    platform: str
    temp_bytes: int
    fingerprint: str

    def on_chip(self, place: Slice | None) -> bool:
        """True if bytes are in a memory on the chip; only TPU programs use one."""
        return place is not None and self.platform == TPU and self.buffers.allocations[place.allocation].space != 0
