"""Ownership of a pool's rows on the host: each row has at most one holder.

`SlotOwner` makes the assumptions of `contract.SlotMap` true: row numbers in range, active entries distinct, idle lanes
on the null row. A `Slot` is a linear token: after `release` or `move` every use raises, so no row is freed twice, used
after release, or written by two lanes. Row numbers leave this module only in new immutable arrays.
"""

import threading
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from typing import ClassVar, Literal, NoReturn

import numpy as np

from ir_passes.contract.contract import SlotMap
from ir_passes.contract.statements import StatedError, Statement, StatementId

NULL_ROW = 0
"""Row of idle lanes; never allocated."""


def frozen_copy(array: np.ndarray) -> np.ndarray:
    """Return a copy over immutable bytes: it can never be made writable."""
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


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


class Slot(OneHolder):
    """The right to one row, from `SlotOwner.acquire`."""

    __slots__ = ("_generation", "_owner", "_row")
    _instead = "use SlotOwner.move to hand it on"

    def __init__(self, owner: "SlotOwner", row: int, generation: int):
        self._owner, self._row, self._generation = owner, row, generation

    def __repr__(self) -> str:
        return f"row {self._row} (tenant {self._generation}) of {self._owner.name!r}"

    @property
    def epoch(self) -> int:
        """Tenancy of the row, counted from 1."""
        return self._generation


class SlotOwner:
    """Allocator of a pool's rows except the null row; `acquire` returns the row released first.

    Methods are thread-safe, but the caller orders calls: an array of `bind` is valid until one of its slots is
    released.

    Args:
        size: rows, row 0 included (`SlotMap.size`).
        name: groups of pools, for messages.
        null: row 0 is never allocated (`SlotMap.null`).
        parts: equal parts of consecutive rows, one per device, without a null row if several. Rows come from the part
            with the most free rows.
    """

    def __init__(self, size: int, name: str = "slots", null: bool = True, parts: int = 1):
        min_size = 2 if null else 1
        if size < min_size:
            why = ": row 0 is never handed out" if null else ""
            message = f"expected a size of at least {min_size}, got {size}{why}"
            raise SlotError(SlotFault.SIZE.fault(f"slots of {name!r}", message))
        if size % parts or (null and parts > 1):
            message = f"expected {parts} equal parts without a null row, got {size} rows, null={null}"
            raise SlotError(SlotFault.SIZE.fault(f"slots of {name!r}", message))
        self.size, self.name, self.null = size, name, null
        self._lock, self._each = threading.Lock(), size // parts
        self._free = [deque(range(begin, begin + self._each)) for begin in range(0, size, self._each)]
        if null:
            self._free[0].popleft()
        self._held: dict[int, weakref.ref[Slot]] = {}
        self._tenants = [0] * size

    @classmethod
    def of(cls, slot_map: SlotMap) -> "SlotOwner":
        return cls(slot_map.size, ", ".join(slot_map.names), slot_map.null)

    @property
    def free(self) -> int:
        with self._lock:
            return sum(map(len, self._free))

    @property
    def held(self) -> list[int]:
        """Sorted rows with a holder."""
        with self._lock:
            return sorted(self._held)

    def free_in(self, part: int) -> int:
        with self._lock:
            return len(self._free[part])

    def acquire(self, number: int | None = None) -> Slot:
        """Take a free row; it holds earlier state.

        Without a free row, SlotsExhausted has the number of tokens lost without release.
        """
        with self._lock:
            part = max(self._free, key=len) if number is None else self._free[number]
            if not part:
                lost = self._lost()
                message = (
                    f"all {self.size - self.null} rows are held ({len(lost)} of them by tokens that were dropped "
                    f"without release{f': rows {lost}' if lost else ''}); release a slot or make the pool larger"
                )
                raise SlotsExhausted(SlotFault.EXHAUSTED.fault(f"slots of {self.name!r}", message))
            return self._issue(part.popleft())

    def release(self, slot: Slot) -> None:
        """Give a row back; raises SlotError for a released, moved or foreign slot."""
        with self._lock:
            self._raise(f"release of {slot!r}", self._faults("slot", slot))
            del self._held[slot._row]
            self._free[slot._row // self._each].append(slot._row)

    def reclaim(self) -> list[int]:
        """Free the rows of slots that were dropped without release; return them."""
        with self._lock:
            lost = self._lost()
            for row in lost:
                del self._held[row]
                self._free[row // self._each].append(row)
            return lost

    def move(self, slot: Slot) -> Slot:
        """Return a new slot of the row and invalidate the old one; raises as `release`."""
        with self._lock:
            self._raise(f"move of {slot!r}", self._faults("slot", slot))
            return self._issue(slot._row)

    def bind(
        self,
        slots: Sequence[Slot | None],
        lanes: int,
        role: Literal["both", "read", "write"] = "both",
        beside: Sequence[Slot | None] = (),
    ) -> np.ndarray:
        """Return the row numbers of a step, int32 [lanes]; None becomes row 0.

        The array is new and immutable: JAX may read a host array after the call.

        Args:
            slots: one per lane; None for an idle lane, with a null row.
            role: as in `SlotMap`; with "read", forks may repeat slots.
            beside: slots of other maps, for a `disjoint` map.

        Raises:
            SlotError: all faults: wrong number of lanes; duplicate, released, moved or foreign slots; slots in another
                map.
        """
        with self._lock:
            faults: list[Statement] = []
            if len(slots) != lanes:
                message = f"expected one slot or None for each of {lanes} lanes, got {len(slots)}"
                faults.append(SlotFault.LANES.fault("", message))
            for lane, slot in enumerate(slots):
                if slot is not None:
                    faults += self._faults(f"lane {lane}", slot)
                elif not self.null:
                    message = "expected a slot, got None; this pool has no null row for idle lanes"
                    faults.append(SlotFault.NO_NULL_ROW.fault(f"lane {lane}", message))
            if role != "read":
                counts = Counter(id(slot) for slot in slots if slot is not None)
                for slot in {id(slot): slot for slot in slots if slot is not None and counts[id(slot)] > 1}.values():
                    where = [lane for lane, other in enumerate(slots) if other is slot]
                    message = (
                        f"they share {slot!r}, expected distinct slots: the last lane would overwrite the others; "
                        'acquire one for each lane, or bind with role="read" for rows that are only read'
                    )
                    faults.append(SlotFault.SHARED.fault(f"lanes {where}", message))
            other_slots = {id(slot) for slot in beside if slot is not None}
            for lane, slot in enumerate(slots):
                if slot is not None and id(slot) in other_slots:
                    message = (
                        f"{slot!r} is in another slot map of this step too; expected another row, because the maps are "
                        "declared disjoint; acquire a slot for this map"
                    )
                    faults.append(SlotFault.NOT_DISJOINT.fault(f"lane {lane}", message))
            self._raise(f"bind of {lanes} lanes, role {role!r}", faults)
            rows = [NULL_ROW if slot is None else slot._row for slot in slots]
        return frozen_copy(np.array(rows, np.int32))

    def check_integrity(self) -> None:
        """Check that every row is exactly one of: null row (if any), free, held.

        A row in two states or none, or a token dropped without release, is a SlotError.
        """
        with self._lock:
            free, occupied, lost = [row for part in self._free for row in part], list(self._held), self._lost()
            nulls = [NULL_ROW] if self.null else []
            counts = Counter([*nulls, *free, *occupied])
            wrong = {row: counts[row] for row in {*range(self.size), *counts} if counts[row] != 1 or row >= self.size}
            faults: list[Statement] = []
            total = len(nulls) + len(free) + len(occupied)
            if wrong or total != self.size:
                message = (
                    f"expected null + free + held = size, each row once; got {len(nulls)} + {len(free)} "
                    f"+ {len(occupied)} = {total} of {self.size}; rows by times found: {wrong}; free {free}, "
                    f"held {sorted(occupied)}"
                )
                faults.append(SlotFault.STATES.fault("", message))
            if lost:
                message = "they are held by tokens that no longer exist; release a slot before dropping it"
                faults.append(SlotFault.DROPPED.fault(f"rows {lost}", message))
            self._raise("integrity", faults)

    def _issue(self, row: int) -> Slot:
        self._tenants[row] += 1
        slot = Slot(self, row, self._tenants[row])
        self._held[row] = weakref.ref(slot)
        return slot

    def _lost(self) -> list[int]:
        return sorted(row for row, reference in self._held.items() if reference() is None)

    def _faults(self, where: str, slot: Slot) -> list[Statement]:
        if not isinstance(slot, Slot):
            message = f"expected a slot of {self.name!r} or None, got {slot!r}; rows are not given by number"
            return [SlotFault.NO_TOKEN.fault(where, message)]
        if slot._owner is not self:
            message = f"{slot!r} belongs to another owner; expected a slot of {self.name!r} ({self.size} rows)"
            return [SlotFault.FOREIGN.fault(where, message)]
        reference = self._held.get(slot._row)
        if reference is not None and reference() is slot:
            return []
        now = "free" if reference is None else f"held by tenant {self._tenants[slot._row]}"
        message = f"{slot!r} was released or moved, its row is now {now}; use the slot that acquire or move gave"
        return [SlotFault.RELEASED.fault(where, message)]

    def _raise(self, action: str, faults: list[Statement]) -> None:
        if faults:
            raise SlotError(*faults, where=f"slots of {self.name!r}, {action}")
