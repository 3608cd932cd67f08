"""Pages of a pool's rows: KV cache for the positions of their sequences.

Pages shared with other rows or the prefix cache are read only.
"""

from collections.abc import Sequence

import numpy as np

from ir_passes.host.page_owner import Page, PageOwner
from ir_passes.host.slot_owner import SlotError, SlotFault, frozen_copy
from models import KV_BLOCK, kv_blocks


class RowPages:
    """The pages of each row, in the order of its positions.

    Args:
        size: pages on all devices, with a null page on each; 0 without a KV cache.

    Attributes:
        owner: holder of each page; None without a KV cache.
    """

    def __init__(self, rows: int, size: int, blocks: int, devices: int):
        self.owner = PageOwner(size, "pages", parts=devices) if size else None
        self._blocks, self._row_part, self._page_part = blocks, rows // devices, size // devices
        self._pages: list[list[Page]] = [[] for _ in range(rows)]
        self._kept: dict[Page, None] = {}
        self._table, self._counts = np.zeros((rows, blocks), np.int32), np.zeros(rows, np.int32)

    def vacate(self) -> None:
        """Release the pages of all rows; kept pages stay."""
        for row in range(len(self._pages)):
            self.release(row)

    def needed(self, positions: int) -> int:
        return 0 if self.owner is None else kv_blocks(positions)

    def missing(self, row: int, positions: int) -> int:
        """Return the number of missing pages of a row's first positions."""
        return max(0, self.needed(positions) - len(self._pages[row]))

    def free_in(self, device: int) -> int:
        return 0 if self.owner is None else self.owner.free_in(device)

    def reserve(self, row: int, positions: int) -> None:
        """Give a row the missing pages of its first positions.

        Raises:
            SlotError: a context has fewer positions.
            SlotsExhausted: fewer pages of the row's device are free; the row gets none.
        """
        if self.owner is None or not (count := self.missing(row, positions)):
            return
        if len(self._pages[row]) + count > self._blocks:
            message = f"expected at most {self._blocks * KV_BLOCK} positions, got {positions}"
            raise SlotError(SlotFault.PLACES.fault(f"row {row}", message))
        self._append(row, self.owner.acquire(count, row // self._row_part))

    def adopt(self, row: int, pages: Sequence[Page]) -> None:
        """Share kept pages with a row without pages, as its first ones.

        Raises:
            SlotError: the row has pages, or a page was released or is on another device.
        """
        if self.owner is None or not pages:
            return
        devices = {self.device_of(page) for page in pages}
        if self._pages[row] or devices != {row // self._row_part}:
            message = (
                f"expected pages of device {row // self._row_part} and a row without pages, got pages of devices "
                f"{sorted(devices)} and a row with {len(self._pages[row])}"
            )
            raise SlotError(SlotFault.PLACES.fault(f"row {row}", message))
        self._append(row, [self.owner.share(page) for page in pages])

    def keep(self, row: int, block: int) -> Page:
        """Return a right, for `drop`, to a row's page; raises as `page`."""
        assert self.owner is not None
        self.page(row, block)
        page = self.owner.share(self._pages[row][block])
        self._kept[page] = None
        return page

    def drop(self, page: Page) -> None:
        """Give back a right of `keep`; raises SlotError for any other page."""
        assert self.owner is not None
        self.owner.release(page)
        del self._kept[page]

    def number(self, page: Page) -> int:
        """Return a page's number, over all devices; raises SlotError if it was released."""
        assert self.owner is not None
        return int(self.owner.bind([[page]], 1, 1)[0, 0])

    def device_of(self, page: Page) -> int:
        """Return a page's device; raises SlotError if it was released."""
        return self.number(page) // self._page_part

    def home_of(self, pages: Sequence[Page]) -> int | None:
        """Return the device of pages of one device; None without any."""
        return self.device_of(pages[0]) if pages else None

    def _append(self, row: int, added: Sequence[Page]) -> None:
        pages = self._pages[row]
        pages += added
        assert self.owner is not None
        # Numbers on the device; null pages are 0 everywhere.
        self._table[row, : len(pages)] = self.owner.bind([pages], 1, len(pages))[0] % np.int32(self._page_part)
        self._counts[row] = len(pages)

    def release(self, row: int) -> None:
        if self.owner is not None:
            pages, self._pages[row], self._table[row], self._counts[row] = self._pages[row], [], 0, 0
            for page in pages:
                self.owner.release(page)

    def reclaim(self) -> None:
        """Give up the pages that no row and no right of `keep` has."""
        if self.owner is not None:
            self.owner.reclaim()

    def table(self, rows: Sequence[int], used: Sequence[bool]) -> np.ndarray | None:
        """Return the page table of a step, int32 [lane, block]; None without a KV cache.

        Numbers count on the lane's device; 0, the null page, stands for missing pages and in idle lanes.

        Args:
            used: whether a sequence has the lane.
        """
        if self.owner is None:
            return None
        table = self._table[list(rows)]
        table[~np.array(used, bool)] = 0
        return frozen_copy(table)

    def page(self, row: int, block: int) -> int:
        """Return the number of a row's page, over all devices; raises SlotError without one."""
        if block >= self._counts[row]:
            message = f"expected a page of positions from {block * KV_BLOCK} on, it has {self._counts[row]} pages"
            raise SlotError(SlotFault.PLACES.fault(f"row {row}", message))
        return row // self._row_part * self._page_part + int(self._table[row, block])

    def require(self, rows: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> None:
        """Check that rows have all pages before `ends`, and alone hold written ones.

        Args:
            begins, ends: first written position and the end of each lane, int [lane]; end 0 without any.

        Raises:
            SlotError: a page is missing, or a written page is shared.
        """
        if self.owner is None:
            return
        ends = np.minimum(ends, self._blocks * KV_BLOCK)
        covered = self._counts[rows].astype(np.int64) * KV_BLOCK
        wrong = np.flatnonzero(ends > covered)
        if len(wrong):
            messages = [
                (f"lane {lane}, row {rows[lane]}", f"writes up to position {ends[lane]}, has pages for {covered[lane]}")
                for lane in wrong
            ]
            raise SlotError(*(SlotFault.PLACES.fault(where, message) for where, message in messages), where="pages")
        if not self.owner.shared:
            return
        first, last = np.maximum(begins, 0) // KV_BLOCK, -(-ends // KV_BLOCK)
        places = first[:, None] + np.arange(max(int((last - first).max(initial=0)), 0))
        table = self._table[rows[:, None], np.minimum(places, self._blocks - 1)]
        self.owner.require_one_holder(table + rows[:, None] // self._row_part * self._page_part, places < last[:, None])

    def check_integrity(self, held: Sequence[int]) -> None:
        """Check that each page is free, kept, or held by rows with it.

        Raises:
            SlotError: with every fault.
        """
        if self.owner is None:
            return
        self.owner.check_integrity()
        table = self.owner.bind(self._pages, len(self._pages), self._blocks)
        counts = np.array([len(pages) for pages in self._pages])
        wrong = [row for row, pages in enumerate(self._pages) if pages and row not in held]
        wrong += np.flatnonzero(
            (table % np.int32(self._page_part) != self._table).any(axis=1) | (counts != self._counts)
        ).tolist()
        kept_pages = self.owner.bind([list(self._kept)], 1, len(self._kept))
        numbers = np.concatenate([table[table > 0], kept_pages.ravel()])
        holders = np.bincount(numbers, minlength=self.owner.size)
        expected = self.owner.counts()
        rights = len({page for pages in (*self._pages, self._kept) for page in pages})
        unequal = np.flatnonzero(holders != expected).tolist()
        if wrong or unequal or rights != len(numbers):
            message = (
                f"rows {wrong} are free and have pages, or have others than their tables name; pages {unequal} have "
                f"{expected[unequal].tolist()} holders, {holders[unequal].tolist()} in rows and kept; {rights} rights "
                f"to {len(numbers)} places"
            )
            raise SlotError(SlotFault.STATES.fault("", message), where="pages")
