"""Check of operations that write into the bytes of their operands.

XLA puts a result into the bytes of an operand without later readers: right if each element depends on the same element
alone. XLA:CPU has erred (openxla/xla#49176). So every path in a fused computation from the result to such an operand
must keep the position, or leave it by a dynamic-update-slice and return by a dynamic-slice of the same window.

Reductions on a TPU: the backend configuration lists results over operands (`aliasing_operands`; operands are numbered
first). A reduction in the same fusion may read such an operand at the written position.

Reductions on a GPU (openxla/xla, xla/backends/gpu/codegen/emitters/reduction.cc, EmitPerThreadElements;
xla/service/gpu/buffer_sharing.cc, FusionCanShareBufferHint): one thread visits each reduced element once, and writes
the fusion's other results there last. Such a result may share a reduced operand's bytes if the operand is read only at
the visited position. The same blocks compute both (GroupDisjointReductions).

Sorts on a GPU (xla/backends/gpu/codegen/sort.cc, SortFusion::Emit): operands are copied to results with other bytes,
and sorted there in place.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ir_passes.files.strict_json import parse_json
from ir_passes.xla_audit.dataflow.values import LiveValues
from ir_passes.xla_audit.program import GPU, TPU, Array, Computation, Executable, Index, Instruction

# fmt: off
ELEMENTWISE = frozenset({
    "abs", "add", "and", "atan2", "bitcast-convert", "cbrt", "ceil", "clamp", "compare", "complex", "convert", "copy",
    "cosine", "count-leading-zeros", "divide", "erf", "exponential", "exponential-minus-one", "floor", "imag",
    "is-finite", "log", "log-plus-one", "logistic", "map", "maximum", "minimum", "multiply", "negate", "not", "or",
    "popcnt", "power", "real", "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "rsqrt",
    "select", "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt",
    "stochastic-convert", "subtract", "tan", "tanh", "xor",
})
# fmt: on
"""Opcodes that compute element i of the result from element i of operands."""
IN_PLACE: dict[str, int] = {"all-reduce": 0, "cholesky": 0, "dynamic-update-slice": 0, "scatter": 0, "sort": 0}
"""Other opcodes -> operand that may share bytes with the result."""
# openxla/xla, xla/hlo/analysis/alias_info.cc, GetInPlaceInputOutputPairs; NVSHMEM reads the operand until the end.
IN_PLACE["all-reduce-start"] = 0
IN_PLACE["triangular-solve"] = 1

Window = tuple[tuple[object, ...], tuple[int, ...], tuple[int, ...]]
"""Starts, sizes, and dimensions of the sliced array."""
Frame = tuple[Window, ...] | None
"""Position relative to the result's: () the same, nested windows, or None for others."""
Tiles = tuple[tuple[int, ...], ...]
"""Tiles of the result at the start of a path; an operand read in place has the same."""


@dataclass(frozen=True)
class Hazard:
    """An operand that is overwritten before it is read.

    Attributes:
        index: of the result with its bytes.
        through: instruction, perhaps inside the fusion, that reads it at other positions.
    """

    instruction: Instruction
    operand: int
    index: Index
    through: Instruction


def in_place_hazards(executable: Executable, live: LiveValues) -> Iterator[Hazard]:
    """Yield operations that overwrite an operand too early."""
    module, on_gpu, on_tpu = executable.module, executable.platform == GPU, executable.platform == TPU
    for instruction in live.executed:
        if instruction.opcode in ("while", "call", "conditional", "tuple", "get-tuple-element", "parameter"):
            continue
        shared = list(_shared(instruction, live))
        if not shared:
            continue
        for operand, index in shared:  # elements of another width are at other bytes
            if module.instructions[instruction.operands[operand]].array.bits != instruction.arrays[index].bits:
                yield Hazard(instruction, operand, index, instruction)
        if instruction.opcode == "fusion":
            fused = module.computations[instruction.called[0]]
            for operand, index in shared:
                if on_gpu and sorted_in_place(instruction, fused, operand, index):
                    continue
                first = frozenset[int]()
                if on_gpu and instruction.fusion_kind == "kInput":
                    first = reductions_beside(instruction, fused, index)
                if on_tpu:
                    first = computed_together(instruction, fused, operand, index)
                reads = _Reads(fused, module.computations, first).elsewhere()
                if operand in reads:
                    yield Hazard(instruction, operand, index, reads[operand])
        else:
            for operand, index in shared:
                if not _may(instruction, operand, index, module.instructions[instruction.operands[operand]].array):
                    yield Hazard(instruction, operand, index, instruction)


def _shared(instruction: Instruction, live: LiveValues) -> Iterator[tuple[int, Index]]:
    """Yield operands with the index of a result in their bytes."""
    results = [(index, live.values[value]) for index, value in live.of[instruction.id].items()]
    for number, operand in enumerate(instruction.operands):
        for index, value in results:
            if value.instruction.id != instruction.id or value.slice is None or value.slice.size == 0:
                continue
            for position in live.of[operand].values():
                other = live.values[position]
                if other is value or other.slice is None or not other.slice.overlaps(value.slice):
                    continue
                if (other.instruction.id, other.index) not in value.parts:
                    yield number, index


def _may(instruction: Instruction, operand: int, index: Index, array: Array) -> bool:
    result = instruction.arrays[index]
    if instruction.opcode == "all-reduce-start" and b"nvshmem" in instruction.backend_config.lower():
        return False
    if instruction.opcode in ELEMENTWISE:
        return array.same_order(result)
    if instruction.opcode == "custom-call":
        return any(output == index and number == operand for output, number, _ in instruction.aliasing)
    if instruction.opcode in ("sort", "all-reduce", "all-reduce-start") and len(instruction.operands) > 1:
        return index == (operand,)
    if instruction.opcode in ("reshape", "broadcast"):
        return _keeps_order(instruction, array)
    return IN_PLACE.get(instruction.opcode) == operand


def _keeps_order(instruction: Instruction, operand: Array) -> bool:
    result = instruction.array
    return result.count == operand.count and (result.count == 1 or (result.row_major and operand.row_major))


@dataclass
class _Reads:
    """Walk from a fused computation's root to its parameters that tracks positions.

    Attributes:
        computations: of the module, for fusions inside.
        first: reductions that read an element before its position is written.
    """

    fused: Computation
    computations: Mapping[int, Computation]
    first: frozenset[int] = frozenset()
    _keys: dict[int, int] = field(init=False, default_factory=dict[int, int])
    _terms: dict[object, int] = field(init=False, default_factory=dict[object, int])

    def elsewhere(self) -> dict[int, Instruction]:
        """Return parameters read at unwritten positions, with readers."""
        readers: dict[int, Instruction] = {}
        visited: set[tuple[int, Frame, Tiles]] = set()
        todo: list[tuple[Instruction, Frame, Tiles, Instruction]]
        root = self.fused.result
        todo = [
            (instruction, (), instruction.array.tiles if instruction.array.count > 1 else (), root)
            for instruction in self.fused.results
        ]
        while todo:
            instruction, frame, tiles, through = todo.pop()
            if (instruction.id, frame, tiles) in visited:
                continue
            visited.add((instruction.id, frame, tiles))
            if instruction.opcode == "parameter":
                if frame != () or (instruction.array.count > 1 and instruction.array.tiles != tiles):
                    readers.setdefault(instruction.parameter, through)
                continue
            for operand, inner in self._operands(instruction, frame):
                moved = frame is not None and inner is None
                operand_tiles = operand.array.tiles if instruction.id in self.first else tiles
                todo.append((operand, inner, operand_tiles, instruction if moved else through))
        return readers

    def _operands(self, instruction: Instruction, frame: Frame) -> Iterator[tuple[Instruction, Frame]]:
        operands = self.fused.operands(instruction)
        if frame is None:
            yield from ((operand, None) for operand in operands)
        elif instruction.opcode in ("bitcast", "tuple", "get-tuple-element"):
            yield from ((operand, frame) for operand in operands)
        elif instruction.opcode in ELEMENTWISE:
            for operand in operands:
                yield operand, frame if operand.array.layout == instruction.array.layout else None
        elif instruction.opcode in ("reshape", "broadcast"):
            yield operands[0], frame if _keeps_order(instruction, operands[0].array) else None
        elif instruction.opcode == "dynamic-update-slice":
            window = self._window(operands[2:], operands[1].array.dims, instruction.array.dims)
            yield operands[0], frame
            yield operands[1], (*frame, window)
            yield from ((operand, None) for operand in operands[2:])
        elif instruction.opcode == "dynamic-slice":
            window = self._window(operands[1:], instruction.slice_sizes, operands[0].array.dims)
            yield operands[0], frame[:-1] if frame and frame[-1] == window else None
            yield from ((operand, None) for operand in operands[1:])
        elif instruction.opcode == "slice":
            starts = tuple(start for start, _, _ in instruction.slices)
            window = (starts, instruction.array.dims, operands[0].array.dims)
            inverse = frame and frame[-1] == window and all(stride == 1 for _, _, stride in instruction.slices)
            complete = instruction.array.dims == operands[0].array.dims
            yield operands[0], frame if complete else frame[:-1] if inverse else None
        elif instruction.id in self.first:
            data = len(operands) // 2
            yield from ((operand, () if i < data else None) for i, operand in enumerate(operands))
        elif instruction.opcode == "fusion":
            inner_reads = _Reads(self.computations[instruction.called[0]], self.computations).elsewhere()
            yield from ((operand, None if i in inner_reads else frame) for i, operand in enumerate(operands))
        elif instruction.opcode == "scatter":
            bases = (len(operands) - 1) // 2
            yield from ((operand, frame if i < bases else None) for i, operand in enumerate(operands))
        else:
            yield from ((operand, None) for operand in operands)

    def _window(self, starts: list[Instruction], sizes: tuple[int, ...], dims: tuple[int, ...]) -> Window:
        """Return the window of a slice or update; constant starts are clamped numbers, others keys."""
        where: list[object] = []
        for start, size, dim in zip(starts, sizes, dims, strict=True):
            if size == dim:
                where.append(0)
            elif start.scalar is not None:
                where.append(min(max(start.scalar, 0), dim - size))
            else:
                where.append(("computed", self._key(start)))
        return tuple(where), sizes, dims

    def _key(self, instruction: Instruction) -> int:
        """Return an equal number for equal computations."""
        key = self._keys.get(instruction.id)
        if key is None:
            operands = tuple(map(self._key, self.fused.operands(instruction)))
            number = instruction.parameter if instruction.opcode == "parameter" else None
            rest = (
                instruction.attributes,
                instruction.slices,
                instruction.slice_sizes,
                instruction.tuple_index,
                instruction.target,
                instruction.called,
            )
            term = (instruction.opcode, number, instruction.array, operands, rest)
            key = self._keys[instruction.id] = self._terms.setdefault(term, len(self._terms))
        return key


def computed_together(fusion: Instruction, fused: Computation, operand: int, index: Index) -> frozenset[int]:
    """Return the reductions on a TPU that read an operand before `index` is written there."""
    result = len(fusion.operands) + (index[0] if index else 0)
    if not any({operand, result} <= pair for pair in _aliased(fusion.backend_config)):
        return frozenset()
    return reductions_beside(fusion, fused, index)


def _aliased(config: bytes) -> list[set[int]]:
    """Return sets of operands and results that share bytes by the backend configuration."""
    try:
        read: Any = parse_json(config)
        lists = read["aliasing_operands"]["lists"]
        return [set(map(int, cast(list[str], entry["indices"]))) for entry in lists]
    except (ValueError, KeyError, TypeError):
        return []


OTHER_EMITTER = b"fusion_backend_config"
"""Configuration key of custom fusions by another emitter, such as Triton."""


def reductions_beside(fusion: Instruction, fused: Computation, index: Index) -> frozenset[int]:
    """Return the fusion's reductions of as many elements as result `index`."""
    outputs = [fused.unviewed(output) for output in fused.results]
    if len(outputs) < 2 or len(index) != 1:
        return frozenset()
    reductions = [reduction for reduction in outputs if reduction.opcode == "reduce"]
    count = fusion.arrays[index].count
    data = [
        part.array for reduction in reductions for part in fused.operands(reduction)[: len(reduction.operands) // 2]
    ]
    # All are visited in memory order, so equal counts mean equal positions.
    if outputs[index[0]].opcode == "reduce" or count < 2 or any(array.count != count for array in data):
        return frozenset()
    # Another result that reads the reduction recomputes it for each element.
    if not all(_only_returned(reduction, fused) for reduction in reductions):
        return frozenset()
    return frozenset(reduction.id for reduction in reductions)


def sorted_in_place(fusion: Instruction, fused: Computation, operand: int, index: Index) -> bool:
    """True if a GPU fusion sorts this operand into result `index`."""
    if fusion.fusion_kind != "kCustom" or OTHER_EMITTER in fusion.backend_config:
        return False
    sort = fused.result
    places = (0,) if index == () else index
    if sort.opcode != "sort" or len(places) != 1 or (index == ()) != (len(sort.operands) == 1):
        return False
    sorted_operand = fused.operands(sort)[places[0]]
    return sorted_operand.opcode == "parameter" and sorted_operand.parameter == operand


def _only_returned(instruction: Instruction, fused: Computation) -> bool:
    users = fused.users.get(instruction.id, [])
    return all(user.id == fused.root or (user.opcode == "bitcast" and _only_returned(user, fused)) for user in users)
