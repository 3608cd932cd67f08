"""The check of operations that write into the bytes of their operands.

XLA lets an operation put its result into the bytes of an operand that nobody reads afterwards. That is right where
every element of the result is computed from the same element of the operand alone. XLA's CPU compiler has put results
in place that are computed from other elements (openxla/xla#49176), so this is checked from the fused computation: each
way from the result back to such an operand must keep the position, or leave it by a dynamic-update-slice and come back
by a dynamic-slice of the same window.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ir_passes.xla_audit.dataflow.in_place_gpu import computed_first, sorted_in_place
from ir_passes.xla_audit.dataflow.in_place_tpu import computed_together
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
"""Element i of the result is computed from element i of every operand."""
IN_PLACE: dict[str, int] = {"all-reduce": 0, "cholesky": 0, "dynamic-update-slice": 0, "scatter": 0, "sort": 0}
"""Other operations that may write over this operand; triangular-solve over its second."""
# openxla/xla, xla/hlo/analysis/alias_info.cc, GetInPlaceInputOutputPairs; with NVSHMEM the operand is read all along.
IN_PLACE["all-reduce-start"] = 0
IN_PLACE["triangular-solve"] = 1

Window = tuple[tuple[object, ...], tuple[int, ...], tuple[int, ...]]
"""Starts, sizes, and the dimensions that they are starts in."""
Frame = tuple[Window, ...] | None
"""The relation of a position to the result's: () the same, the same within nested windows, None any other."""

Tiles = tuple[tuple[int, ...], ...]
"""Tiles of the result that a way begins at: an operand that is read in its place has the same."""


@dataclass(frozen=True)
class Hazard:
    """An operand that is overwritten before it is read.

    Attributes:
        instruction: the operation or fusion.
        operand: position of the operand.
        index: of the result that lies in the operand's bytes.
        through: the instruction that reads the operand at other positions, inside the fusion if it is one.
    """

    instruction: Instruction
    operand: int
    index: Index
    through: Instruction


def in_place_hazards(executable: Executable, live: LiveValues) -> Iterator[Hazard]:
    """Find every operation whose result lies in an operand's bytes and that may not be done in place."""
    module, on_gpu, on_tpu = executable.module, executable.platform == GPU, executable.platform == TPU
    for one in live.executed:
        if one.opcode in ("while", "call", "conditional", "tuple", "get-tuple-element", "parameter"):
            continue
        shared = list(_shared(one, live))
        if not shared:
            continue
        if one.opcode == "fusion":
            fused = module.computations[one.called[0]]
            for operand, index in shared:
                if on_gpu and sorted_in_place(one, fused, operand, index):
                    continue
                first = computed_first(one, fused, index) if on_gpu else frozenset[int]()
                if on_tpu:
                    first = computed_together(one, fused, operand, index)
                reads = _Reads(fused, first).elsewhere()
                if operand in reads:
                    yield Hazard(one, operand, index, reads[operand])
        else:
            for operand, index in shared:
                if not _may(one, operand, index, module.instructions[one.operands[operand]].array):
                    yield Hazard(one, operand, index, one)


def _shared(one: Instruction, live: LiveValues) -> Iterator[tuple[int, Index]]:
    """Operands, and results that lie in their bytes."""
    mine = [(index, live.values[value]) for index, value in live.of[one.id].items()]
    for number, operand in enumerate(one.operands):
        for index, value in mine:
            if value.instruction.id != one.id or value.slice is None or value.slice.size == 0:
                continue
            for theirs in live.of[operand].values():
                other = live.values[theirs]
                if other is value or other.slice is None or not other.slice.overlaps(value.slice):
                    continue
                if (other.instruction.id, other.index) not in value.parts:
                    yield number, index


def _may(one: Instruction, operand: int, index: Index, array: Array) -> bool:
    result = one.arrays[index]
    if one.opcode == "all-reduce-start" and b"nvshmem" in one.backend_config.lower():
        return False
    if one.opcode in ELEMENTWISE:
        return array.same_order(result)
    if one.opcode == "custom-call":
        return any(output == index and number == operand for output, number, _ in one.aliasing)
    if one.opcode in ("sort", "all-reduce", "all-reduce-start") and len(one.operands) > 1:
        return index == (operand,)
    if one.opcode in ("reshape", "broadcast"):
        return _keeps_order(one, array)
    return IN_PLACE.get(one.opcode) == operand


def _keeps_order(one: Instruction, operand: Array) -> bool:
    """Whether a reshape or broadcast leaves the elements in their order in memory."""
    result = one.array
    return result.count == operand.count and (result.count == 1 or (result.row_major and operand.row_major))


@dataclass
class _Reads:
    """The walk from the root of a fused computation back to its parameters, with the relation of positions.

    Attributes:
        fused: the computation.
        first: ids of reductions whose element at a position is read before anything is written there.
    """

    fused: Computation
    first: frozenset[int] = frozenset()
    _keys: dict[int, int] = field(init=False, default_factory=dict[int, int])
    _terms: dict[object, int] = field(init=False, default_factory=dict[object, int])

    def elsewhere(self) -> dict[int, Instruction]:
        """Parameters that are read at other positions than the one that is written, and what reads them so."""
        found: dict[int, Instruction] = {}
        seen: set[tuple[int, Frame, Tiles]] = set()
        todo: list[tuple[Instruction, Frame, Tiles, Instruction]]
        root = self.fused.result
        todo = [(one, (), one.array.tiles if one.array.count > 1 else (), root) for one in self.fused.results]
        while todo:
            one, frame, tiles, through = todo.pop()
            if (one.id, frame, tiles) in seen:
                continue
            seen.add((one.id, frame, tiles))
            if one.opcode == "parameter":
                if frame != () or (one.array.count > 1 and one.array.tiles != tiles):
                    found.setdefault(one.parameter, through)
                continue
            for operand, inner in self._operands(one, frame):
                left = frame is not None and inner is None
                kept = operand.array.tiles if one.id in self.first else tiles
                todo.append((operand, inner, kept, one if left else through))
        return found

    def _operands(self, one: Instruction, frame: Frame) -> Iterator[tuple[Instruction, Frame]]:
        """The operands of an instruction that is read in a frame, each with the frame it is read in."""
        operands = self.fused.operands(one)
        if frame is None:
            yield from ((operand, None) for operand in operands)
        elif one.opcode in ("bitcast", "tuple", "get-tuple-element"):
            yield from ((operand, frame) for operand in operands)
        elif one.opcode in ELEMENTWISE:
            for operand in operands:
                yield operand, frame if operand.array.layout == one.array.layout else None
        elif one.opcode in ("reshape", "broadcast"):
            yield operands[0], frame if _keeps_order(one, operands[0].array) else None
        elif one.opcode == "dynamic-update-slice":
            window = self._window(operands[2:], operands[1].array.dims, one.array.dims)
            yield operands[0], frame
            yield operands[1], (*frame, window)
            yield from ((operand, None) for operand in operands[2:])
        elif one.opcode == "dynamic-slice":
            window = self._window(operands[1:], one.slice_sizes, operands[0].array.dims)
            yield operands[0], frame[:-1] if frame and frame[-1] == window else None
            yield from ((operand, None) for operand in operands[1:])
        elif one.opcode == "slice":
            starts = tuple(start for start, _, _ in one.slices)
            window = (starts, one.array.dims, operands[0].array.dims)
            same = frame and frame[-1] == window and all(stride == 1 for _, _, stride in one.slices)
            whole = one.array.dims == operands[0].array.dims
            yield operands[0], frame if whole else frame[:-1] if same else None
        elif one.id in self.first:
            data = len(operands) // 2
            yield from ((operand, () if i < data else None) for i, operand in enumerate(operands))
        elif one.opcode == "scatter":
            bases = (len(operands) - 1) // 2
            yield from ((operand, frame if i < bases else None) for i, operand in enumerate(operands))
        else:
            yield from ((operand, None) for operand in operands)

    def _window(self, starts: list[Instruction], sizes: tuple[int, ...], dims: tuple[int, ...]) -> Window:
        """A window; starts that are constants as numbers, clamped as XLA does, others by what computes them."""
        where: list[object] = []
        for start, size, dim in zip(starts, sizes, dims, strict=True):
            if size == dim:
                where.append(0)
            elif start.scalar is not None:
                where.append(min(max(start.scalar, 0), dim - size))
            else:
                where.append(("computed", self._key(start)))
        return tuple(where), sizes, dims

    def _key(self, one: Instruction) -> int:
        """A number that two instructions share if they compute the same."""
        key = self._keys.get(one.id)
        if key is None:
            operands = tuple(map(self._key, self.fused.operands(one)))
            number = one.parameter if one.opcode == "parameter" else None
            rest = (one.attributes, one.slices, one.slice_sizes, one.tuple_index, one.target, one.called)
            term = (one.opcode, number, one.array, operands, rest)
            key = self._keys[one.id] = self._terms.setdefault(term, len(self._terms))
        return key
