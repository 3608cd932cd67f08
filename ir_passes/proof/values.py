"""Abstract values: the owner of an array, and a fact about its elements.

More than 300 lines: one closed list of facts. A rule reads a fact by its type and makes others; a fact without a rule
for an operation is lost. Claims are checked element by element in tests/reference/proofs/facts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ir_passes.proof.concerned import value_text
from ir_passes.proof.numbering import NONE, Leaf, Number, Version
from ir_passes.proof.owners import COMMON, LaneRows, Order, Owner, Symbol
from ir_passes.proof.views import View

Range = tuple[int, int]
"""Least and greatest element of an integer or boolean array."""


class Fact:
    """A fact about the elements of an array.

    Attributes of several facts: `layout` is the layout of packed tokens; `axis` their axis, None for the token of a
    loop iteration; `token` this token, as in `OneLane`; `when` the value of mask elements with the stated property;
    `padding` as in `SegmentIds`; `rows` and `columns` as in `SameLane`; `leaf` the index of an input among the step's
    flattened inputs.
    """

    __slots__ = ()

    def implied(self, when: bool) -> "frozenset[Condition]":
        """Return conditions of the indices of elements equal to `when`."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class Iota(Fact):
    """Element = index along `axis` // `div`."""

    axis: int
    div: int = 1


@dataclass(frozen=True, slots=True)
class DeviceOffset(Fact):
    """Element = number of rows on previous devices along a mesh axis, `rows` on each."""

    over: str
    rows: int = 1


@dataclass(frozen=True, slots=True)
class ActiveCount(Fact):
    """Every element is the number of active lanes; later lanes are idle."""


@dataclass(frozen=True, slots=True)
class SlotEntry(Fact):
    """Elements of a lane // `stride` = entry of this lane in a slot map.

    Attributes:
        guard: value number of the condition that selects the entry instead of other rows.
        offset: subtracted from entry and other rows.
        alternatives: kinds of the other rows: "past" the end of every pool, "below" row 0, the "null" row.
        stride: distance between elements of consecutive rows; if not 1, elements also index within a row.
        spare: greatest element % `stride`.
        non_null: the entry is selected only if it is not the null row.
    """

    leaf: Leaf
    guard: Number | None = None
    offset: DeviceOffset | None = None
    alternatives: frozenset[str] = frozenset()
    stride: int = 1
    spare: int = 0
    non_null: bool = False


@dataclass(frozen=True, slots=True)
class PageEntry(Fact):
    """Elements // `stride` = any entries of their lane in a page table.

    Attributes:
        stride, spare: as in `SlotEntry`, for pages.
        alternatives: kinds of other elements: "past" and "below" as in `SlotEntry`, or "lowest": so far below row 0
            that adding the number of rows, to count from the end, leaves them negative.
    """

    leaf: Leaf
    stride: int = 1
    spare: int = 0
    alternatives: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SegmentIds(Fact):
    """Element t along `axis` = lane of token t.

    Padding has the number of lanes ("past"), or any lane ("lane").
    """

    axis: int
    layout: str
    padding: str = "past"


@dataclass(frozen=True, slots=True)
class RowPlaces(Fact):
    """Element t along `axis` // `stride` = lane of token t.

    Elements of padding are past the places of all lanes ("past"), or in any lane's ("lane").

    Attributes:
        masked: elements of other tokens may be past all places, too.
    """

    axis: int
    layout: str
    padding: str
    stride: int
    masked: bool = False


@dataclass(frozen=True, slots=True)
class LaneOfToken(Fact):
    """The lane of the token of a loop iteration.

    Attributes:
        padding: as in `SegmentIds`, or "none" if the token is no padding.
    """

    token: Symbol
    layout: str
    padding: str = "past"


@dataclass(frozen=True, slots=True)
class PreviousLane(Fact):
    """The lane of the token before an iteration's `token`; no lane in the first."""

    token: Symbol
    layout: str
    padding: str


@dataclass(frozen=True, slots=True)
class TokenOfLane(Fact):
    """Element i = a token of lane i, or of `lane`; unspecified without tokens."""

    layout: str
    lane: int | None = None


@dataclass(frozen=True, slots=True)
class ShiftedIds(Fact):
    """Element r along `axis` = lane of token r + `shift`; no lane before tokens."""

    axis: int
    layout: str
    padding: str
    shift: int


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """A term of `IndexSum`: cu_seqlens[i + `first`].

    Attributes:
        axis: i is the index along this axis.
        symbol: i is this number of a loop iteration; without axis and symbol, i is 0.
        of_token: layout of tokens; i is the lane of the token with this index or number, unspecified for padding. "":
            i is the index or number itself.
    """

    layout: str
    first: int
    axis: int | None = None
    symbol: Symbol | None = None
    of_token: str = ""


@dataclass(frozen=True, slots=True)
class IndexSum(Fact):
    """Element = `by` + sum of terms, in exact integers.

    Attributes:
        terms: pairs of a term and its factor, not 0. `Iota(axis)`: the index along an axis; `Symbol`: a loop
            iteration's number, or a token by shared index; `SegmentIds`: a token's lane.
        below: elements are unspecified where the sum is negative, or not below this number; None: all are specified.
    """

    terms: "frozenset[tuple[Term, int]]"
    by: int = 0
    below: int | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """A sum is 0 or greater; or not 0, if `differs`."""

    sum: IndexSum
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Mask(Fact):
    """Conditions of an element's indices: `if_true` for a true element, `if_false` for a false one.

    The elements are booleans, or 0 and 1.
    """

    if_true: frozenset[Condition]
    if_false: frozenset[Condition]

    def implied(self, when: bool) -> frozenset[Condition]:
        return self.if_true if when else self.if_false


@dataclass(frozen=True, slots=True)
class OffsetCounts(Fact):
    """Element t = number of `count` cu_seqlens entries from `first` on equal to t."""

    layout: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class WithinLane(Fact):
    """Mask over tokens: `when` implies one lane for tokens t - `back` to t.

    Elements with padding as t imply nothing.

    Attributes:
        axis: t = `shift` + `stride` * index along it.
        back: number of tokens, at least 1; if negative, tokens t to t - `back` are in one lane and no padding.
        exact: the opposite of `when` implies the opposite.
    """

    layout: str
    axis: int | None
    back: int
    when: bool
    shift: int = 0
    token: Symbol | None = None
    stride: int = 1
    exact: bool = False

    def implied(self, when: bool) -> frozenset[Condition]:
        axis, rest = self.axis, (self.shift, self.token, self.stride)
        if axis is None or rest != (0, None, 1) or not (when == self.when or self.exact):
            return frozenset()
        # t - back >= start, or t - back < stop
        bound = OffsetEntry(self.layout, int(self.back < 0), axis, of_token=self.layout)
        sign, by = (1, -self.back) if self.back > 0 else (-1, self.back - 1)
        sign, by = (sign, by) if when == self.when else (-sign, -by - 1)
        return frozenset({Condition(IndexSum(frozenset({(Iota(axis), sign), (bound, -sign)}), by))})


@dataclass(frozen=True, slots=True)
class TokenSpan(Fact):
    """Elements depend on a few tokens each; the owner is `Mixed`.

    Elements at index r of `axis` depend on lanes of tokens t - `back` to t + `ahead`, with t = `start` + `stride` * r,
    if all of these are tokens; otherwise on any token.

    Attributes:
        axis: None if r is 0 for all elements.
    """

    layout: str
    axis: int | None
    start: int
    stride: int = 1
    back: int = 0
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class TokenAt(Fact):
    """Elements depend on tokens around a place; the owner is `Mixed`.

    These are the lanes of tokens `place` - `back` to `place` + `ahead`; if one of them is no token, any token.
    """

    layout: str
    place: IndexSum
    back: int = 0
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class OwnTokens(Fact):
    """Element = number of a token of the row's lane, or past the last token.

    Attributes:
        rows: lanes or tokens of the elements; for tokens, no element is past the last token, except of padding.
    """

    layout: str
    rows: LaneRows


@dataclass(frozen=True, slots=True)
class TokenOf(Fact):
    """Every element is the number of one real token, or its position in the lane.

    Attributes:
        lane: of the token; None if unknown.
        base: "start" for the token's number, "length" for its position.
    """

    layout: str
    lane: int | Symbol | None = None
    base: str = "start"


@dataclass(frozen=True, slots=True)
class PlacedToken(Fact):
    """Elements at index `place` of `axis` depend on a token's lane; others are shared."""

    layout: str
    axis: int
    place: int
    token: int


@dataclass(frozen=True, slots=True)
class SharedElsewhere(Fact):
    """Elements that break one of these conditions depend on shared inputs only."""

    conditions: frozenset[Condition]


@dataclass(frozen=True, slots=True)
class SameLane(Fact):
    """Mask over pairs of tokens, or of lanes and tokens: `when` implies one lane.

    No element equal to `when` has padding along `columns` only. Elements of padding along `rows` are unspecified.

    Attributes:
        rows, columns: owners along two axes. For pairs of tokens `rows` has the smaller axis, otherwise the lanes.
        padding: True if an element equal to `when` may have padding along `columns`.
    """

    rows: LaneRows
    columns: LaneRows
    padding: bool = False
    when: bool = True


@dataclass(frozen=True, slots=True)
class TokenPairs(Fact):
    """Elements depend on lanes of tokens along two axes; the owner is `Mixed`."""

    rows: LaneRows
    columns: LaneRows


@dataclass(frozen=True, slots=True)
class MaskedOut(Fact):
    """Elements outside the lane of their row's token are masked out.

    A masked element is zero (`zero`) or minus infinity; or all elements of its row outside the lane are nan.
    """

    rows: LaneRows
    columns: LaneRows
    zero: bool


@dataclass(frozen=True, slots=True)
class Tiles(Fact):
    """The rows of an axis are on two adjacent axes; the owner is `Mixed`.

    Elements at index i of axis `tiles` and j of axis `tiles` + 1 depend on row i * `size` + j of `rows`.

    Attributes:
        rows: owner of the rows; its axis has no meaning.
    """

    rows: LaneRows
    tiles: int
    size: int


Term = Iota | Symbol | OffsetEntry | SegmentIds
NOT_FINITE = frozenset({"nan", "inf", "-inf"})


@dataclass(frozen=True, slots=True)
class Finite(Fact):
    """No element is one of these numbers."""

    excluded: frozenset[str] = NOT_FINITE


@dataclass(frozen=True, slots=True)
class IsFinite(Fact):
    """Element is `when` only if the numbered value is no excluded number."""

    number: Number
    excluded: frozenset[str] = NOT_FINITE
    when: bool = True


@dataclass(frozen=True, slots=True)
class Negative(Fact):
    """True if the value with this number is negative."""

    number: Number


@dataclass(frozen=True, slots=True)
class PlusConstant(Fact):
    """The value with this number plus a constant, 0 or greater; may wrap without bounds."""

    number: Number
    by: int


@dataclass(frozen=True, slots=True)
class NotAbove(Fact):
    """At most the value with this number plus a constant."""

    number: Number
    by: int


@dataclass(frozen=True, slots=True)
class Greatest(Fact):
    """At most K, and at least min(entry, K) for entries of a numbered array.

    K is shared; without limits it is the dtype's greatest number.
    """

    number: Number


@dataclass(frozen=True, slots=True)
class Permuted(Fact):
    """Element r along axis 0 = order(r) // `div`."""

    order: Order
    div: int = 1


@dataclass(frozen=True, slots=True)
class Counts(Fact):
    """Element e = number of times e occurs in the array with value number `key`.

    Attributes:
        every: False if entries greater than all e are not counted.
    """

    key: Number
    every: bool = True


@dataclass(frozen=True, slots=True)
class OneHot(Fact):
    """True if the index along `classes` equals the `key` entry at index `rows`."""

    key: Number
    rows: int
    classes: int


@dataclass(frozen=True, slots=True)
class BroadcastVector(Fact):
    """Element = array[index along `axis`], for the 1-D array with this value number."""

    number: Number
    axis: int


@dataclass(frozen=True, slots=True)
class Columns(Fact):
    """Elements along the last axis: these values, concatenated."""

    values: "tuple[Value, ...]"


@dataclass(frozen=True, slots=True)
class Constant(Fact):
    """The array is a constant of the program; `captured`: from before tracing."""

    captured: bool = False


@dataclass(frozen=True, slots=True)
class Implies(Fact):
    """True implies that the value with this number is zero (or is not).

    Attributes:
        compared: number of a value that is nonzero exactly where this array is true, or 0.
    """

    number: Number
    zero: bool
    compared: Number = NONE


@dataclass(frozen=True, slots=True)
class UnchangedRows:
    """The rows of idle lanes equal the rows of an input pool.

    Attributes:
        view: path from the pool to this array.
    """

    leaf: Leaf
    view: View = ()

    def seen(self, path: Callable[[View], View | None]) -> "UnchangedRows | None":
        """Return the fact about an array at a path from this one, or None."""
        view = path(self.view)
        return None if view is None else UnchangedRows(self.leaf, view)

    def after_write(
        self, part: "UnchangedRows | None", inverse_path: Callable[[View], View | None]
    ) -> "UnchangedRows | None":
        """Return this fact if a write restores the replaced part by the opposite path."""
        return self if part is not None and part.leaf == self.leaf and inverse_path(part.view) == self.view else None


@dataclass(frozen=True, slots=True)
class Value:
    """The abstract value of one array.

    Attributes:
        number: equal numbers mean equal elements in row-major order; 0 without it.
        range: bounds of an integer array.
        intact: holds if the lane is idle.
        version: of the pool that this array views.
        uniform: axes along which elements of a shared array are equal.
    """

    owner: Owner = COMMON
    number: Number = NONE
    range: Range | None = None
    fact: Fact | None = None
    intact: UnchangedRows | None = None
    version: Version | None = None
    uniform: frozenset[int] = frozenset()

    def replace(self, **changes: Any) -> "Value":
        return replace(self, **changes)

    def __str__(self) -> str:
        return value_text(self)
