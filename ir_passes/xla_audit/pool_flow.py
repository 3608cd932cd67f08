"""The elements of a pool that an instruction hands from its operands to its results.

Elements are moved (copied, converted, transposed, sliced, concatenated) or computed (by arithmetic). Products, calls
and reads of the rows that an input names have new results. A reduction's result holds at most one for each of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ir_passes.xla_audit.dataflow.asynchronous import STARTED
from ir_passes.xla_audit.products import multiplies
from ir_passes.xla_audit.program import Array, Computation, Index, Instruction

# fmt: off
MOVING = frozenset({
    "all-gather", "all-gather-start", "all-to-all", "bitcast", "bitcast-convert", "broadcast", "collective-broadcast",
    "collective-permute", "collective-permute-start", "complex", "concatenate", "convert", "copy", "copy-start",
    "dynamic-slice", "dynamic-update-slice", "gather", "get-tuple-element", "imag", "opt-barrier", "pad",
    "ragged-all-to-all", "real", "reduce-precision", "reshape", "reverse", "scatter", "select", "slice", "sort",
    "transpose",
})
# fmt: on
"""Opcodes whose results hold elements of their operands, perhaps in another order, layout or dtype."""
ENDING = frozenset({"custom-call", "fft", "ragged-dot", "rng", "rng-bit-generator", "topk", "triangular-solve"})
"""Opcodes with new results, as those of products."""
NAMED_READS = ("gather", "dynamic-slice")


class Held(NamedTuple):
    """Elements of a pool that a value holds.

    Attributes:
        moved: copied, or only converted to another dtype.
        computed: results of arithmetic on them.
    """

    moved: int = 0
    computed: int = 0

    def within(self, most: int) -> "Held":
        """Bound both by the size of a value."""
        return Held(min(self.moved, most), min(self.computed, most))


NOTHING = Held()
Leaves = Mapping[Index, Held]
"""Elements held by each entry of a result."""


@dataclass(frozen=True)
class PoolType:
    """The facts of a pool that its flow depends on.

    Attributes:
        parameter: number of its entry parameter.
        array: its type on one device.
        rows: number of its rows on one device.
        by_lane: every row is a lane's, so that a step computes all of them.
        paged: page tables name its rows, any number of them.
    """

    parameter: int
    array: Array
    rows: int
    by_lane: bool
    paged: bool

    @property
    def least(self) -> int:
        """Elements of all rows but one; of a pool with one row all elements."""
        return self.array.count - (self.array.count // self.rows if self.rows > 1 else 0)

    def size(self, array: Array) -> int:
        """Elements of the pool that have room in an array: as many as its elements, or its bytes if these are more."""
        return max(array.count, array.padded_bytes * self.array.count // max(1, self.array.padded_bytes))


@dataclass(frozen=True)
class PoolFlow:
    """The transfer of a pool's elements through one instruction, and through the instructions of a fusion."""

    computations: Mapping[int, Computation]
    pool: PoolType
    back: bool

    def results(
        self, one: Instruction, operands: Sequence[Leaves], arrays: list[Array], named: list[bool]
    ) -> dict[Index, Held]:
        """Return what each entry of a result holds.

        Args:
            one: the instruction.
            operands: what the operands hold.
            arrays: their types.
            named: whether each is computed from an argument of the program.
        """
        if one.opcode == "tuple":
            return {(i, *index): held for i, leaves in enumerate(operands) for index, held in leaves.items()}
        if one.opcode == "get-tuple-element":
            return {index[1:]: held for index, held in operands[0].items() if index[:1] == (one.tuple_index,)}
        if one.opcode in ("fusion", STARTED, "call") and one.called:
            inside = self._inside(self.computations[one.called[0]], operands, named)
            return {((1, *index) if one.opcode == STARTED else index): held for index, held in inside.items()}
        found: dict[Index, Held] = {}
        for index, array in one.arrays.items():
            if array.dtype == "tuple":
                continue
            parts = [self._carried(one, index, i, leaves, arrays, named) for i, leaves in enumerate(operands)]
            if any(parts):
                joined = sum if one.opcode == "concatenate" else max
                held = Held(joined(part.moved for part in parts), joined(part.computed for part in parts))
                most = array.count if one.opcode.startswith("reduce") else self.pool.size(array)
                found[index] = held.within(most)
        return found

    def _inside(self, fused: Computation, operands: Sequence[Leaves], named: list[bool]) -> dict[Index, Held]:
        """Return what each result of a fusion holds; an operand that is a tuple keeps its entries."""
        held: dict[int, dict[Index, Held]] = {}
        inputs: dict[int, bool] = {}
        for one in fused.instructions:
            if one.opcode == "parameter":
                held[one.id], inputs[one.id] = dict(operands[one.parameter]), named[one.parameter]
                continue
            inputs[one.id] = any(inputs[operand] for operand in one.operands)
            leaves = [held[operand] for operand in one.operands]
            arrays = [fused.by_id[operand].array for operand in one.operands]
            taken = self.results(one, leaves, arrays, [inputs[at] for at in one.operands]) if any(leaves) else {}
            held[one.id] = taken
        return held[fused.root]

    def _carried(
        self, one: Instruction, index: Index, operand: int, leaves: Leaves, arrays: list[Array], named: list[bool]
    ) -> Held:
        """Return what an entry of a result holds of one operand's elements."""
        held = leaves.get((), NOTHING)
        if held == NOTHING or multiplies(one):
            return NOTHING
        opcode, pool = one.opcode, self.pool
        if opcode == "custom-call":
            # What a call writes is unknown; a result of the pool's own type may be the pool.
            if any(output == index and number == operand for output, number, _ in one.aliasing):
                return held
            alike = (one.arrays[index].dtype, one.arrays[index].dims) == (pool.array.dtype, pool.array.dims)
            return Held(0, max(held)) if alike and max(held) >= pool.least else NOTHING
        if opcode in ENDING:
            return NOTHING
        if opcode in NAMED_READS:
            few = pool.by_lane or pool.paged or one.array.count < pool.array.count
            if operand or (few and any(named[1:])):
                return NOTHING
        elif opcode in ("dynamic-update-slice", "scatter"):
            bases = 1 if opcode == "dynamic-update-slice" else (len(arrays) - 1) // 2
            first = bases if opcode == "dynamic-update-slice" else bases + 1
            if not (operand < bases or first <= operand < first + bases):
                return NOTHING
            if self.back and operand >= bases and arrays[operand].count < pool.array.count:
                return NOTHING
        elif opcode == "sort" and len(arrays) > 1 and index != (operand,):
            return NOTHING
        # Rows that a lane's mask chooses are its own new rows, as those of arithmetic.
        if opcode in MOVING and not (opcode == "select" and (operand == 0 or pool.by_lane)):
            return held
        return Held(0, max(held)) if max(held) >= pool.least else NOTHING
