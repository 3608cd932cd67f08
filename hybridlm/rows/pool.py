"""Rows and pages of a pool: holders, lanes of a step, consumed tokens.

A sequence holds one row from its first token to its last. Lanes of a step have different rows: an idle lane's row is
unchanged. A row gets pages of the KV cache as its sequence grows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridlm.rows.pages import RowPages
from hybridlm.steps.structure import Rows
from ir_passes.host.page_owner import Page
from ir_passes.host.slot_owner import Slot, SlotError, SlotFault, SlotOwner, SlotsExhausted, frozen_copy


class RowsLost(RuntimeError):
    """The arrays of a pool were passed to a step that was interrupted."""


class LaneMap(NamedTuple):
    """The row of each lane of a step, all different, and its pages.

    Attributes:
        rows: numbers in the pool, int32 [lane].
        slots: numbers on the lane's device, int32 [lane], the operand of the step; immutable.
        pages: page table, int32 [lane, block], with numbers on the lane's device; immutable. Idle lanes have null
            pages. None without KV caches.
    """

    rows: np.ndarray
    slots: np.ndarray
    pages: np.ndarray | None


class RowPool:
    """The rows of one pool.

    Attributes:
        pages: with a null page for each device; 0 without KV caches.
        blocks: most pages of a row.
        devices: have equal parts of consecutive rows and pages.
    """

    def __init__(self, rows: Rows, pages: int = 0, blocks: int = 0, devices: int = 1):
        self.size, self.devices = int(rows.token.shape[0]), devices
        self.pages, self.blocks = pages, blocks
        self._rows: Rows | None = rows
        self.row_pages = RowPages(self.size, pages, blocks, devices)
        self.vacate()

    def vacate(self) -> None:
        """Release all rows and their pages, except kept pages."""
        self.owner = SlotOwner(self.size, "state", null=False, parts=self.devices)
        self.row_pages.vacate()
        self._consumed, self._unread = np.zeros(self.size, np.int32), np.zeros(self.size, bool)

    def devices_for(self, positions: int, shared: Sequence[Page] = ()) -> list[int]:
        """Return the devices with room, first with the shared pages, then by free rows.

        Args:
            shared: kept pages of one device, for the first positions.
        """
        pages, needed = self.row_pages, self.row_pages.needed(positions)
        home = pages.home_of(shared)
        ready = [
            device
            for device in range(self.devices)
            if self.owner.free_in(device) and pages.free_in(device) >= needed - (device == home) * len(shared)
        ]
        return sorted(ready, key=lambda device: (device == home, self.owner.free_in(device)), reverse=True)

    def needed(self, positions: int, device: int, shared: Sequence[Page] = ()) -> int:
        """Return the free pages for a new row of a device; arguments as for `devices_for`."""
        return self.row_pages.needed(positions) - (len(shared) if device == self.row_pages.home_of(shared) else 0)

    def acquire(self, positions: int = 0, device: int | None = None, shared: Sequence[Page] = ()) -> Slot:
        """Return a free row, with pages for `positions` positions.

        Args:
            device: None for the first of `devices_for`.

        Raises:
            SlotsExhausted: no device has both a free row and free pages.
        """
        devices = self.devices_for(positions, shared)
        if (not devices if device is None else device not in devices) and self.owner.free:
            free = [self.row_pages.free_in(part) for part in range(self.devices)]
            message = f"expected pages for {positions} positions, {free} are free on the devices; release a row"
            raise SlotsExhausted(SlotFault.EXHAUSTED.fault("pages", message))
        slot = self.owner.acquire(devices[0] if device is None and devices else device)
        (row,) = self.rows_of([slot])
        self._consumed[row], self._unread[row] = 0, False
        if row * self.devices // self.size == self.row_pages.home_of(shared):
            self.row_pages.adopt(row, shared)
        self.row_pages.reserve(row, positions)
        return slot

    def reserve(self, slot: Slot, positions: int) -> None:
        """Give a row pages for positions; raises as `RowPages.reserve`."""
        self.row_pages.reserve(self.rows_of([slot])[0], positions)

    def missing(self, slot: Slot, positions: int) -> int:
        return self.row_pages.missing(self.rows_of([slot])[0], positions)

    def can_reserve(self, slot: Slot, positions: int) -> bool:
        return self.missing(slot, positions) <= self.row_pages.free_in(self.device_of(slot))

    def short(self, slots: Sequence[Slot], positions: Sequence[int]) -> list[int]:
        rows = zip(self.rows_of(slots), positions, strict=True)
        return [index for index, (row, count) in enumerate(rows) if self.row_pages.missing(row, count)]

    def release(self, slot: Slot) -> None:
        """Give a row back, with its pages; raises SlotError if it was released before."""
        (row,) = self.rows_of([slot])
        # An interrupt in between leaves a held row without pages, never a free row with pages.
        self.row_pages.release(row)
        self.owner.release(slot)

    def reclaim(self) -> None:
        """Release the rows and pages that an interrupt took from their sequences."""
        rows = self.owner.reclaim()
        for row in rows:
            self.row_pages.release(row)
        self.row_pages.reclaim()
        if rows and not self.owner.held:
            self.vacate()

    def device_of(self, slot: Slot) -> int:
        return self.devices_of([slot])[0]

    def devices_of(self, slots: Sequence[Slot]) -> list[int]:
        return [row * self.devices // self.size for row in self.rows_of(slots)]

    def check_integrity(self) -> None:
        """Check the holders of each row and page; raises SlotError."""
        self.owner.check_integrity()
        self.row_pages.check_integrity(self.owner.held)

    def rows_of(self, slots: Sequence[Slot]) -> list[int]:
        """Return the row numbers of distinct live slots; raises SlotError otherwise."""
        return self.owner.bind(slots, len(slots)).tolist()

    def lanes_for(self, slots: Sequence[Slot]) -> int:
        """Return the least number of lanes for these slots, equal on all devices."""
        return self.devices * max(map(len, self._by_device(self.rows_of(slots))))

    def arrange(
        self, slots: Sequence[Slot], lanes: int, places: Sequence[int] | None = None
    ) -> tuple[Sequence[int], LaneMap]:
        """Place slots into lanes of their devices.

        Idle lanes get unused rows of the same device.

        Args:
            lanes: on all devices.
            places: lane of each slot; None for the order of the rows.

        Returns:
            Lane of each slot; rows of all lanes.

        Raises:
            SlotError: a slot is released, foreign or repeated, or a device has too few lanes or rows.
        """
        rows, each = self.rows_of(slots), lanes // self.devices
        parts, part_rows = self._by_device(rows), self.size // self.devices
        if lanes % self.devices or each > part_rows or max(map(len, parts)) > each:
            message = (
                f"expected a lane for each of {list(map(len, parts))} sequences and at most {part_rows} lanes on each "
                f"of {self.devices} devices, got {lanes} lanes in all"
            )
            raise SlotError(SlotFault.LANES.fault("", message))
        if places is None:
            lane_of = {row: row for row in rows}
            if each < part_rows:
                numbered = (enumerate(sorted(part), device * each) for device, part in enumerate(parts))
                lane_of = {row: lane for pairs in numbered for lane, row in pairs}
            places = [lane_of[row] for row in rows]
        row_at, lane_rows = dict(zip(places, rows, strict=True)), list[int]()
        for device, part in enumerate(parts):
            used = set(part)
            unused = (row for row in range(device * part_rows, (device + 1) * part_rows) if row not in used)
            lane_rows += [
                row_at[lane] if lane in row_at else next(unused) for lane in range(device * each, (device + 1) * each)
            ]
        numbers = np.array(lane_rows, np.int32)
        used = set(rows)
        table = self.row_pages.table(lane_rows, [row in used for row in lane_rows])
        return places, LaneMap(frozen_copy(numbers), frozen_copy(numbers % np.int32(part_rows)), table)

    def page(self, slot: Slot, block: int) -> int:
        """Return the page number of a row's block, over all devices; raises SlotError."""
        return self.row_pages.page(self.rows_of([slot])[0], block)

    def keep_page(self, slot: Slot, block: int) -> Page:
        """Return a right to the page of a row's block; raises as `RowPages.keep`."""
        return self.row_pages.keep(self.rows_of([slot])[0], block)

    def _by_device(self, rows: Sequence[int]) -> list[list[int]]:
        part_rows = self.size // self.devices
        parts: list[list[int]] = [[] for _ in range(self.devices)]
        for row in rows:
            parts[row // part_rows].append(row)
        return parts

    def settled(self, slot: Slot) -> bool:
        """Whether the number of consumed tokens is known."""
        return not self._unread[self.rows_of([slot])[0]]

    def consumed(self, slot: Slot) -> int:
        """Return the tokens that dispatched steps have consumed since the row's acquisition.

        Raises:
            SlotError: a dispatched step decides the number.
        """
        if not self.settled(slot):
            message = f"how many tokens {slot!r} has consumed is not known before its last step has been read"
            raise SlotError(SlotFault.UNREAD.fault("", message))
        return int(self._consumed[self.rows_of([slot])[0]])

    def advance(self, rows: np.ndarray, counts: np.ndarray) -> None:
        """Record the tokens of a dispatched step in the rows of its lanes, int32 [lane]."""
        self._consumed[rows] += counts

    def unsettle(self, rows: np.ndarray) -> None:
        """Record that a dispatched step decides these rows' consumed tokens."""
        self._unread[rows] = True

    def settle(self, slot: Slot, count: int) -> None:
        """Record the consumed tokens of a row, read from the step's result."""
        row = self.rows_of([slot])[0]
        self._unread[row] = False
        self._consumed[row] += count

    def moved(self, slot: Slot, consumed: int) -> None:
        row = self.rows_of([slot])[0]
        self._consumed[row], self._unread[row] = consumed, False

    def take(self) -> Rows:
        """Take the arrays for a step that donates them; `put` must follow.

        Raises:
            RowsLost: a step was interrupted after it took them.
        """
        rows, self._rows = self._rows, None
        if rows is None:
            raise RowsLost("a step was interrupted while it had the rows of its sequences; begin these again")
        return rows

    def put(self, rows: Rows) -> None:
        self._rows = rows

    def look(self) -> Rows:
        """Return the arrays for a step that only reads them; raises as `take`."""
        rows = self.take()
        self._rows = rows
        return rows

    @property
    def whole(self) -> bool:
        return self._rows is not None


class PoolPart:
    """Some arrays of a pool that a step reads, or takes and replaces."""

    def __init__(self, pool: RowPool, places: Sequence[int]):
        self.pool, self.places = pool, places
        self._leaves: list[Any] = []

    def look(self) -> tuple[jax.Array, ...]:
        leaves = jax.tree.leaves(self.pool.look())
        return tuple(leaves[i] for i in self.places)

    def take(self) -> tuple[jax.Array, ...]:
        self._leaves, self._tree = jax.tree.flatten(self.pool.take())
        return tuple(self._leaves[i] for i in self.places)

    def put(self, arrays: Sequence[jax.Array]) -> None:
        for i, array in zip(self.places, arrays, strict=True):
            self._leaves[i] = array
        self.pool.put(jax.tree.unflatten(self._tree, self._leaves))
        self._leaves = []
