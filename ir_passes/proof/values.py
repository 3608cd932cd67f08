"""The abstract values of the lane proof: the owner of an array's elements, and a few facts about what they hold.

More than 300 lines: the facts are one closed list.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ir_passes.proof.numbering import NONE, Leaf, Number, Version
from ir_passes.proof.owners import COMMON, LaneRows, Order, Owner, Symbol, describe
from ir_passes.proof.views import View

Range = tuple[int, int]
"""Least and greatest value of an integer or boolean array, both included."""


class Fact:
    """Something known of the elements of an array, beside their owner and their bounds."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Iota(Fact):
    """Element = index along `axis` // `div`."""

    axis: int
    div: int = 1


@dataclass(frozen=True, slots=True)
class Ahead(Fact):
    """Element = number of rows on the devices before this one along a mesh axis, `rows` on each."""

    over: str
    rows: int = 1


@dataclass(frozen=True, slots=True)
class ActiveCount(Fact):
    """Every element is the number of active lanes: a lane is idle if its number is not below it."""


@dataclass(frozen=True, slots=True)
class SlotEntry(Fact):
    """Elements of a lane // `stride` are its entry in a slot map.

    Attributes:
        leaf: index of the slot map among the step's flattened inputs.
        guard: value number of a choice between the entry and another row, None where there is none.
        less: what has been subtracted from both, None where nothing has.
        instead: which rows these others are: "past" every pool, "below" row 0, the "null" row.
        stride: of the elements from one row to the next; elements are counted within a row where it is not 1.
        spare: greatest element % `stride`.
        taken: whether the entry is chosen only where it is not the null row.
    """

    leaf: Leaf
    guard: Number | None = None
    less: Ahead | None = None
    instead: frozenset[str] = frozenset()
    stride: int = 1
    spare: int = 0
    taken: bool = False


@dataclass(frozen=True, slots=True)
class HasRow(Fact):
    """True where the entry of a slot map with this number is not the null row."""

    number: Number


@dataclass(frozen=True, slots=True)
class PageEntry(Fact):
    """Elements // `stride` are entries of their lane in a page table, each of any of its pages.

    Attributes:
        leaf: index of the page table among the step's flattened inputs.
        stride: of the elements from one page to the next; elements are counted within a page where it is not 1.
        spare: greatest element % `stride`.
        instead: elements that are none of these, by kind: "past" every pool, "below" row 0, or "lowest", so far below
            that they stay there whatever is added to count from the end.
    """

    leaf: Leaf
    stride: int = 1
    spare: int = 0
    instead: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SegmentIds(Fact):
    """Element at index t of `axis` = the lane of token t.

    Attributes:
        layout: of the tokens.
        padding: the element of padding: "past" where it is the number of lanes, "last" where it is the last lane.
    """

    axis: int
    layout: str
    padding: str = "past"


@dataclass(frozen=True, slots=True)
class SegmentAt(Fact):
    """The lane of the token of a loop's iteration; of padding the number of lanes, or the last one.

    Attributes:
        token: the token, as `OneLane` has it.
        layout, padding: as of `SegmentIds`.
    """

    token: Symbol
    layout: str
    padding: str = "past"


@dataclass(frozen=True, slots=True)
class TokenOf(Fact):
    """Element i = number of a token of lane i in this layout, where the lane has any."""

    layout: str


@dataclass(frozen=True, slots=True)
class Real(Fact):
    """False for padding: at its index along `axis`, or, if `axis` is None, at the token of an iteration."""

    layout: str
    axis: int | None
    token: Symbol | None = None


@dataclass(frozen=True, slots=True)
class SameLane(Fact):
    """False where the tokens along two axes belong to different lanes, or one of them is padding.

    Attributes:
        rows, columns: owners of the tokens, of one layout or of two; `rows` has the smaller axis.
    """

    rows: LaneRows
    columns: LaneRows


@dataclass(frozen=True, slots=True)
class TokenPairs(Fact):
    """Elements depend on the lanes of the tokens along two axes; the array's owner is `Mixed`.

    Attributes:
        rows, columns: as of `SameLane`.
    """

    rows: LaneRows
    columns: LaneRows


@dataclass(frozen=True, slots=True)
class Absent(Fact):
    """Elements that do not belong to the lane of their row's token are this, or nan for all of a row.

    Attributes:
        rows, columns: as of `SameLane`.
        zero: whether it is zero; otherwise minus infinity.
    """

    rows: LaneRows
    columns: LaneRows
    zero: bool


@dataclass(frozen=True, slots=True)
class Finite(Fact):
    """No element is nan or infinite."""


@dataclass(frozen=True, slots=True)
class IsFinite(Fact):
    """True where the value with this number is finite."""

    number: Number


@dataclass(frozen=True, slots=True)
class Negative(Fact):
    """True where the value with this number is negative."""

    number: Number


@dataclass(frozen=True, slots=True)
class Raised(Fact):
    """The value with this number plus a constant, which is 0 or more."""

    number: Number
    by: int


@dataclass(frozen=True, slots=True)
class Permuted(Fact):
    """Element r along axis 0 = order(r) // `div`."""

    order: Order
    div: int = 1


@dataclass(frozen=True, slots=True)
class Counts(Fact):
    """Element e = number of times e occurs in the array with value number `key`.

    Attributes:
        every: whether every entry of that array is counted; others are greater than all e.
    """

    key: Number
    every: bool = True


@dataclass(frozen=True, slots=True)
class OneHot(Fact):
    """True where the index along axis `classes` is the entry, at the index along axis `rows`, of the array `key`."""

    key: Number
    rows: int
    classes: int


@dataclass(frozen=True, slots=True)
class Spread(Fact):
    """Element = entry, at the index along `axis`, of the one-dimensional array with this value number."""

    number: Number
    axis: int


@dataclass(frozen=True, slots=True)
class Columns(Fact):
    """The last axis holds these values, one beside the other."""

    values: "tuple[Value, ...]"


@dataclass(frozen=True, slots=True)
class Constant(Fact):
    """The array is a constant of the program.

    Attributes:
        captured: whether it comes of an array that was there when the program was traced, not of numbers alone.
    """

    captured: bool = False


@dataclass(frozen=True, slots=True)
class SignOf(Fact):
    """Sign of the value with this number, which is not negative."""

    number: Number


@dataclass(frozen=True, slots=True)
class RemainderOf(Fact):
    """Remainder in a division of the value with this number."""

    number: Number


@dataclass(frozen=True, slots=True)
class Implies(Fact):
    """True implies that the value with this number is zero (or is not).

    Attributes:
        compared: number of a value that is not zero where this is true, and zero where it is false; 0 for none.
    """

    number: Number
    zero: bool
    compared: Number = NONE


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows of an idle lane equal those of an input pool.

    Attributes:
        leaf: index of the pool among the step's flattened inputs.
        view: the path by which the array was taken from the pool's.
    """

    leaf: Leaf
    view: View = ()

    def after_write(self, part: "Kept | None", put: Callable[[View], View | None]) -> "Kept | None":
        """Return this if what is written is the part that was taken from the same place; None if it is not.

        Args:
            part: of what is written; None where that is no part of a pool.
            put: from the part's path to that of the array it is put back into; None where it was taken elsewhere.
        """
        return self if part is not None and part.leaf == self.leaf and put(part.view) == self.view else None


@dataclass(frozen=True, slots=True)
class Value:
    """The abstract value of one array.

    Attributes:
        owner: the lanes that the elements may depend on.
        number: equal numbers mean equal elements in row-major order; 0 where none is assigned yet.
        range: bounds of an integer array.
        fact: one more fact about the elements.
        kept: holds under the assumption that the lane is idle.
        version: of the pool that this is, or is a view of; None for everything else.
        uniform: axes along which a shared array is known to be the same.
    """

    owner: Owner = COMMON
    number: Number = NONE
    range: Range | None = None
    fact: Fact | None = None
    kept: Kept | None = None
    version: Version | None = None
    uniform: frozenset[int] = frozenset()

    def but(self, **changes: Any) -> "Value":
        """Return the same value with other attributes."""
        return replace(self, **changes)

    def __str__(self) -> str:
        parts = [describe(self.owner)]
        if self.range is not None:
            parts.append(f"in [{self.range[0]}, {self.range[1]}]")
        if self.fact is not None:
            parts.append(str(self.fact) if not isinstance(self.fact, Columns) else "index columns")
        return ", ".join(parts)
