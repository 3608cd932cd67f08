"""Live ranges and bytes of values in a scheduled HLO module, independent of XLA's analysis.

The schedule is one clock: a called computation runs at its caller's tick, a loop's condition before its body. A value
lives from its definition to its last reader. Bitcasts, tuples and `get-tuple-element` define nothing; a loop carry is
one value.

More than 300 lines: one walk over the schedule.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ir_passes.contract.statements import NotCovered, Statement
from ir_passes.xla_audit.dataflow.asynchronous import (
    KNOWN,
    REDUCED,
    REDUCING,
    STARTED,
    TALKING,
    Leaves,
    finished,
    handed_on,
)
from ir_passes.xla_audit.dataflow.branches import JOINING, Branches, ConditionalBranch, fill, gaps_of
from ir_passes.xla_audit.program import Array, Computation, Executable, Index, Instruction, Slice

FOREVER = 1 << 62
FORWARDS = {"add-dependency", "bitcast", "domain", "opt-barrier"}
"""Opcodes that return their first operand."""


@dataclass(frozen=True)
class LiveValue:
    """A value with its bytes and live range.

    Attributes:
        slice: None outside the buffer assignment.
        start, stop: ticks of definition and last reader, inclusive.
        gaps: inclusive ticks of branches that no longer need it.
        parts: (instruction, index) of values that already form it in memory.
    """

    instruction: Instruction
    index: Index
    array: Array
    slice: Slice | None
    start: int
    stop: int
    gaps: tuple[tuple[int, int], ...] = ()
    parts: frozenset[tuple[int, Index]] = frozenset()

    def __str__(self) -> str:
        return f"{self.instruction.name}{list(self.index) if self.index else ''} {self.array}"


Carry = tuple[Instruction, Index, tuple[tuple[str, Slice | None], ...]]
"""Places that must be equal: inputs and outputs of a while or conditional."""


@dataclass(frozen=True)
class LiveValues:
    """Values of a module.

    Attributes:
        of: instruction id -> index -> position in `values`.
        executed: instructions in clock order.
        looped: ids of instructions inside loops.
    """

    values: tuple[LiveValue, ...]
    of: dict[int, Leaves]
    executed: tuple[Instruction, ...]
    looped: frozenset[int]
    carries: tuple[Carry, ...]
    uncovered: tuple[Statement, ...]

    def made_by(self, instruction: Instruction) -> Iterator[tuple[Index, int]]:
        """Yield index and position of values that an instruction defines, not forwards."""
        for index, position in self.of[instruction.id].items():
            if self.values[position].instruction.id == instruction.id:
                yield index, position


def live_values(executable: Executable) -> LiveValues:
    return _Flow(executable).run()


class _Flow:
    def __init__(self, executable: Executable):
        self._module = executable.module
        self._slices = executable.buffers.slices
        self._donated = self._module.aliases.keys()
        self._clock = 0
        self._defined: list[tuple[Instruction, Index, Array, Slice | None]] = []
        self._start: list[int] = []
        self._stop: list[int] = []
        self._same: list[int] = []
        self._of: dict[int, Leaves] = {}
        self._executed: list[Instruction] = []
        self._looped: set[int] = set()
        self._reading: dict[int, list[int]] = {}
        self._carries: list[Carry] = []
        self._uncovered: dict[Statement, None] = {}
        self._branches: list[Branches] = []
        self._parts: dict[int, frozenset[tuple[int, Index]]] = {}
        self._loops = 0

    def run(self) -> LiveValues:
        main = self._module.main
        bound: dict[int, Leaves] = {}
        for number, parameter in main.parameters.items():
            bound[number] = self._define(parameter, 0)
            for index, value in bound[number].items():
                if (number, index) not in self._donated:
                    self._stop[value] = FOREVER
        results = self._walk(main, bound)
        for value in results.values():
            self._stop[self._find(value)] = FOREVER
        for (number, index), output in self._module.aliases.items():
            if number in bound and output in results:
                versions = bound[number][index], self._find(results[output])
                places = tuple((self._name(value), self._defined[value][3]) for value in versions)
                self._carries.append((self._module.instructions[main.root], output, places))
        position: dict[int, int] = {}
        values: list[LiveValue] = []
        gaps = gaps_of(self._branches, self._find, self._start, self._stop)
        for i, (instruction, index, array, where) in enumerate(self._defined):
            if self._same[i] == i:
                position[i] = len(values)
                span, parts = (self._start[i], self._stop[i], tuple(gaps.get(i, ()))), self._parts.get(i, frozenset())
                values.append(LiveValue(instruction, index, array, where, *span, parts))
        of = {
            number: {index: position[self._find(value)] for index, value in leaves.items()}
            for number, leaves in self._of.items()
        }
        return LiveValues(
            tuple(values), of, tuple(self._executed), frozenset(self._looped), tuple(self._carries),
            tuple(self._uncovered),
        )  # fmt: skip

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _new(self, instruction: Instruction, index: Index, array: Array, where: Slice | None, tick: int) -> int:
        self._defined.append((instruction, index, array, where))
        self._start.append(tick)
        self._stop.append(tick)
        self._same.append(len(self._same))
        return len(self._same) - 1

    def _define(self, instruction: Instruction, tick: int, forwarded: frozenset[Index] = frozenset()) -> Leaves:
        return {
            index: self._new(instruction, index, array, self._slices.get(self._place(instruction, index)), tick)
            for index, array in instruction.arrays.items()
            if index not in forwarded
        }

    def _place(self, instruction: Instruction, index: Index) -> tuple[int, Index]:
        """Return a result's key in the buffer assignment, perhaps at its async computation's root."""
        if instruction.opcode == STARTED and index[:1] == (1,) and (instruction.id, index) not in self._slices:
            return self._module.computations[instruction.called[0]].root, index[1:]
        return instruction.id, index

    def _find(self, value: int) -> int:
        while self._same[value] != value:
            self._same[value] = value = self._same[self._same[value]]
        return value

    def _merge(self, value: int, into: int) -> None:
        value, into = self._find(value), self._find(into)
        if value != into:
            self._same[value] = into
            self._start[into] = min(self._start[into], self._start[value])
            self._stop[into] = max(self._stop[into], self._stop[value])

    def _use(self, values: Iterable[int], tick: int) -> None:
        for value in values:
            value = self._find(value)
            self._stop[value] = max(self._stop[value], tick)

    def _walk(self, computation: Computation, bound: dict[int, Leaves]) -> Leaves:
        for id in self._module.schedule[computation.id]:
            instruction = self._module.instructions[id]
            self._executed.append(instruction)
            if self._loops:
                self._looped.add(id)
            self._of[id] = self._step(instruction, bound)
        root = self._of[computation.root]
        self._use(root.values(), self._tick())
        return root

    def _step(self, instruction: Instruction, bound: dict[int, Leaves]) -> Leaves:
        operands = [self._of[operand] for operand in instruction.operands]
        if instruction.opcode == "parameter":
            return bound[instruction.parameter]
        if instruction.opcode in FORWARDS:
            return operands[0]
        if instruction.opcode == "get-tuple-element":
            self._use([operands[0][()]], self._tick())
            return {index[1:]: value for index, value in operands[0].items() if index[:1] == (instruction.tuple_index,)}
        if instruction.opcode == "tuple":
            where = self._slices.get((instruction.id, ()))
            leaves: Leaves = {(): self._new(instruction, (), instruction.array, where, self._tick())}
            for i, operand in enumerate(operands):
                leaves.update({(i, *index): value for index, value in operand.items()})
            return leaves
        if instruction.opcode == "while":
            return self._loop(instruction, operands[0])
        if instruction.opcode == "call":
            return self._walk(self._module.computations[instruction.called[0]], dict(enumerate(operands)))
        if instruction.opcode == "conditional":
            return self._branch(instruction, operands)
        if instruction.opcode not in KNOWN and (
            instruction.opcode.endswith(("-start", "-done", "-update")) or instruction.opcode in TALKING
        ):
            self._uncovered[NotCovered.ASYNCHRONOUS.statement(instruction.opcode)] = None
        tick = self._tick()
        for operand in operands:
            self._use(operand.values(), tick)
        if instruction.opcode == REDUCED:
            self._use(self._reading[instruction.operands[0]], tick)
        if (finished_result := finished(instruction.opcode, operands)) is not None:
            return finished_result
        if forwarded := handed_on(instruction.opcode, operands):
            return forwarded | self._define(instruction, tick, frozenset(forwarded))
        if instruction.opcode == REDUCING:
            # An operand that is not summed in place is read until the done.
            places: list[Index] = [()] if len(operands) == 1 else [(i,) for i in range(len(operands))]
            self._reading[instruction.id] = [
                value
                for place, operand in zip(places, operands, strict=True)
                for value in operand.values()
                if self._defined[self._find(value)][3] != self._slices.get((instruction.id, place))
            ]
        if instruction.opcode == "copy" and self._stays(instruction, operands[0]):
            return operands[0]
        defined = self._define(instruction, tick)
        if instruction.target == JOINING:
            self._parts[defined[()]] = self._joined(instruction, operands)
        if instruction.opcode == "constant":
            for value in defined.values():
                self._start[value], self._stop[value] = 0, FOREVER
        return defined

    def _loop(self, instruction: Instruction, initial: Leaves) -> Leaves:
        """Walk a while's condition and body once; an unchanged carry stays one value."""
        body, condition = (self._module.computations[id] for id in instruction.called)
        enter = self._tick()
        self._use(initial.values(), enter)
        body_parameter, test = body.parameters[0], condition.parameters[0]
        carried = self._define(body_parameter, enter)
        self._loops += 1
        self._use(self._walk(condition, {0: carried}).values(), self._tick())
        # The loop returns the values that its condition has read last.
        self._use(carried.values(), self._clock)
        returned = self._walk(body, {0: carried})
        self._loops -= 1
        leave = self._tick()
        leaves: Leaves = {}
        for index, array in instruction.arrays.items():
            first, now, last = (self._find(values[index]) for values in (initial, carried, returned))
            if now == last:
                self._use([now], leave)
                self._merge(now, first)
                leaves[index] = first
                continue
            leaves[index] = self._new(instruction, index, array, self._slices.get((instruction.id, index)), leave)
            places = (
                (f"initial value {self._name(first)}", self._defined[first][3]),
                (f"condition's {test.name}", self._slices.get((test.id, index))),
                (f"body's {body_parameter.name}", self._slices.get((body_parameter.id, index))),
                (f"body's result {self._name(last)}", self._defined[last][3]),
                (f"result of {instruction.name}", self._slices.get((instruction.id, index))),
            )
            self._carries.append((instruction, index, places))
        return leaves

    def _branch(self, instruction: Instruction, operands: list[Leaves]) -> Leaves:
        """Walk the branches in turn, and record the values that they read."""
        self._use(operands[0].values(), self._tick())
        results: list[Leaves] = []
        enter, ran = self._clock, list[ConditionalBranch]()
        for id, operand in zip(instruction.called, operands[1:], strict=True):
            begin = self._clock + 1
            results.append(self._walk(self._module.computations[id], {0: operand}))
            self._use(results[-1].values(), self._tick())
            used = {value: stop for value, stop in enumerate(self._stop) if begin <= stop < FOREVER}
            ran.append((begin, self._clock, used))
        self._branches.append((enter, ran))
        leave = self._tick()
        leaves, merged = Leaves(), dict[tuple[int, ...], int]()
        for index, array in instruction.arrays.items():
            ends = [self._find(result[index]) for result in results]
            if len(set(ends)) == 1:
                leaves[index] = ends[0]
                continue
            where = self._slices.get((instruction.id, index))
            # Equal results of every branch are one value.
            if tuple(ends) in merged and self._defined[merged[tuple(ends)]][3] == where:
                leaves[index] = merged[tuple(ends)]
                continue
            leaves[index] = merged[tuple(ends)] = self._new(instruction, index, array, where, leave)
            places = [(f"branch's result {self._name(end)}", self._defined[end][3]) for end in ends]
            self._carries.append((instruction, index, (*places, (f"result of {instruction.name}", where))))
        return leaves

    def _stays(self, instruction: Instruction, operand: Leaves) -> bool:
        """True if a copy and its operand have the same bytes."""
        where = self._defined[self._find(operand[()])][3]
        unmoved = where is not None and where == self._slices.get((instruction.id, ()))
        return unmoved and self._module.instructions[instruction.operands[0]].array == instruction.array

    def _joined(self, instruction: Instruction, operands: list[Leaves]) -> frozenset[tuple[int, Index]]:
        """Return the operands if they already form the result in memory."""
        values = [self._defined[self._find(operand[()])] for operand in operands]
        if not fill(
            self._module, instruction, self._slices.get((instruction.id, ())), [where for _, _, _, where in values]
        ):
            return frozenset()
        return frozenset((definition.id, index) for definition, index, _, _ in values)

    def _name(self, value: int) -> str:
        instruction, index, _, _ = self._defined[value]
        return f"{instruction.name}{list(index) if index else ''}"
