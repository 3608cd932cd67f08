"""Live ranges of the values of a scheduled HLO module, and their bytes: our own dataflow analysis, not XLA's.

The schedule is flattened into one clock: a called computation runs where its caller stands, the condition of a loop and
then its body. A value lives from the tick of the instruction that defines it to its last reader's. Bitcasts, tuples and
`get-tuple-element` define nothing; what a loop hands from one iteration to the next is one value each time round.

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
from ir_passes.xla_audit.dataflow.branches import Branches, ConditionalBranch, gaps_of
from ir_passes.xla_audit.dataflow.joined import JOINING, fill
from ir_passes.xla_audit.program import Array, Computation, Executable, Index, Instruction, Slice

FOREVER = 1 << 62
FORWARDS = {"add-dependency", "bitcast", "domain", "opt-barrier"}
"""Opcodes whose result is their first operand."""


@dataclass(frozen=True)
class LiveValue:
    """One value.

    Attributes:
        instruction, index: its definition.
        slice: its bytes; None where the buffer assignment says nothing about it.
        start, stop: ticks of its definition and of its last reader, both included.
        gaps: ticks, both included, of branches that do not need it any more; one that runs in its place does.
        parts: instruction and index of values that it is made of where they lie, one behind the other.
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


@dataclass(frozen=True)
class Carry:
    """Places that have to be one and the same: what enters a loop or leaves a branch, and what comes out.

    Attributes:
        instruction: the while or conditional.
        places: the name and the bytes of each.
    """

    instruction: Instruction
    index: Index
    places: tuple[tuple[str, Slice | None], ...]


@dataclass(frozen=True)
class LiveValues:
    """The flattened module.

    Attributes:
        values: every value.
        of: instruction id -> index -> position in `values`.
        executed: instructions in the order of the clock; those of computations that are called.
        looped: ids of instructions that run inside a loop.
        carries: values that loops and branches hand over.
        uncovered: properties that this dataflow does not know.
    """

    values: tuple[LiveValue, ...]
    of: dict[int, Leaves]
    executed: tuple[Instruction, ...]
    looped: frozenset[int]
    carries: tuple[Carry, ...]
    uncovered: tuple[Statement, ...]

    def made_by(self, one: Instruction) -> Iterator[tuple[Index, int]]:
        """Index and position in `values` of what an instruction defines; not of what it hands on."""
        for index, position in self.of[one.id].items():
            if self.values[position].instruction.id == one.id:
                yield index, position


def live_values(executable: Executable) -> LiveValues:
    """Flatten the schedule of an executable and find the interval of every value."""
    return _Flow(executable).run()


class _Flow:
    """The flattening walk: a clock, the values defined so far, and the ticks at which they are read."""

    def __init__(self, executable: Executable):
        self._module = executable.module
        self._slices = executable.buffers.slices
        self._donated = {(one.parameter, one.parameter_index) for one in self._module.aliases}
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
        for number, one in main.parameters.items():
            bound[number] = self._define(one, 0)
            for index, value in bound[number].items():
                if (number, index) not in self._donated:
                    self._stop[value] = FOREVER
        results = self._walk(main, bound)
        for value in results.values():
            self._stop[self._find(value)] = FOREVER
        position: dict[int, int] = {}
        values: list[LiveValue] = []
        gaps = gaps_of(self._branches, self._find, self._start, self._stop)
        for i, (instruction, index, array, where) in enumerate(self._defined):
            if self._same[i] == i:
                position[i] = len(values)
                span, parts = (self._start[i], self._stop[i], tuple(gaps.get(i, ()))), self._parts.get(i, frozenset())
                values.append(LiveValue(instruction, index, array, where, *span, parts))
        of = {
            one: {index: position[self._find(value)] for index, value in leaves.items()}
            for one, leaves in self._of.items()
        }
        return LiveValues(
            tuple(values), of, tuple(self._executed), frozenset(self._looped), tuple(self._carries),
            tuple(self._uncovered),
        )  # fmt: skip

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _new(self, instruction: Instruction, index: Index, array: Array, where: Slice | None, at: int) -> int:
        self._defined.append((instruction, index, array, where))
        self._start.append(at)
        self._stop.append(at)
        self._same.append(len(self._same))
        return len(self._same) - 1

    def _define(self, instruction: Instruction, at: int, known: frozenset[Index] = frozenset()) -> Leaves:
        return {
            index: self._new(instruction, index, array, self._slices.get(self._place(instruction, index)), at)
            for index, array in instruction.arrays.items()
            if index not in known
        }

    def _place(self, one: Instruction, index: Index) -> tuple[int, Index]:
        """The key of a result in the buffer assignment, which knows what is done beside others by what does it."""
        if one.opcode == STARTED and index[:1] == (1,) and (one.id, index) not in self._slices:
            return self._module.computations[one.called[0]].root, index[1:]
        return one.id, index

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

    def _use(self, values: Iterable[int], at: int) -> None:
        for value in values:
            value = self._find(value)
            self._stop[value] = max(self._stop[value], at)

    def _walk(self, computation: Computation, bound: dict[int, Leaves]) -> Leaves:
        for id in self._module.schedule[computation.id]:
            one = self._module.instructions[id]
            self._executed.append(one)
            if self._loops:
                self._looped.add(id)
            self._of[id] = self._step(one, bound)
        root = self._of[computation.root]
        self._use(root.values(), self._tick())
        return root

    def _step(self, one: Instruction, bound: dict[int, Leaves]) -> Leaves:
        """Advance the clock by an instruction; return the values of its result."""
        operands = [self._of[operand] for operand in one.operands]
        if one.opcode == "parameter":
            return bound[one.parameter]
        if one.opcode in FORWARDS:
            return operands[0]
        if one.opcode == "get-tuple-element":
            self._use([operands[0][()]], self._tick())
            return {index[1:]: value for index, value in operands[0].items() if index[:1] == (one.tuple_index,)}
        if one.opcode == "tuple":
            where = self._slices.get((one.id, ()))
            leaves: Leaves = {(): self._new(one, (), one.array, where, self._tick())}
            for i, operand in enumerate(operands):
                leaves.update({(i, *index): value for index, value in operand.items()})
            return leaves
        if one.opcode == "while":
            return self._loop(one, operands[0])
        if one.opcode == "call":
            return self._walk(self._module.computations[one.called[0]], dict(enumerate(operands)))
        if one.opcode == "conditional":
            return self._branch(one, operands)
        if one.opcode not in KNOWN and (one.opcode.endswith(("-start", "-done", "-update")) or one.opcode in TALKING):
            self._uncovered[NotCovered.ASYNCHRONOUS.statement(one.opcode)] = None
        at = self._tick()
        for operand in operands:
            self._use(operand.values(), at)
        if one.opcode == REDUCED:
            self._use(self._reading[one.operands[0]], at)
        if (done := finished(one.opcode, operands)) is not None:
            return done
        if own := handed_on(one.opcode, operands):
            return own | self._define(one, at, frozenset(own))
        if one.opcode == REDUCING:
            # What is not summed where it lies is read until that is done.
            places: list[Index] = [()] if len(operands) == 1 else [(i,) for i in range(len(operands))]
            self._reading[one.id] = [
                value
                for place, operand in zip(places, operands, strict=True)
                for value in operand.values()
                if self._defined[self._find(value)][3] != self._slices.get((one.id, place))
            ]
        if one.opcode == "copy" and self._stays(one, operands[0]):
            return operands[0]
        defined = self._define(one, at)
        if one.target == JOINING:
            self._parts[defined[()]] = self._joined(one, operands)
        if one.opcode == "constant":
            for value in defined.values():
                self._start[value], self._stop[value] = 0, FOREVER
        return defined

    def _loop(self, one: Instruction, initial: Leaves) -> Leaves:
        """Walk the condition and the body of a while once; a value that the body hands on unchanged stays one value."""
        body, condition = (self._module.computations[id] for id in one.called)
        enter = self._tick()
        self._use(initial.values(), enter)
        inside, test = body.parameters[0], condition.parameters[0]
        carried = self._define(inside, enter)
        self._loops += 1
        self._use(self._walk(condition, {0: carried}).values(), self._tick())
        # The loop ends after its condition: what the condition has seen is what comes out.
        self._use(carried.values(), self._clock)
        after = self._walk(body, {0: carried})
        self._loops -= 1
        leave = self._tick()
        leaves: Leaves = {}
        for index, array in one.arrays.items():
            first, now, last = (self._find(values[index]) for values in (initial, carried, after))
            if now == last:
                self._use([now], leave)
                self._merge(now, first)
                leaves[index] = first
                continue
            leaves[index] = self._new(one, index, array, self._slices.get((one.id, index)), leave)
            places = (
                (f"initial value {self._name(first)}", self._defined[first][3]),
                (f"condition's {test.name}", self._slices.get((test.id, index))),
                (f"body's {inside.name}", self._slices.get((inside.id, index))),
                (f"body's result {self._name(last)}", self._defined[last][3]),
                (f"result of {one.name}", self._slices.get((one.id, index))),
            )
            self._carries.append(Carry(one, index, places))
        return leaves

    def _branch(self, one: Instruction, operands: list[Leaves]) -> Leaves:
        """Walk the branches of a conditional one after the other, and note which values each of them uses."""
        self._use(operands[0].values(), self._tick())
        results: list[Leaves] = []
        branches = Branches(self._clock)
        for id, operand in zip(one.called, operands[1:], strict=True):
            begin = self._clock + 1
            results.append(self._walk(self._module.computations[id], {0: operand}))
            self._use(results[-1].values(), self._tick())
            used = {value: stop for value, stop in enumerate(self._stop) if begin <= stop < FOREVER}
            branches.ran.append(ConditionalBranch(begin, self._clock, used))
        self._branches.append(branches)
        leave = self._tick()
        leaves, made = Leaves(), dict[tuple[int, ...], int]()
        for index, array in one.arrays.items():
            ends = [self._find(result[index]) for result in results]
            if len(set(ends)) == 1:
                leaves[index] = ends[0]
                continue
            where = self._slices.get((one.id, index))
            # The same results of every branch are one value, which may be in one place.
            if tuple(ends) in made and self._defined[made[tuple(ends)]][3] == where:
                leaves[index] = made[tuple(ends)]
                continue
            leaves[index] = made[tuple(ends)] = self._new(one, index, array, where, leave)
            places = [(f"branch's result {self._name(end)}", self._defined[end][3]) for end in ends]
            self._carries.append(Carry(one, index, (*places, (f"result of {one.name}", where))))
        return leaves

    def _stays(self, one: Instruction, operand: Leaves) -> bool:
        """Whether a copy leaves its operand in the very same bytes, as it is: nothing is copied."""
        where = self._defined[self._find(operand[()])][3]
        same = where is not None and where == self._slices.get((one.id, ()))
        return same and self._module.instructions[one.operands[0]].array == one.array

    def _joined(self, one: Instruction, operands: list[Leaves]) -> frozenset[tuple[int, Index]]:
        """The operands if they are the result where they lie, none otherwise."""
        values = [self._defined[self._find(operand[()])] for operand in operands]
        if not fill(self._module, one, self._slices.get((one.id, ())), [where for _, _, _, where in values]):
            return frozenset()
        return frozenset((made.id, index) for made, index, _, _ in values)

    def _name(self, value: int) -> str:
        instruction, index, _, _ = self._defined[value]
        return f"{instruction.name}{list(index) if index else ''}"
