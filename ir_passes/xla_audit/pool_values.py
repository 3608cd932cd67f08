"""The values of a compiled program that hold a pool's elements, found by dataflow and not by dtype or shape.

A rotary table, or the queries of an attention, may have as many elements as a pool and hold none of it.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from ir_passes.xla_audit.dataflow import LiveValues
from ir_passes.xla_audit.pool_flow import NOTHING, Held, PoolFlow, PoolType
from ir_passes.xla_audit.program import Executable, Instruction

HANDING_OVER = ("while", "conditional")
"""Opcodes that only hand values over."""


class PoolValues:
    """The flow of pools' elements through one program.

    Fusions are decoded only if a pool's elements reach them.
    """

    def __init__(self, executable: Executable, live: LiveValues):
        self._module, self._live = executable.module, live
        self._readers: dict[int, list[int]] = defaultdict(list)
        for tick, instruction in enumerate(live.executed):
            for position in positions(instruction.operands, live):
                self._readers[position].append(tick)
        self._handed: dict[int, list[tuple[int, int]]] = {
            instruction.id: list(self._handed_over(instruction))
            for instruction in live.executed
            if instruction.opcode in HANDING_OVER
        }
        self._named = self._derived_from_inputs()

    def onwards(self, pool: PoolType) -> dict[int, Held]:
        """Return the elements of a pool in each value that holds any, by position in `live.values`."""
        start = self._live.of[self._module.main.parameters[pool.parameter].id][()]
        held = {start: Held(pool.array.count)}
        waiting = sorted(self._readers[start])
        while waiting:
            instruction = self._live.executed[heapq.heappop(waiting)]
            for position, found in self._results(instruction, held, pool):
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
                instruction, alone = self._live.values[position].instruction, {source: Held(pool.size(array))}
                if instruction.opcode in HANDING_OVER or instruction.opcode == "parameter":
                    reached = True
                else:
                    reached = any(
                        at == position and max(held) >= pool.least
                        for at, held in self._results(instruction, alone, pool, True)
                    )
                if reached:
                    found.add(source)
                    waiting.append(source)
        return found

    def sources(self, instruction: Instruction) -> set[int]:
        """Positions in `live.values` of the operands of an instruction."""
        return positions(instruction.operands, self._live)

    def _makers(self) -> Callable[[int], Iterable[int]]:
        handed: dict[int, set[int]] = defaultdict(set)
        for pairs in self._handed.values():
            for source, result in pairs:
                handed[result].add(source)

        def makers(position: int) -> Iterable[int]:
            instruction = self._live.values[position].instruction
            own = () if instruction.opcode in (*HANDING_OVER, "parameter") else self.sources(instruction)
            return {*own, *handed[position]}

        return makers

    def _results(
        self, instruction: Instruction, held: Mapping[int, Held], pool: PoolType, back: bool = False
    ) -> Iterator[tuple[int, Held]]:
        """Yield the values that an instruction defines, each with what it holds.

        Args:
            held: by position in `live.values`.
            back: new rows that are written into others count only if they are all rows.
        """
        if instruction.opcode in HANDING_OVER:
            yield from ((result, held[source]) for source, result in self._handed[instruction.id] if source in held)
            return
        live = self._live
        operands = [
            {index: held[at] for index, at in live.of[operand].items() if at in held}
            for operand in instruction.operands
        ]
        named = [bool(self._named & set(live.of[operand].values())) for operand in instruction.operands]
        arrays = [self._module.instructions[operand].array for operand in instruction.operands]
        made = PoolFlow(self._module.computations, pool, back).results(instruction, operands, arrays, named)
        yield from ((at, made[index]) for index, at in live.made_by(instruction) if index in made)

    def _handed_over(self, instruction: Instruction) -> Iterator[tuple[int, int]]:
        """Yield the values that a loop or branch hands over; each keeps its place in the tuple."""
        of, computations = self._live.of, [self._module.computations[id] for id in instruction.called]
        if instruction.opcode == "while":
            body, condition = computations
            pairs = [(instruction.operands[0], body), (body.root, body), (instruction.operands[0], condition)]
            results = [instruction.operands[0], body.root]
        else:
            pairs = list(zip(instruction.operands[1:], computations, strict=True))
            results = [computation.root for computation in computations]
        places = [(source, computation.parameters[0].id) for source, computation in pairs]
        for source, target in [*places, *((result, instruction.id) for result in results)]:
            for index, position in of[target].items():
                if index in of[source] and of[source][index] != position:
                    yield of[source][index], position

    def _derived_from_inputs(self) -> set[int]:
        """Positions in `live.values` of what is computed from an argument of the program."""
        live, main = self._live, self._module.main
        found = positions((instruction.id for instruction in main.parameters.values()), live)
        waiting = [tick for position in found for tick in self._readers[position]]
        while waiting:
            instruction = live.executed[waiting.pop()]
            if instruction.opcode in HANDING_OVER:
                results = {result for source, result in self._handed[instruction.id] if source in found}
            else:
                results = {position for _, position in live.made_by(instruction)}
            for position in results - found:
                found.add(position)
                waiting += self._readers[position]
        return found


def positions(instructions: Iterable[int], live: LiveValues) -> set[int]:
    """Positions in `live.values` of all values of some instructions."""
    return {position for instruction in instructions for position in live.of[instruction].values()}
