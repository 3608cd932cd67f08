"""Which values of a compiled program may be a version of a pool, and which only happen to have a pool's type.

A version is computed from the version before it, or becomes the one after it, by values of the pool's size all the way:
rows that are read or written by themselves end the way, inside a fusion as between instructions. The queries of an
attention, say, may have as many rows as its cache has positions, and be no version of it.
"""

import math
from collections.abc import Iterable, Iterator

from ir_passes.live_values import LiveValues
from ir_passes.program import Computation, Executable, Index, Instruction

Ways = dict[int, list[tuple[int, int]]]
"""Position of a value in `live.values` -> of those that it is computed into, each with the elements of the smallest
array on the largest way there."""


class PoolValues:
    """The ways that values take through one program."""

    def __init__(self, executable: Executable, live: LiveValues):
        self._executable, self._live = executable, live
        self._after: Ways = {}
        self._before: Ways = {}
        for one in live.executed:
            for source, result, count in self._ways(one):
                self._after.setdefault(source, []).append((result, count))
                self._before.setdefault(result, []).append((source, count))

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
        return self._reached(first, self._after, least) | self._reached(last, self._before, least)

    def _reached(self, start: set[int], ways: Ways, least: int) -> set[int]:
        found, waiting = set(start), list(start)
        while waiting:
            for other, count in ways.get(waiting.pop(), ()):
                if other not in found and count >= least and self._live.values[other].array.count >= least:
                    found.add(other)
                    waiting.append(other)
        return found

    def _ways(self, one: Instruction) -> Iterator[tuple[int, int, int]]:
        of, values = self._live.of, self._live.values
        if one.opcode in ("while", "conditional"):
            yield from ((source, result, values[source].array.count) for source, result in self._handed_over(one))
            return
        made = [(index, place) for index, place in of[one.id].items() if values[place].instruction.id == one.id]
        if one.opcode == "fusion":
            fused = self._executable.module.computations[one.called[0]]
            for index, place in made:
                for number, count in self._inside(fused, index).items():
                    yield from ((operand, place, count) for operand in positions([one.operands[number]], self._live))
            return
        operands = positions(one.operands, self._live)
        yield from ((operand, place, values[operand].array.count) for _, place in made for operand in operands)

    @staticmethod
    def _inside(fused: Computation, index: Index) -> dict[int, int]:
        """Of each parameter of a fusion, the elements of the smallest array on the largest way to a result."""
        result = next(one for one in fused.instructions if one.id == fused.root)
        counts = {(result.operands[index[0]] if index and result.opcode == "tuple" else result.id): math.inf}
        for one in reversed(fused.instructions):
            if one.id in counts:
                counts[one.id] = least = min(counts[one.id], max(array.count for array in one.arrays.values()))
                for operand in one.operands:
                    counts[operand] = max(counts.get(operand, 0), least)
        return {number: int(counts[one.id]) for number, one in fused.parameters.items() if one.id in counts}

    def _handed_over(self, one: Instruction) -> Iterator[tuple[int, int]]:
        """What goes into a loop or a branch, round it, and out of it keeps its place in the tuple."""
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
