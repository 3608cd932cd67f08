"""The elements of a pool that an instruction hands from its operands to its results.

Elements are moved (copied, converted, transposed, sliced, concatenated) or computed (by arithmetic). Products, calls
and reads of the rows that an input names have new results. A reduction's result holds at most its own number of
elements.
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
        """Elements of all rows but one; of a pool with one or two rows all elements.

        One of two rows is as large as a block of half the positions of both, which attention reads.
        """
        return self.array.count - (self.array.count // self.rows if self.rows > 2 else 0)

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
        self, instruction: Instruction, operands: Sequence[Leaves], arrays: list[Array], named: list[bool]
    ) -> dict[Index, Held]:
        """Return what each entry of a result holds.

        Args:
            instruction: a fusion or any other instruction, but no loop or branch.
            operands: what the operands hold.
            arrays: their types.
            named: whether each is computed from an argument of the program.
        """
        if instruction.opcode == "tuple":
            return {(i, *index): held for i, leaves in enumerate(operands) for index, held in leaves.items()}
        if instruction.opcode == "get-tuple-element":
            return {index[1:]: held for index, held in operands[0].items() if index[:1] == (instruction.tuple_index,)}
        if instruction.opcode in ("fusion", STARTED, "call") and instruction.called:
            inside = self._inside(self.computations[instruction.called[0]], operands, named)
            return {((1, *index) if instruction.opcode == STARTED else index): held for index, held in inside.items()}
        found: dict[Index, Held] = {}
        for index, array in instruction.arrays.items():
            if array.dtype == "tuple":
                continue
            parts = [self._carried(instruction, index, i, leaves, arrays, named) for i, leaves in enumerate(operands)]
            if any(map(any, parts)):
                joined = sum if instruction.opcode == "concatenate" else max
                held = Held(joined(part.moved for part in parts), joined(part.computed for part in parts))
                most = array.count if instruction.opcode.startswith("reduce") else self.pool.size(array)
                found[index] = held.within(most)
        return found

    def _inside(self, fused: Computation, operands: Sequence[Leaves], named: list[bool]) -> dict[Index, Held]:
        """Return what each result of a fusion holds; an operand that is a tuple keeps its entries."""
        held: dict[int, dict[Index, Held]] = {}
        inputs: dict[int, bool] = {}
        for instruction in fused.instructions:
            if instruction.opcode == "parameter":
                held[instruction.id], inputs[instruction.id] = (
                    dict(operands[instruction.parameter]),
                    named[instruction.parameter],
                )
                continue
            inputs[instruction.id] = any(inputs[operand] for operand in instruction.operands)
            leaves = [held[operand] for operand in instruction.operands]
            arrays = [fused.by_id[operand].array for operand in instruction.operands]
            named_operands = [inputs[operand] for operand in instruction.operands]
            held[instruction.id] = self.results(instruction, leaves, arrays, named_operands) if any(leaves) else {}
        return held[fused.root]

    def _carried(
        self,
        instruction: Instruction,
        index: Index,
        operand: int,
        leaves: Leaves,
        arrays: list[Array],
        named: list[bool],
    ) -> Held:
        """Return what an entry of a result holds of one operand's elements."""
        held = leaves.get((), NOTHING)
        if held == NOTHING or multiplies(instruction):
            return NOTHING
        opcode, pool = instruction.opcode, self.pool
        if opcode == "custom-call":
            # What a call writes is unknown; a result of the pool's own type may be the pool.
            if any(output == index and number == operand for output, number, _ in instruction.aliasing):
                return held
            alike = (instruction.arrays[index].dtype, instruction.arrays[index].dims) == (
                pool.array.dtype,
                pool.array.dims,
            )
            return Held(0, max(held)) if alike and max(held) >= pool.least else NOTHING
        if opcode in ENDING:
            return NOTHING
        if opcode in NAMED_READS:
            few = pool.by_lane or pool.paged or instruction.array.count < pool.array.count
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
