"""Faults of row numbers, pages and labels of rows; objects that refuse a second holder."""

from typing import ClassVar, NoReturn

from ir_passes.contract.statements import StatedError, StatementId


class SlotFault(StatementId):
    """Faults of row numbers, pages and labels of rows."""

    SIZE = "size", "A pool is too small for any row or page to be handed out."
    EXHAUSTED = "exhausted", "Fewer rows or pages are free than are asked for."
    LANES = "lanes", "There is not one slot, row of pages or range of places for each lane."
    NO_TOKEN = "no-token", "Something stands in the place of a slot or page that is none."
    FOREIGN = "foreign", "A slot or page belongs to another owner."
    RELEASED = "released", "A slot or page was released or moved before."
    NO_NULL_ROW = "no-null-row", "A lane is idle, or has pages left, and the pool has no null row."
    SHARED = "shared", "What a lane writes is another lane's, or another holder's, too."
    NOT_DISJOINT = "not-disjoint", "A slot is in two slot maps that are declared disjoint."
    NULL_PAGE = "null-page", "The null page would be written."
    PLACES = "places", "A lane has more pages, or writes to other places, than its table has."
    RANGE = "range", "Entries of a page table are out of range."
    STATES = "states", "A row is in two states at once, or in none."
    DROPPED = "dropped", "A token was dropped without being released."
    NO_ROW = "no-row", "A sequence has no row of the pool where it must have one."
    UNREAD = "unread", "The last step has not been read, and decides how many tokens the rows have consumed."
    ACCEPTED = "accepted", "A verifying step has accepted no token of a lane, or more than it was given."
    OWNER = "owner", "The number of an owner is not positive."
    TWO_LANES = "two-lanes", "Two lanes belong to one owner."
    NO_LABEL = "no-label", "A sequence continues, or is copied, and no step has written its rows."


class SlotError(StatedError, ValueError):
    """Rows, pages or labels violate a contract; has every `SlotFault`."""


class SlotsExhausted(SlotError):
    """No row or page is free."""


class OneHolder:
    """An object with one holder: compared by identity, not copied or pickled.

    Attributes:
        _instead: advice on copies.
    """

    __slots__ = ("__weakref__",)
    _instead: ClassVar[str]

    def __copy__(self) -> NoReturn:
        raise TypeError(f"{self!r} has one holder and cannot be copied; {self._instead}")

    def __deepcopy__(self, memo: dict) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()
