"""Ownership of a pool's rows on the host: `RowOwner` counts the rights to each row.

`SlotOwner` makes the assumptions of `contract.SlotMap` true: row numbers in range, active entries distinct, idle lanes
on the null row. A `Slot` is a linear token: after `release` or `move` every use raises, so no row is freed twice, used
after release, or written by two lanes. Row numbers leave the owners only in new immutable arrays.
"""

import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar
from weakref import ref

import numpy as np

from ir_passes.contract.contract import SlotMap
from ir_passes.contract.statements import Statement
from ir_passes.host.slot_faults import OneHolder, SlotError, SlotFault, SlotsExhausted

NULL_ROW = 0
"""Row of idle lanes; never allocated."""


def frozen_copy(array: np.ndarray) -> np.ndarray:
    """Return a copy over immutable bytes: it can never be made writable."""
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Right(OneHolder):
    """The right to a row of an owner.

    Attributes:
        epoch: number of rights to the row so far, this one included: of a slot its tenancy.
    """

    _owner: "RowOwner[Any]"
    _row: int
    epoch: int


R = TypeVar("R", bound=Right)


class RowOwner(Generic[R]):
    """Thread-safe allocator of numbered rows, in equal parts of consecutive rows: one per device.

    Every row is a null row, free, or held. Free rows and holders follow from the rights: `reclaim` repairs both.

    Args:
        size: rows, null rows included.
        name: groups of pools, for messages.
        null: the first row of each part is never allocated.
    """

    _kind: type[R]
    _noun: ClassVar[str]
    _rows: ClassVar[str]
    _texts: ClassVar[Mapping[SlotFault, str]]

    def __init__(self, size: int, name: str, null: bool, parts: int):
        self.size, self.name, self.null, self.parts = size, name, null, parts
        self._lock, self._each = threading.Lock(), size // parts
        self._free = [deque(range(begin + null, begin + self._each)) for begin in range(0, size, self._each)]
        self._rights: dict[ref[R], int] = {}
        self._holders = np.zeros(size, np.int32)
        self._epochs = [0] * size

    @property
    def free(self) -> int:
        with self._lock:
            return sum(map(len, self._free))

    @property
    def held(self) -> list[int]:
        """Sorted rows with a holder."""
        with self._lock:
            return sorted(set(self._rights.values()))

    def free_in(self, part: int) -> int:
        """Return the number of free rows of a part."""
        with self._lock:
            return len(self._free[part])

    def release(self, right: R) -> None:
        """Give a right up; raises SlotError for a released, moved or foreign one."""
        with self._lock:
            row = self._end("release", right)
            if not self._holders[row]:
                self._free[row // self._each].append(row)

    def reclaim(self) -> list[int]:
        """End the rights that were dropped without release; return their rows.

        Every row without a right is then free, also after an interrupt in another method.
        """
        with self._lock:
            lost, free = self._lost(), {row for part in self._free for row in part}
            self._rights = {right: row for right, row in self._rights.items() if right() is not None}
            self._holders = self._count()
            for part, begin in enumerate(range(0, self.size, self._each)):
                rows = dict.fromkeys([*self._free[part], *range(begin + self.null, begin + self._each)])
                self._free[part] = deque(row for row in rows if not self._holders[row])
            return sorted({*lost, *(row for part in self._free for row in part if row not in free)})

    def check_integrity(self) -> None:
        """Check that every row is exactly one of: null row (if any), free, held.

        A row in two states or none, a wrong number of holders, or a right dropped without release, is a SlotError.
        """
        with self._lock:
            free, holders, lost = [row for part in self._free for row in part], self._count(), self._lost()
            nulls = list(range(0, self.size, self._each)) if self.null else []
            held_rows = np.flatnonzero(holders).tolist()
            counts = Counter([*nulls, *free, *held_rows])
            wrong = {row: counts[row] for row in {*range(self.size), *counts} if counts[row] != 1 or row >= self.size}
            faults: list[Statement] = []
            if wrong:
                total, numbers = sum(counts.values()), f"{len(nulls)} + {len(free)} + {len(held_rows)}"
                message = self._texts[SlotFault.STATES].format(
                    numbers=numbers, total=total, size=self.size, wrong=wrong, free=free, held=held_rows
                )
                faults.append(SlotFault.STATES.fault("", message))
            if len(unequal := np.flatnonzero(holders != self._holders)):
                message = f"expected the holders {holders[unequal].tolist()}, counted {self._holders[unequal].tolist()}"
                faults.append(SlotFault.STATES.fault(f"{self._rows} {unequal.tolist()}", message))
            if lost:
                message = f"they are held by tokens that no longer exist; release a {self._noun} before dropping it"
                faults.append(SlotFault.DROPPED.fault(f"{self._rows} {lost}", message))
            if faults:
                raise self._error("integrity", faults)

    def _issue(self, row: int) -> R:
        self._epochs[row] += 1
        right = self._kind(self, row, self._epochs[row])
        self._rights[ref(right)] = row
        self._holders[row] += 1
        return right

    def _end(self, action: str, right: R) -> int:
        """End a right and return its row; raises SlotError."""
        row = self._row_of(action, right)
        del self._rights[ref(right)]
        self._holders[row] -= 1
        return row

    def _has(self, right: object) -> bool:
        return isinstance(right, self._kind) and ref(right) in self._rights

    def _row_of(self, action: str, right: R) -> int:
        if not self._has(right):
            raise self._error(f"{action} of {right!r}", [self._fault(self._noun, right)])
        return right._row

    def _count(self) -> np.ndarray:
        """Return the number of rights to each row, int32 [size]."""
        return np.bincount(np.fromiter(self._rights.values(), np.int64), minlength=self.size).astype(np.int32)

    def _lost(self) -> list[int]:
        return sorted({row for right, row in self._rights.items() if right() is None})

    def _fault(self, where: str, right: R) -> Statement:
        """Return the fault of an object without a right to a row."""
        fault, now = SlotFault.RELEASED, ""
        if not isinstance(right, self._kind):
            fault = SlotFault.NO_TOKEN
        elif right._owner is not self:
            fault = SlotFault.FOREIGN
        else:
            now = f"held in epoch {self._epochs[right._row]}" if self._holders[right._row] else "free"
        return fault.fault(where, self._texts[fault].format(right=right, name=self.name, size=self.size, now=now))

    def _error(self, action: str, faults: Sequence[Statement]) -> SlotError:
        return SlotError(*faults, where=f"{self._noun}s of {self.name!r}, {action}")


class Slot(Right):
    """The right to one row, from `SlotOwner.acquire`."""

    __slots__ = ()
    _instead = "use SlotOwner.move to hand it on"

    def __repr__(self) -> str:
        return f"row {self._row} (epoch {self.epoch}) of {self._owner.name!r}"


class SlotOwner(RowOwner[Slot]):
    """Allocator of a pool's rows except the null row; `acquire` returns the row released first.

    Methods are thread-safe, but the caller orders calls: an array of `bind` is valid until one of its slots is
    released.

    Args:
        size: rows, row 0 included (`SlotMap.size`).
        name: groups of pools, for messages.
        null: row 0 is never allocated (`SlotMap.null`).
        parts: equal parts of consecutive rows, one per device, without a null row if several; the emptiest is first.
    """

    _kind, _noun, _rows = Slot, "slot", "rows"
    _texts = {
        SlotFault.NO_TOKEN: "expected a slot of {name!r} or None, got {right!r}; rows are not given by number",
        SlotFault.FOREIGN: "{right!r} belongs to another owner; expected a slot of {name!r} ({size} rows)",
        SlotFault.RELEASED: (
            "{right!r} was released or moved, its row is now {now}; use the slot that acquire or move gave"
        ),
        SlotFault.STATES: (
            "expected null + free + held = size, each row once; got {numbers} = {total} of {size}; rows by times "
            "found: {wrong}; free {free}, held {held}"
        ),
    }

    def __init__(self, size: int, name: str = "slots", null: bool = True, parts: int = 1):
        if size < 1 + null:
            why = ": row 0 is never handed out" if null else ""
            message = f"expected a size of at least {1 + null}, got {size}{why}"
            raise SlotError(SlotFault.SIZE.fault(f"slots of {name!r}", message))
        if size % parts or (null and parts > 1):
            message = f"expected {parts} equal parts without a null row, got {size} rows, null={null}"
            raise SlotError(SlotFault.SIZE.fault(f"slots of {name!r}", message))
        super().__init__(size, name, null, parts)

    @classmethod
    def of(cls, slot_map: SlotMap) -> "SlotOwner":
        return cls(slot_map.size, ", ".join(slot_map.names), slot_map.null)

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

    def move(self, slot: Slot) -> Slot:
        """Return a new slot of the row and invalidate the old one; raises as `release`."""
        with self._lock:
            return self._issue(self._end("move", slot))

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
                if slot is None and not self.null:
                    message = "expected a slot, got None; this pool has no null row for idle lanes"
                    faults.append(SlotFault.NO_NULL_ROW.fault(f"lane {lane}", message))
                elif slot is not None and not self._has(slot):
                    faults.append(self._fault(f"lane {lane}", slot))
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
            if faults:
                raise self._error(f"bind of {lanes} lanes, role {role!r}", faults)
            rows = [NULL_ROW if slot is None else slot._row for slot in slots]
        return frozen_copy(np.array(rows, np.int32))
