"""Flow of a pool's elements through a program's values.

Dtype and shape do not identify a pool: a rotary table or queries may have as many elements.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from ir_passes.xla_audit.dataflow import LiveValues
from ir_passes.xla_audit.pool_flow import NOTHING, Held, PoolFlow
from ir_passes.xla_audit.program import Executable, Instruction

HANDING_OVER = ("while", "conditional")


class PoolValues:
    """Flow of pools' elements through one program; fusions are decoded on demand."""

    def __init__(self, executable: Executable, live: LiveValues):
        self._module, self._live = executable.module, live
        self._readers: dict[int, list[int]] = defaultdict(list)
        for tick, instruction in enumerate(live.executed):
            for position in positions(instruction.operands, live):
                self._readers[position].append(tick)
        self._handovers: dict[int, list[tuple[int, int]]] = {
            instruction.id: list(self._handed_over(instruction))
            for instruction in live.executed
            if instruction.opcode in HANDING_OVER
        }
        self._from_inputs = self._derived_from_inputs()

    def onwards(self, pool: PoolFlow) -> dict[int, Held]:
        """Return position in `live.values` -> number of elements of a pool."""
        start = self._live.of[self._module.main.parameters[pool.parameter].id][()]
        elements = {start: Held(pool.array.count)}
        waiting = sorted(self._readers[start])
        while waiting:
            instruction = self._live.executed[heapq.heappop(waiting)]
            for position, increase in self._results(instruction, elements, pool):
                old = elements.get(position, NOTHING)
                new = Held(*map(max, old, increase))
                if new != old:
                    elements[position] = new
                    for tick in self._readers[position]:
                        heapq.heappush(waiting, tick)
        return elements

    def backwards(self, pool: PoolFlow, successor: int) -> set[int]:
        """Return positions in `live.values` of pool-sized values that become output `successor`."""
        results = self._live.of[self._module.main.root]
        # A tuple's table points to every output; a program with one output has no table.
        end = results[(successor,)] if (successor,) in results else results[()]
        sources_of = self._makers()
        ancestors, waiting = {end}, [end]
        while waiting:
            position = waiting.pop()
            for source in sources_of(position):
                array = self._live.values[source].array
                if source in ancestors or pool.size(array) < pool.least:
                    continue
                instruction, operands = self._live.values[position].instruction, {source: Held(pool.size(array))}
                if instruction.opcode in HANDING_OVER or instruction.opcode == "parameter":
                    is_ancestor = True
                else:
                    is_ancestor = any(
                        result == position and max(elements) >= pool.least
                        for result, elements in self._results(instruction, operands, pool, True)
                    )
                if is_ancestor:
                    ancestors.add(source)
                    waiting.append(source)
        return ancestors

    def _makers(self) -> Callable[[int], Iterable[int]]:
        handovers: dict[int, set[int]] = defaultdict(set)
        for pairs in self._handovers.values():
            for source, result in pairs:
                handovers[result].add(source)

        def sources_of(position: int) -> Iterable[int]:
            instruction = self._live.values[position].instruction
            through_loop = instruction.opcode in (*HANDING_OVER, "parameter")
            operands = () if through_loop else positions(instruction.operands, self._live)
            return {*operands, *handovers[position]}

        return sources_of

    def _results(
        self, instruction: Instruction, elements: Mapping[int, Held], pool: PoolFlow, whole_writes: bool = False
    ) -> Iterator[tuple[int, Held]]:
        if instruction.opcode in HANDING_OVER:
            yield from (
                (result, elements[source]) for source, result in self._handovers[instruction.id] if source in elements
            )
            return
        live = self._live
        operands = [
            {index: elements[position] for index, position in live.of[operand].items() if position in elements}
            for operand in instruction.operands
        ]
        from_inputs = [bool(self._from_inputs & set(live.of[operand].values())) for operand in instruction.operands]
        arrays = [self._module.instructions[operand].array for operand in instruction.operands]
        results = pool.results(instruction, operands, arrays, from_inputs, whole_writes)
        yield from ((position, results[index]) for index, position in live.made_by(instruction) if index in results)

    def _handed_over(self, instruction: Instruction) -> Iterator[tuple[int, int]]:
        """Yield (source, result) of values that a loop or branch passes through."""
        positions, computations = self._live.of, [self._module.computations[id] for id in instruction.called]
        if instruction.opcode == "while":
            body, condition = computations
            pairs = [(instruction.operands[0], body), (body.root, body), (instruction.operands[0], condition)]
            results = [instruction.operands[0], body.root]
        else:
            pairs = list(zip(instruction.operands[1:], computations, strict=True))
            results = [computation.root for computation in computations]
        pairs_of_tuples = [(source, computation.parameters[0].id) for source, computation in pairs]
        for source, target in [*pairs_of_tuples, *((result, instruction.id) for result in results)]:
            for index, position in positions[target].items():
                if index in positions[source] and positions[source][index] != position:
                    yield positions[source][index], position

    def _derived_from_inputs(self) -> set[int]:
        live, main = self._live, self._module.main
        derived = positions((instruction.id for instruction in main.parameters.values()), live)
        waiting = [tick for position in derived for tick in self._readers[position]]
        while waiting:
            instruction = live.executed[waiting.pop()]
            if instruction.opcode in HANDING_OVER:
                results = {result for source, result in self._handovers[instruction.id] if source in derived}
            else:
                results = {position for _, position in live.made_by(instruction)}
            for position in results - derived:
                derived.add(position)
                waiting += self._readers[position]
        return derived


def positions(instructions: Iterable[int], live: LiveValues) -> set[int]:
    return {position for instruction in instructions for position in live.of[instruction].values()}
