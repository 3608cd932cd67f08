"""Flow of a pool's elements from operands to results.

Elements are moved (copied, converted, transposed, sliced, concatenated) or computed. Matrix products, reads of rows
selected by an input, and custom calls without a result of the pool's type pass on no elements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
"""Opcodes that copy elements, perhaps in another order, layout or dtype."""
ENDING = frozenset({"custom-call", "fft", "ragged-dot", "rng", "rng-bit-generator", "topk", "triangular-solve"})
"""Opcodes that pass on no elements, such as matrix products."""
NAMED_READS = ("gather", "dynamic-slice")
"""Opcodes that read rows selected by an operand."""


class Held(NamedTuple):
    """Numbers of a pool's moved and computed elements in a value."""

    moved: int = 0
    computed: int = 0

    def within(self, limit: int) -> "Held":
        return Held(min(self.moved, limit), min(self.computed, limit))


NOTHING = Held()
Leaves = Mapping[Index, Held]
"""Result entry -> elements in it."""


@dataclass(frozen=True)
class PoolFlow:
    """A pool on one device, and the flow of its elements through instructions and fusions.

    Attributes:
        computations: of the program.
        parameter: number of the entry parameter.
        by_lane: every row belongs to a lane.
        paged: page tables select rows.
        lanes: of the step, on all devices.
    """

    computations: Mapping[int, Computation] = field(repr=False)
    parameter: int
    array: Array
    rows: int
    by_lane: bool
    paged: bool
    lanes: int

    @property
    def least(self) -> int:
        """Elements in all rows except one; with one or two rows, in all.

        Attention reads blocks with half the positions of both rows: as large as one row.
        """
        return self.array.count - (self.array.count // self.rows if self.rows > 2 else 0)

    def is_like(self, array: Array) -> bool:
        return (array.dtype, array.dims) == (self.array.dtype, self.array.dims)

    def is_few_rows(self, array: Array) -> bool:
        """True for fewer elements than the pool, or at most a row per lane.

        A device with fewer rows than lanes accesses a row per lane, some out of bounds.
        """
        return array.count < self.array.count or array.count * self.rows <= self.lanes * self.array.count

    def size(self, array: Array) -> int:
        """Return how many elements of the pool fit into an array, by elements or bytes."""
        return max(array.count, array.padded_bytes * self.array.count // max(1, self.array.padded_bytes))

    def results(
        self,
        instruction: Instruction,
        operands: Sequence[Leaves],
        arrays: list[Array],
        from_inputs: list[bool],
        whole_writes: bool = False,
    ) -> dict[Index, Held]:
        """Return the elements in each entry of a result.

        Args:
            instruction: no loop or branch.
            from_inputs: True for operands that depend on program arguments.
            whole_writes: written rows count only if they replace all rows.
        """
        if instruction.opcode == "tuple":
            return {(i, *index): elements for i, leaves in enumerate(operands) for index, elements in leaves.items()}
        if instruction.opcode == "get-tuple-element":
            return {
                index[1:]: elements
                for index, elements in operands[0].items()
                if index[:1] == (instruction.tuple_index,)
            }
        if instruction.opcode in ("fusion", STARTED, "call") and instruction.called:
            fused = self._inside(self.computations[instruction.called[0]], operands, from_inputs, whole_writes)
            return {
                ((1, *index) if instruction.opcode == STARTED else index): elements for index, elements in fused.items()
            }
        results: dict[Index, Held] = {}
        for index, array in instruction.arrays.items():
            if array.dtype == "tuple":
                continue
            parts = [
                self._carried(instruction, index, i, leaves, arrays, from_inputs, whole_writes)
                for i, leaves in enumerate(operands)
            ]
            if any(map(any, parts)):
                join = sum if instruction.opcode == "concatenate" else max
                elements = Held(join(part.moved for part in parts), join(part.computed for part in parts))
                limit = array.count if instruction.opcode.startswith("reduce") else self.size(array)
                results[index] = elements.within(limit)
        return results

    def _inside(
        self, fused: Computation, operands: Sequence[Leaves], from_inputs: list[bool], whole_writes: bool
    ) -> dict[Index, Held]:
        """Return the elements in each result of a fusion; tuple operands keep their entries."""
        results: dict[int, dict[Index, Held]] = {}
        from_input: dict[int, bool] = {}
        for instruction in fused.instructions:
            if instruction.opcode == "parameter":
                results[instruction.id], from_input[instruction.id] = (
                    dict(operands[instruction.parameter]),
                    from_inputs[instruction.parameter],
                )
                continue
            from_input[instruction.id] = any(from_input[operand] for operand in instruction.operands)
            operand_elements = [results[operand] for operand in instruction.operands]
            arrays = [fused.by_id[operand].array for operand in instruction.operands]
            operands_from_inputs = [from_input[operand] for operand in instruction.operands]
            results[instruction.id] = (
                self.results(instruction, operand_elements, arrays, operands_from_inputs, whole_writes)
                if any(operand_elements)
                else {}
            )
        return results[fused.root]

    def _carried(
        self,
        instruction: Instruction,
        index: Index,
        operand: int,
        leaves: Leaves,
        arrays: list[Array],
        from_inputs: list[bool],
        whole_writes: bool,
    ) -> Held:
        """Return the elements that an operand passes to an entry of the result."""
        elements = leaves.get((), NOTHING)
        if elements == NOTHING or multiplies(instruction):
            return NOTHING
        opcode = instruction.opcode
        if opcode == "custom-call":
            # The output of a call is unknown. A result in an operand's memory is made of that operand; other results
            # are new rows or another pool, even if they have the pool's type: with as many tokens as a convolution
            # has inputs in its state, its outputs have it.
            in_place = [(output, number) for output, number, _ in instruction.aliasing]
            if any(index == output or operand == number for output, number in in_place):
                return elements if (index, operand) in in_place else NOTHING
            same_type = self.is_like(instruction.arrays[index])
            return Held(0, max(elements)) if same_type and max(elements) >= self.least else NOTHING
        if opcode in ENDING:
            return NOTHING
        if opcode in NAMED_READS:
            reads_few_rows = self.by_lane or self.paged or self.is_few_rows(instruction.array)
            if operand or (reads_few_rows and any(from_inputs[1:])):
                return NOTHING
        elif opcode in ("dynamic-update-slice", "scatter"):
            pools = 1 if opcode == "dynamic-update-slice" else (len(arrays) - 1) // 2
            first_update = pools if opcode == "dynamic-update-slice" else pools + 1
            if not (operand < pools or first_update <= operand < first_update + pools):
                return NOTHING
            if whole_writes and operand >= pools:
                named = opcode == "scatter" and from_inputs[pools]
                if self.is_few_rows(arrays[operand]) if named else arrays[operand].count < self.array.count:
                    return NOTHING
        elif opcode == "sort" and len(arrays) > 1 and index != (operand,):
            return NOTHING
        # Rows selected by a lane's mask are new rows of that lane, like results of arithmetic.
        if opcode in MOVING and not (opcode == "select" and (operand == 0 or self.by_lane)):
            return elements
        return Held(0, max(elements)) if max(elements) >= self.least else NOTHING
