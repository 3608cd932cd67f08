"""The values of a compiled program that hold a pool's elements, found by dataflow and not by dtype or shape.

A value holds the elements that operations moved there (copies, conversions, transposes, slices, concatenations) or
computed from them (arithmetic). Products, reductions and calls end the flow, as does a read of the rows that an input
names: their results are new. A rotary table or a query with as many elements as a pool therefore holds none of it.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ir_passes.xla_audit.dataflow import LiveValues
from ir_passes.xla_audit.dataflow.asynchronous import STARTED
from ir_passes.xla_audit.products import multiplies
from ir_passes.xla_audit.program import Array, Computation, Executable, Index, Instruction

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
HANDING_OVER = ("while", "conditional")
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

    @property
    def lane_numbers(self) -> bool:
        """True for one number of each lane: any list of lanes is as large, so that only moved elements are followed."""
        return self.by_lane and self.array.count == self.rows

    def size(self, array: Array) -> int:
        """Elements of the pool that have room in an array: as many as its elements, or its bytes if these are more."""
        return max(array.count, array.bytes // max(1, self.array.bits // 8))


class PoolValues:
    """The flow of pools' elements through one program.

    Fusions are decoded only if a pool's elements reach them.
    """

    def __init__(self, executable: Executable, live: LiveValues):
        self._module, self._live = executable.module, live
        self._readers: dict[int, list[int]] = defaultdict(list)
        for tick, one in enumerate(live.executed):
            for position in positions(one.operands, live):
                self._readers[position].append(tick)
        self._handed: dict[int, list[tuple[int, int]]] = {
            one.id: list(self._handed_over(one)) for one in live.executed if one.opcode in HANDING_OVER
        }
        self._named = self._derived_from_inputs()

    def onwards(self, pool: PoolType) -> dict[int, Held]:
        """Return the elements of a pool in each value that holds any, by position in `live.values`."""
        start = self._live.of[self._module.main.parameters[pool.parameter].id][()]
        held = {start: Held(pool.array.count)}
        waiting = sorted(self._readers[start])
        while waiting:
            one = self._live.executed[heapq.heappop(waiting)]
            for position, found in self._results(one, held, pool):
                before = held.get(position, NOTHING)
                after = Held(*map(max, before, found))
                if after != before:
                    held[position] = after
                    for tick in self._readers[position]:
                        heapq.heappush(waiting, tick)
        return held

    def backwards(self, pool: PoolType, successor: int) -> set[int]:
        """Return positions in `live.values` of what becomes the successor of a pool, by values of its size all the way.

        Args:
            pool: the pool.
            successor: number of the output.
        """
        results = self._live.of[self._module.main.root]
        # The table of a tuple points to every output; a single output is there without one.
        last = results[(successor,)] if (successor,) in results else results[()]
        makers = self._makers()
        found, waiting = {last}, [last]
        while waiting:
            position = waiting.pop()
            for source in makers(position):
                array = self._live.values[source].array
                if source in found or pool.size(array) < pool.least:
                    continue
                one, alone = self._live.values[position].instruction, {source: Held(pool.size(array))}
                if one.opcode in HANDING_OVER or one.opcode == "parameter":
                    reached = True
                else:
                    reached = any(
                        at == position and max(held) >= pool.least for at, held in self._results(one, alone, pool, True)
                    )
                if reached:
                    found.add(source)
                    waiting.append(source)
        return found

    def sources(self, one: Instruction) -> set[int]:
        """Positions in `live.values` of the operands of an instruction."""
        return positions(one.operands, self._live)

    def _makers(self) -> Callable[[int], Iterable[int]]:
        handed: dict[int, set[int]] = defaultdict(set)
        for pairs in self._handed.values():
            for source, result in pairs:
                handed[result].add(source)

        def makers(position: int) -> Iterable[int]:
            one = self._live.values[position].instruction
            own = () if one.opcode in (*HANDING_OVER, "parameter") else self.sources(one)
            return {*own, *handed[position]}

        return makers

    def _results(
        self, one: Instruction, held: Mapping[int, Held], pool: PoolType, back: bool = False
    ) -> Iterator[tuple[int, Held]]:
        """Yield the values that an instruction defines, each with what it holds.

        Args:
            held: by position in `live.values`.
            back: new rows that are written into others count only if they are all rows.
        """
        if one.opcode in HANDING_OVER:
            yield from ((result, held[source]) for source, result in self._handed[one.id] if source in held)
            return
        live = self._live
        operands = [
            {index: held[at] for index, at in live.of[operand].items() if at in held} for operand in one.operands
        ]
        named = [bool(self._named & set(live.of[operand].values())) for operand in one.operands]
        arrays = [self._module.instructions[operand].array for operand in one.operands]
        made = _Flow(self._module.computations, pool, back).results(one, operands, arrays, named)
        yield from ((at, made[index]) for index, at in live.made_by(one) if index in made)

    def _handed_over(self, one: Instruction) -> Iterator[tuple[int, int]]:
        """Yield the values that a loop or branch hands over; each keeps its place in the tuple."""
        of, computations = self._live.of, [self._module.computations[id] for id in one.called]
        if one.opcode == "while":
            body, condition = computations
            pairs = [(one.operands[0], body), (body.root, body), (one.operands[0], condition)]
            results = [one.operands[0], body.root]
        else:
            pairs = list(zip(one.operands[1:], computations, strict=True))
            results = [computation.root for computation in computations]
        places = [(source, computation.parameters[0].id) for source, computation in pairs]
        for source, target in [*places, *((result, one.id) for result in results)]:
            for index, position in of[target].items():
                if index in of[source] and of[source][index] != position:
                    yield of[source][index], position

    def _derived_from_inputs(self) -> set[int]:
        """Positions in `live.values` of what is computed from an argument of the program."""
        live, main = self._live, self._module.main
        found = positions((one.id for one in main.parameters.values()), live)
        waiting = [tick for position in found for tick in self._readers[position]]
        while waiting:
            one = live.executed[waiting.pop()]
            if one.opcode in HANDING_OVER:
                results = {result for source, result in self._handed[one.id] if source in found}
            else:
                results = {position for _, position in live.made_by(one)}
            for position in results - found:
                found.add(position)
                waiting += self._readers[position]
        return found


@dataclass(frozen=True)
class _Flow:
    """The transfer of a pool's elements through one instruction, and through the instructions of a fusion."""

    computations: Mapping[int, Computation]
    pool: PoolType
    back: bool

    def results(
        self, one: Instruction, operands: list[Leaves], arrays: list[Array], named: list[bool]
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

    def _inside(self, fused: Computation, operands: list[Leaves], named: list[bool]) -> dict[Index, Held]:
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
        return Held(0, max(held)) if max(held) >= pool.least and not pool.lane_numbers else NOTHING


def positions(instructions: Iterable[int], live: LiveValues) -> set[int]:
    """Positions in `live.values` of all values of some instructions."""
    return {position for one in instructions for position in live.of[one].values()}
