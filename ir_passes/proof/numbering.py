"""Value numbers: equal numbers mean equal elements, and an expression that occurs again gets the number it has."""

from collections.abc import Hashable
from typing import Any


class Number(int):
    """A value number. Its type tells it from the sizes and places beside it, for whoever gives numbers other names."""

    __slots__ = ()


class Version(int):
    """A version of a pool, or of a part of one."""

    __slots__ = ()


class Leaf(int):
    """Index of an array among the step's flattened inputs."""

    __slots__ = ()


NONE = Number(0)
"""The number of a value that has none yet."""

Event = tuple[Number, tuple[int, tuple[int, ...]] | None, bool]
"""A number, the expression that it is of, and whether no value had it before. Without an expression it is a fresh one,
or that of a literal that was read before."""


class Numbering:
    """The numbers given in one walk over a program.

    Attributes:
        events: every number given from now on, in order, where somebody listens; None otherwise.
    """

    def __init__(self) -> None:
        self.events: list[Event] | None = None
        self._forms: dict[Hashable, int] = {}
        self._numbers: dict[tuple[int, tuple[int, ...]], Number] = {}
        self._last = 1

    def fresh(self) -> Number:
        """Return a number that no value has had."""
        self._last += 1
        made = Number(self._last)
        if self.events is not None:
            self.events.append((made, None, True))
        return made

    def of_literal(self, number: Number) -> None:
        """Note that a literal is read again, whose number this is."""
        if self.events is not None:
            self.events.append((number, None, False))

    def of(self, form: Hashable, operands: tuple[int, ...]) -> Number:
        """Return the number of an expression.

        Args:
            form: all of it but the numbers of its operands.
            operands: their numbers.
        """
        key = (self._forms.setdefault(form, len(self._forms)), operands)
        found = self._numbers.get(key)
        new = found is None
        if found is None:
            self._last += 1
            found = self._numbers[key] = Number(self._last)
        if self.events is not None:
            self.events.append((found, key, new))
        return found

    def again(self, events: list[Event], names: Any) -> "list[tuple[int, tuple[int, ...]]] | None":
        """Give the numbers of an earlier part of the walk again, of renamed operands.

        Args:
            events: of that part.
            names: the renaming, with `to`, `pair` and `add` as `ir_passes.proof.repeated_runs.Renaming` has them; it
                gets the name of every number.

        Returns:
            the expressions that are new, for `forget`; None, and nothing is changed, where one is found that was new
            then, or is not found that was found then, or where the renaming is not one to one.
        """
        to, numbers, start = names.numbers, self._numbers, self._last
        inserted: list[tuple[int, tuple[int, ...]]] = []
        for number, key, new in events:
            if key is None and new:
                self._last += 1
                names.add(number, Number(self._last))
                continue
            if key is None:
                if not names.pair(number, number):
                    break
                continue
            try:
                renamed = (key[0], tuple([to[one] for one in key[1]]))
            except KeyError:
                break
            found = numbers.get(renamed)
            if (found is None) is not new:
                break
            if found is None:
                self._last += 1
                numbers[renamed] = found = Number(self._last)
                inserted.append(renamed)
                names.add(number, found)
            elif not names.pair(number, found):
                break
        else:
            return inserted
        self.forget(inserted, start)
        return None

    @property
    def last(self) -> int:
        """The last number given."""
        return self._last

    def forget(self, inserted: "list[tuple[int, tuple[int, ...]]]", last: int) -> None:
        """Take back what `again` gave, which began after the number `last`."""
        for key in inserted:
            del self._numbers[key]
        self._last = last
