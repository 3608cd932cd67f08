"""The values of a compiled program that may be versions of a pool, and not only happen to have a pool's type.

A version is computed from the version before it, or becomes the one after it, by values of the pool's size all the way:
rows that are read or written by themselves end the way, inside a fusion as between instructions. So do products,
and calls but for the operands that they write in place: what they make is new. The queries of an attention, say, may
have as many rows as its cache has positions, or as the state of the layer above has, and be no version of either.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from ir_passes.xla_audit.dataflow import LiveValues
from ir_passes.xla_audit.products import multiplies
from ir_passes.xla_audit.program import Computation, Executable, Index, Instruction

Ways = dict[int, list[tuple[int, int]]]
"""Position of a value in `live.values` -> of those that it is computed into, each with the elements of the smallest
array on the largest way there."""
Steps = Callable[[int, int], Iterator[tuple[int, int]]]
"""A function from a value's position and the least number of elements to the values one step further on."""
Made = tuple[Instruction, Index, int]
"""A result of a fusion: its place in the tuple, and its position in `live.values`."""


class PoolValues:
    """The ways that values take through one program.

    Fusions are looked into only where a way reaches them: decoding what they hold is most of the work.
    """

    def __init__(self, executable: Executable, live: LiveValues):
        self._executable, self._live = executable, live
        self._after: Ways = defaultdict(list)
        self._before: Ways = defaultdict(list)
        self._fused_from: dict[int, list[Made]] = defaultdict(list)
        self._fused: dict[int, Made] = {}
        self._counts: dict[tuple[int, Index], dict[int, int]] = {}
        for one in live.executed:
            if one.opcode == "fusion":
                results = [(one, index, place) for index, place in live.made_by(one)]
                self._fused |= {made[2]: made for made in results}
                for operand in positions(one.operands, live):
                    self._fused_from[operand] += results
                continue
            for source, result, count in self._ways(one):
                self._after[source].append((result, count))
                self._before[result].append((source, count))

    def versions(self, pools: Iterable[int], successors: Iterable[int]) -> set[int]:
        """Positions in `live.values` of what may be a version of one of some pools of one size.

        Args:
            pools: their parameter numbers.
            successors: output numbers of their successors.
        """
        main = self._executable.module.main
        parameters = [main.parameters[number] for number in pools]
        least = min(one.array.count for one in parameters)
        first = positions((one.id for one in parameters), self._live)
        results = self._live.of[main.root]
        # The table of a tuple points to every output; a single output is there without one.
        last = {results[(number,)] if (number,) in results else results[()] for number in successors}
        return self._reached(first, self._onwards, least) | self._reached(last, self._backwards, least)

    def _reached(self, start: set[int], ways: Steps, least: int) -> set[int]:
        found, waiting = set(start), list(start)
        while waiting:
            for other, count in ways(waiting.pop(), least):
                if other not in found and count >= least and self._live.values[other].array.count >= least:
                    found.add(other)
                    waiting.append(other)
        return found

    def _onwards(self, position: int, least: int) -> Iterator[tuple[int, int]]:
        yield from self._after.get(position, ())
        for made in self._fused_from.get(position, ()):
            if self._live.values[made[2]].array.count >= least:
                yield from ((made[2], count) for source, count in self._sources(made) if source == position)

    def _backwards(self, position: int, least: int) -> Iterator[tuple[int, int]]:
        yield from self._before.get(position, ())
        made = self._fused.get(position)
        if made is not None:
            yield from self._sources(made)

    def _sources(self, made: Made) -> Iterator[tuple[int, int]]:
        """Yield the values that a result of a fusion is computed from."""
        one, index, _ = made
        key = one.id, index
        if key not in self._counts:
            self._counts[key] = self._inside(self._executable.module.computations[one.called[0]], index)
        for number, count in self._counts[key].items():
            yield from ((operand, count) for operand in positions([one.operands[number]], self._live))

    def _ways(self, one: Instruction) -> Iterator[tuple[int, int, int]]:
        """Yield the results of an instruction that is no fusion, each with the values it is computed from."""
        values = self._live.values
        if multiplies(one):
            return
        if one.opcode == "custom-call":
            for output, number, index in one.aliasing:
                source = self._live.of[one.operands[number]][index]
                yield source, self._live.of[one.id][output], values[source].array.count
            return
        if one.opcode in ("while", "conditional"):
            yield from ((source, result, values[source].array.count) for source, result in self._handed_over(one))
            return
        operands = positions(one.operands, self._live)
        made = self._live.made_by(one)
        yield from ((operand, place, values[operand].array.count) for _, place in made for operand in operands)

    @staticmethod
    def _inside(fused: Computation, index: Index) -> dict[int, int]:
        """Return for each parameter of a fusion the elements of the smallest array on the largest way to a result."""
        result = fused.result
        counts = {(result.operands[index[0]] if index and result.opcode == "tuple" else result.id): math.inf}
        for one in reversed(fused.instructions):
            if one.id in counts and not multiplies(one):
                counts[one.id] = least = min(counts[one.id], max(array.count for array in one.arrays.values()))
                for operand in one.operands:
                    counts[operand] = max(counts.get(operand, 0), least)
        return {number: int(counts[one.id]) for number, one in fused.parameters.items() if one.id in counts}

    def _handed_over(self, one: Instruction) -> Iterator[tuple[int, int]]:
        """Yield the values that a loop or branch hands over; each keeps its place in the tuple."""
        of, computations = self._live.of, [self._executable.module.computations[id] for id in one.called]
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


def positions(instructions: Iterable[int], live: LiveValues) -> set[int]:
    """Positions in `live.values` of all values of some instructions."""
    return {position for one in instructions for position in live.of[one].values()}
