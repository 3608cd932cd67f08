"""Value numbers: equal numbers mean equal elements; equal expressions have equal numbers."""

from collections.abc import Hashable
from typing import NewType


class Number(int):
    """A value number, as a type that renaming tells from sizes and indices."""

    __slots__ = ()


Version = NewType("Version", int)
"""A version of a pool, or of a part of one."""
Leaf = NewType("Leaf", int)
NONE = Number(0)
"""The value has no number yet."""


class Numbering:
    """The numbers of one walk over a program."""

    def __init__(self) -> None:
        self._forms: dict[Hashable, int] = {}
        self._numbers: dict[tuple[int, tuple[int, ...]], Number] = {}
        self._last = 1

    def fresh(self) -> Number:
        self._last += 1
        return Number(self._last)

    def of(self, form: Hashable, operands: tuple[int, ...]) -> Number:
        """Return the number of an expression: its form and its operands' numbers."""
        key = (self._forms.setdefault(form, len(self._forms)), operands)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self.fresh()
        return number
