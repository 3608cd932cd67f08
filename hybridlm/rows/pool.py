"""Rows and pages of a pool: holders, lanes of a step, consumed tokens.

A sequence holds one row from its first token to its last. Lanes of a step have different rows: an idle lane's row is
unchanged. A row gets pages of the KV cache as its sequence grows. Pages shared with other rows or the prefix cache are
read only.

More than 300 lines: a pool gives rows and pages together, and takes them back together.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

import jax
import numpy as np

from hybridlm.steps.structure import Rows
from ir_passes.host.page_owner import Page, PageOwner
from ir_passes.host.slot_faults import SlotError, SlotFault, SlotsExhausted
from ir_passes.host.slot_owner import Slot, SlotOwner, frozen_copy
from models import KV_BLOCK


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
    """The rows of one pool, and their pages in the order of positions.

    Attributes:
        pages: with a null page for each device; 0 without KV caches.
        blocks: most pages of a row.
        devices: have equal parts of consecutive rows and pages.
        arrays: None during a step that donates them, and after its interruption.
        page_owner: holders of each page; None without KV caches.
    """

    def __init__(self, rows: Rows, pages: int = 0, blocks: int = 0, devices: int = 1):
        self.size, self.devices = int(rows.token.shape[0]), devices
        self.pages, self.blocks = pages, blocks
        self.arrays: Rows | None = rows
        self.page_owner = PageOwner(pages, "pages", parts=devices) if pages else None
        self._row_part, self._page_part = self.size // devices, pages // devices
        self._row_pages: list[list[Page]] = [[] for _ in range(self.size)]
        self._kept = WeakSet[Page]()
        self._table, self._counts = np.zeros((self.size, blocks), np.int32), np.zeros(self.size, np.int32)
        self.vacate()

    def vacate(self) -> None:
        """Release all rows and their pages, except kept pages."""
        self.owner = SlotOwner(self.size, "state", null=False, parts=self.devices)
        for row in range(self.size):
            self._release_pages(row)
        self._consumed, self._unread = np.zeros(self.size, np.int32), np.zeros(self.size, bool)

    def devices_for(
        self, positions: int, shared: Sequence[Page] = (), evict: Callable[[int, int], bool] | None = None
    ) -> list[int]:
        """Return the devices with room, first with the shared pages, then by free rows.

        Args:
            shared: kept pages of one device, for the first positions.
            evict: frees so many pages of a device, or returns False; called if only pages are missing.
        """
        pages, count = self.page_owner, -(-positions // KV_BLOCK)
        home = self.page_device(shared[0]) if shared else None
        needed = [count - (device == home) * len(shared) for device in range(self.devices)]
        free_rows = [self.owner.free_in(device) for device in range(self.devices)]
        with_rows = [device for device in range(self.devices) if free_rows[device]]
        ready = [device for device in with_rows if pages is None or pages.free_in(device) >= needed[device]]
        if not ready and evict is not None and any(evict(device, needed[device]) for device in with_rows):
            return self.devices_for(positions, shared)
        return sorted(ready, key=lambda device: (-needed[device], free_rows[device]), reverse=True)

    def free_pages(self, device: int) -> int:
        return 0 if self.page_owner is None else self.page_owner.free_in(device)

    def acquire(self, positions: int = 0, device: int | None = None, shared: Sequence[Page] = ()) -> Slot:
        """Return a free row, with pages for `positions` positions.

        Args:
            device: None for the first of `devices_for`.

        Raises:
            SlotsExhausted: no device has both a free row and free pages.
        """
        devices = self.devices_for(positions, shared)
        if (not devices if device is None else device not in devices) and self.owner.free:
            free = list(map(self.free_pages, range(self.devices)))
            message = f"expected pages for {positions} positions, {free} are free on the devices; release a row"
            raise SlotsExhausted(SlotFault.EXHAUSTED.fault("pages", message))
        slot = self.owner.acquire(devices[0] if device is None and devices else device)
        (row,) = self.rows_of([slot])
        self._consumed[row], self._unread[row] = 0, False
        is_home = bool(shared) and row // self._row_part == self.page_device(shared[0])
        self._grow(row, positions, shared if is_home else ())
        return slot

    def reserve(self, slot: Slot, positions: int) -> None:
        """Give a row the missing pages of its first positions.

        Raises:
            SlotError: a context has fewer positions.
            SlotsExhausted: fewer pages of the row's device are free; the row gets none.
        """
        self._grow(self.rows_of([slot])[0], positions)

    def _grow(self, row: int, positions: int, shared: Sequence[Page] = ()) -> None:
        """Give a row the missing pages of its first positions, kept pages first.

        Args:
            shared: first pages of a row without pages.

        Raises:
            SlotError: as `reserve`, the row has pages, or a kept page was released or is on another device.
        """
        owner, pages, device = self.page_owner, self._row_pages[row], row // self._row_part
        count = -(-positions // KV_BLOCK) - len(pages) - len(shared)
        if owner is None or (count < 1 and not shared):
            return
        if len(pages) + len(shared) + count > self.blocks:
            message = f"expected at most {self.blocks * KV_BLOCK} positions, got {positions}"
            raise SlotError(SlotFault.PLACES.fault(f"row {row}", message))
        devices = {self.page_device(page) for page in shared}
        if shared and (pages or devices != {device}):
            message = (
                f"expected pages of device {device} and a row without pages, got pages of devices {sorted(devices)} "
                f"and a row with {len(pages)}"
            )
            raise SlotError(SlotFault.PLACES.fault(f"row {row}", message))
        added = owner.acquire(max(count, 0), device)
        pages = [*pages, *[owner.share(page) for page in shared], *added]
        # Numbers on the device; null pages are 0 everywhere.
        numbers, count = owner.bind([pages], 1, len(pages))[0] % np.int32(self._page_part), len(pages)
        # One statement without calls, so that an interrupt leaves no row with other pages than in its table.
        self._row_pages[row], self._table[row, :count], self._counts[row] = pages, numbers, count

    def missing(self, slots: Sequence[Slot], positions: Sequence[int]) -> list[int]:
        """Return the number of missing pages of each row's first positions."""
        if self.page_owner is None:
            return [0] * len(slots)
        counts = zip(self.rows_of(slots), positions, strict=True)
        return [max(0, -(-count // KV_BLOCK) - len(self._row_pages[row])) for row, count in counts]

    def release(self, slot: Slot) -> None:
        """Give a row back, with its pages; raises SlotError if it was released before."""
        (row,) = self.rows_of([slot])
        # An interrupt in between leaves a held row without pages, never a free row with pages.
        self._release_pages(row)
        self.owner.release(slot)

    def _release_pages(self, row: int) -> None:
        if self.page_owner is not None:
            pages, self._row_pages[row], self._table[row], self._counts[row] = self._row_pages[row], [], 0, 0
            for page in pages:
                self.page_owner.release(page)

    def reclaim(self, rows: int) -> bool:
        """Release the rows and pages that an interrupt took from their sequences.

        Args:
            rows: number of rows that sequences have.

        Returns:
            False if rows or pages are left that a traceback still holds.
        """
        self.owner.reclaim()
        held_rows = self.owner.held
        for row in set(range(self.size)).difference(held_rows):
            self._release_pages(row)
        if self.page_owner is not None:
            self.page_owner.reclaim()
        if not held_rows:
            self.vacate()
        rights = 0 if self.page_owner is None else int(self.page_owner.counts().sum())
        return len(held_rows) == rows and rights == int(self._counts.sum()) + len(self._kept)

    def devices_of(self, slots: Sequence[Slot | None]) -> list[int]:
        return [row * self.devices // self.size for row in self.rows_of(slots)]

    def check_integrity(self) -> None:
        """Check the holders of each row and page; raises SlotError with every fault."""
        self.owner.check_integrity()
        if self.page_owner is None:
            return
        self.page_owner.check_integrity()
        held_rows, pages = self.owner.held, self._row_pages
        table = self.page_owner.bind(pages, self.size, self.blocks)
        counts = np.array(list(map(len, pages)))
        wrong = [row for row in range(self.size) if pages[row] and row not in held_rows]
        wrong += np.flatnonzero(
            (table % np.int32(self._page_part) != self._table).any(axis=1) | (counts != self._counts)
        ).tolist()
        kept_pages = self.page_owner.bind([list(self._kept)], 1, len(self._kept))
        numbers = np.concatenate([table[table > 0], kept_pages.ravel()])
        holders, expected = np.bincount(numbers, minlength=self.pages), self.page_owner.counts()
        rights = len({page for row in (*pages, self._kept) for page in row})
        unequal = np.flatnonzero(holders != expected).tolist()
        if wrong or unequal or rights != len(numbers):
            message = (
                f"rows {wrong} are free and have pages, or have others than their tables name; pages {unequal} have "
                f"{expected[unequal].tolist()} holders, {holders[unequal].tolist()} in rows and kept; {rights} rights "
                f"to {len(numbers)} places"
            )
            raise SlotError(SlotFault.STATES.fault("", message), where="pages")

    def rows_of(self, slots: Sequence[Slot | None]) -> list[int]:
        """Return the row numbers of distinct live slots; raises SlotError otherwise."""
        return self.owner.bind(slots, len(slots)).tolist()

    def lanes_for(self, slots: Sequence[Slot | None]) -> int:
        """Return the least number of lanes for these slots, equal on all devices."""
        return self.devices * max(Counter(self.devices_of(slots)).values(), default=0)

    def arrange(
        self, slots: Sequence[Slot | None], lanes: int, places: Sequence[int] | None = None
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
        rows, each, part_rows = self.rows_of(slots), lanes // self.devices, self.size // self.devices
        parts = [[row for row in rows if row // part_rows == device] for device in range(self.devices)]
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
        numbers, pages = np.array(lane_rows, np.int32), None
        if self.page_owner is not None:
            table = np.zeros((lanes, self.blocks), np.int32)  # idle lanes have null pages
            table[list(places)] = self._table[rows]
            pages = frozen_copy(table)
        return places, LaneMap(frozen_copy(numbers), frozen_copy(numbers % np.int32(part_rows)), pages)

    def page(self, slot: Slot, block: int) -> int:
        """Return the page number of a row's block, over all devices; raises SlotError without one."""
        (row,) = self.rows_of([slot])
        if block >= self._counts[row]:
            message = f"expected a page of positions from {block * KV_BLOCK} on, it has {self._counts[row]} pages"
            raise SlotError(SlotFault.PLACES.fault(f"row {row}", message))
        return row // self._row_part * self._page_part + int(self._table[row, block])

    def keep_page(self, slot: Slot, block: int) -> Page:
        """Return a right, for `drop_page`, to the page of a row's block; raises as `page`."""
        assert self.page_owner is not None
        self.page(slot, block)
        page = self.page_owner.share(self._row_pages[self.rows_of([slot])[0]][block])
        self._kept.add(page)
        return page

    def drop_page(self, page: Page) -> None:
        """Give back a right of `keep_page`; raises SlotError for any other page."""
        assert self.page_owner is not None
        self._kept.discard(page)
        self.page_owner.release(page)

    def page_number(self, page: Page) -> int:
        """Return a page's number, over all devices; raises SlotError if it was released."""
        assert self.page_owner is not None
        return int(self.page_owner.bind([[page]], 1, 1)[0, 0])

    def page_device(self, page: Page) -> int:
        """Return a page's device; raises SlotError if it was released."""
        return self.page_number(page) // self._page_part

    def require_pages(self, rows: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> None:
        """Check that rows have all pages before `ends`, and alone hold written ones.

        Args:
            begins, ends: first written position and the end of each lane, int [lane]; end 0 without any.

        Raises:
            SlotError: a page is missing, or a written page is shared.
        """
        if self.page_owner is None:
            return
        ends = np.minimum(ends, self.blocks * KV_BLOCK)
        covered = self._counts[rows].astype(np.int64) * KV_BLOCK
        wrong = np.flatnonzero(ends > covered)
        if len(wrong):
            messages = [
                (f"lane {lane}, row {rows[lane]}", f"writes up to position {ends[lane]}, has pages for {covered[lane]}")
                for lane in wrong
            ]
            raise SlotError(*(SlotFault.PLACES.fault(where, message) for where, message in messages), where="pages")
        if not self.page_owner.shared:
            return
        first, last = np.maximum(begins, 0) // KV_BLOCK, -(-ends // KV_BLOCK)
        places = first[:, None] + np.arange(max(int((last - first).max(initial=0)), 0))
        table = self._table[rows[:, None], np.minimum(places, self.blocks - 1)]
        self.page_owner.require_one_holder(
            table + rows[:, None] // self._row_part * self._page_part, places < last[:, None]
        )

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
        """Take the arrays for a step that donates them; the caller sets `arrays` afterwards.

        Raises:
            RowsLost: a step was interrupted after it took them.
        """
        rows, self.arrays = self.arrays, None
        if rows is None:
            raise RowsLost("a step was interrupted while it had the rows of its sequences; begin these again")
        return rows

    def look(self) -> Rows:
        """Return the arrays for a step that only reads them; raises as `take`."""
        self.arrays = rows = self.take()
        return rows


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
        self.pool.arrays = jax.tree.unflatten(self._tree, self._leaves)
        self._leaves = []
