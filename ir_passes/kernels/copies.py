"""Asynchronous copies (DMA) between memories of one TPU core.

A running copy may write its target at any time, and signals its end at a semaphore. A copy has the plain form of a
write at the wait for it if three things are shown:

* The wait is for this copy: no other running copy has its semaphore, and the wait names the same place of the target.
* In between, nothing touches the target's place or writes to the source's, so it is unchanged.
* The copy was started under the conditions of the wait, so it runs whenever the wait is reached.

Places and semaphores are compared as terms (`index_terms`). A loop that waits for copies of the iteration before is
read by induction (`Loop`). Copies to other devices are not read.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ir_passes.kernels.index_terms import Term, comparison, equal, numbers_of, without_constant
from ir_passes.kernels.memory import UnreadableKernel

Key = tuple[tuple[tuple[Term, int | None, int], ...], ...]
"""Indexers of a place: start, size, stride per dimension."""


@dataclass(frozen=True, eq=False)
class Semaphores:
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Copy:
    """A running copy.

    Attributes:
        read, written: places in `source` and `target`.
        semaphore: array of semaphores, and a place in it.
        value: the copied array, if known.
        conditions: it runs only if all of these hold, as in `Copies.facts`.
    """

    source: Any
    target: Any
    read: Key
    written: Key
    semaphore: tuple[Semaphores, Key]
    value: Any
    conditions: frozenset[Hashable] = frozenset()

    def substituted(self, terms: Mapping[Term, Term]) -> "Copy":
        array, place = self.semaphore
        read, written, index = (
            tuple(tuple((start.substituted(terms), *rest) for start, *rest in indexer) for indexer in key)
            for key in (self.read, self.written, place)
        )
        return replace(self, read=read, written=written, semaphore=(array, index))


@dataclass
class Copies:
    """The running copies of a program.

    Attributes:
        facts: the conditions of the surrounding branches and loops.
        missing: copies that an examined loop waits for and does not start.
    """

    running: list[Copy] = field(default_factory=list)
    domains: dict[Term, Sequence[int]] = field(default_factory=dict)
    facts: frozenset[Hashable] = frozenset()
    missing: list[Copy] | None = None

    def start(self, copy: Copy) -> None:
        """Start a copy; raises UnreadableKernel if another may have its semaphore."""
        if self.missing is None and any(not self._apart(copy, other) for other in self.running):
            raise UnreadableKernel("two copies under way tell their end at one semaphore")
        self.running.append(copy)

    def _apart(self, first: Copy, second: Copy) -> bool:
        return not self._meet(*first.semaphore, *second.semaphore)

    def wait(self, copy: Copy) -> Copy:
        """End the copy of a wait; raises UnreadableKernel if it may not run alone."""
        copies = [other for other in self.running if not self._apart(copy, other)]
        matches = [other for other in copies if self.are_same(copy, other, ("written", "semaphore"))]
        if self.missing is not None and len(matches) != 1:
            self.missing.append(copy)
            return copy
        copies = matches if self.missing is not None else copies
        if len(copies) != 1 or matches != copies or (self.missing is None and not copies[0].conditions <= self.facts):
            raise UnreadableKernel("a wait for a copy that is not known to have been started, and to run alone")
        self.running.remove(copies[0])
        return copies[0]

    def are_same(self, first: Copy, second: Copy, places: Sequence[str] = ("read", "written", "semaphore")) -> bool:
        pairs = {
            "read": ((first.source, first.read), (second.source, second.read)),
            "written": ((first.target, first.written), (second.target, second.written)),
            "semaphore": (first.semaphore, second.semaphore),
        }
        return all(a[0] is b[0] and self._equal(a[1], b[1]) for a, b in (pairs[name] for name in places))

    def _equal(self, first: Key, second: Key) -> bool:
        if [[rest for _, *rest in indexer] for indexer in first] != [[rest for _, *rest in x] for x in second]:
            return False
        starts = [(a[0], b[0]) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True)]
        return all(equal(a, b, self.domains) for a, b in starts)

    def _meet(self, ref: Any, key: Key, other: Any, other_key: Key) -> bool:
        if ref is not other:
            return False
        for (start, size, stride), (other_start, other_size, other_stride) in zip(
            (key or ((),))[0], (other_key or ((),))[0], strict=False
        ):
            numbers = numbers_of((start, other_start), self.domains)
            if numbers is None:
                continue
            ends = [
                first + ((length or 1) - 1) * step
                for first, length, step in zip(numbers, (size, other_size), (stride, other_stride), strict=True)
            ]
            if np.all((ends[0] < numbers[1]) | (ends[1] < numbers[0])):
                return False
        return True

    def check(self, ref: Any, key: Key, writes: bool) -> None:
        """Raise UnreadableKernel for a conflict with a running copy."""
        if self.missing is not None:
            return
        touched = [(copy.target, copy.written) for copy in self.running]
        touched += [(copy.source, copy.read) for copy in self.running] if writes else []
        if any(self._meet(*place, ref, key) for place in touched):
            raise UnreadableKernel("memory is touched while a copy to or from it is under way")

    def fact(self, condition: Term, branch: int = 1, branches: int = 2) -> Hashable:
        """Return the fact of a taken branch, or of a true loop condition.

        Conditions x + 1 < y and x < y - 1 are one fact if x < y is known, as no sum wraps then.
        """
        pair = comparison(condition)
        if pair is None:
            return condition, branch, branches
        (x, offset), (y, end_offset) = map(without_constant, pair)
        if offset - end_offset == 1 and 0 in (offset, end_offset) and ((x, y, 0), 1, 2) in self.facts:
            return (x, y, 1), branch, branches
        return (*pair, 0), branch, branches

    @contextmanager
    def known(self, *facts: Hashable) -> Iterator[None]:
        outer = self.facts
        self.facts = outer.union(facts)
        yield
        self.facts = outer

    def joined(self, entry_copies: Sequence[Copy], ends: Sequence[Sequence[Copy]], facts: Sequence[Hashable]) -> None:
        """Set the copies after branches; raises UnreadableKernel if only some wait for one."""
        survivors = [[copy for copy in entry_copies if copy in end] for end in ends]
        if any(copies != survivors[0] for copies in survivors):
            raise UnreadableKernel("one branch waits for a copy and another does not")
        started = [
            replace(copy, value=None, conditions=copy.conditions | {fact})
            for end, fact in zip(ends, facts, strict=True)
            for copy in end
            if copy not in entry_copies
        ]
        self.running = [*survivors[0], *started]


@dataclass
class Loop:
    """A loop that waits for copies of the previous iteration.

    Let H(c) be the copies that an iteration waits for and does not start, as terms of the carried values c. By
    induction, every iteration begins with H(c) and copies of outside the loop:

    * H(first values) runs before the loop, if the loop runs at all.
    * An iteration that begins with H(c) ends with H(c'), c' the next values, if another iteration follows.

    After the last iteration none of these copies runs: each runs only if another iteration follows.

    Attributes:
        numbers: unknown numbers for the carried values.
        first, following: their terms before the loop, and after an iteration.
        test: the condition for another iteration.
        needed: H.
        outer_copies: copies from outside that run all the time.
    """

    copies: Copies
    numbers: Sequence[Term]
    first: Sequence[Term] = ()
    following: Sequence[Term] = ()
    test: Term | None = None
    needed: list[Copy] = field(default_factory=list)
    outer_copies: list[Copy] = field(default_factory=list)

    @contextmanager
    def looked_through(self) -> Iterator[None]:
        copies, running, missing = self.copies, self.copies.running, self.copies.missing
        copies.running, copies.missing = [], []
        yield
        self.needed, copies.running, copies.missing = copies.missing, running, missing

    def enter(self) -> None:
        self.outer_copies = self._rest(self.copies.running, self.first)

    def begin(self) -> None:
        self.copies.running = [*self.outer_copies, *self.needed]

    def end(self) -> None:
        if self._rest(self.copies.running, self.following) != self.outer_copies:
            raise UnreadableKernel("copies are under way at the end of an iteration, which the next does not wait for")

    def leave(self) -> None:
        self.copies.running = list(self.outer_copies)

    def _rest(self, running: Sequence[Copy], values: Sequence[Term]) -> list[Copy]:
        """Return the copies that an iteration with these values does not need.

        Raises UnreadableKernel if a needed copy is not running, or runs without a following iteration.
        """
        terms, rest = dict(zip(self.numbers, values, strict=True)), list(running)
        assert self.test is not None
        test = self.test.substituted(terms)
        conditions = frozenset() if test.constant == 1 else frozenset({self.copies.fact(test)})
        for copy in self.needed:
            needed = copy.substituted(terms)
            matches = [other for other in rest if self.copies.are_same(needed, other)]
            if len(matches) != 1 or matches[0].conditions - self.copies.facts != conditions - self.copies.facts:
                raise UnreadableKernel("an iteration waits for a copy that is not known to have been started before")
            rest.remove(matches[0])
        return rest
