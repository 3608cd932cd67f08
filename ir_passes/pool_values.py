"""Which values of a compiled program may be a version of a pool, and which only happen to have a pool's type.

A version is computed from the version before it, or becomes the one after it, by values of the pool's size all the way:
rows that are read or written by themselves end the way. The queries of an attention, say, may have as many rows as its
cache has positions, and be no version of it.
"""

from collections.abc import Iterable, Iterator

from ir_passes.live_values import LiveValues
from ir_passes.program import Executable, Instruction

Ways = dict[int, list[int]]
"""Position of a value in `live.values` -> of those that it is computed into."""


class PoolValues:
    """The ways that values take through one program."""

    def __init__(self, executable: Executable, live: LiveValues):
        self._executable, self._live = executable, live
        self._after: Ways = {}
        self._before: Ways = {}
        for one in live.executed:
            for source, result in self._ways(one):
                self._after.setdefault(source, []).append(result)
                self._before.setdefault(result, []).append(source)

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
        last = {results[index] for number in successors for index in ((number,), ()) if index in results}
        return self._reached(first, self._after, least) | self._reached(last, self._before, least)

    def _reached(self, start: set[int], ways: Ways, least: int) -> set[int]:
        found, waiting = set(start), list(start)
        while waiting:
            for other in ways.get(waiting.pop(), ()):
                if other not in found and self._live.values[other].array.count >= least:
                    found.add(other)
                    waiting.append(other)
        return found

    def _ways(self, one: Instruction) -> Iterator[tuple[int, int]]:
        of = self._live.of
        if one.opcode in ("while", "conditional"):
            yield from self._handed_over(one)
            return
        operands = positions(one.operands, self._live)
        for position in of[one.id].values():
            if self._live.values[position].instruction.id == one.id:
                yield from ((operand, position) for operand in operands)

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
