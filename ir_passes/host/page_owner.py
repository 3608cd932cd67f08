"""The host's owner of a paged cache's pages.

`PageOwner` allocates pages and counts their holders, so that the assumptions of `contract.PageTable` are true: pages
are in range, written only by the single lane that names them, never the null page, and read-only if several lanes name
them.
"""

import threading
import weakref
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from ir_passes.contract.entries import PageTable
from ir_passes.contract.statements import Statement
from ir_passes.host.page_tables import page_faults
from ir_passes.host.slot_owner import OneHolder, SlotError, SlotFault, SlotsExhausted, frozen_copy


class Page(OneHolder):
    """The right to use a page, from `PageOwner.acquire` or `share`."""

    __slots__ = ("_number", "_owner")
    _instead = "use PageOwner.share for another one"

    def __init__(self, owner: "PageOwner", number: int):
        self._owner, self._number = owner, number

    def __repr__(self) -> str:
        return f"page {self._number} of {self._owner.name!r}"


class PageOwner:
    """Thread-safe allocator of pages: the longest free page first, and shared pages are read-only.

    A page with several holders, for example of a prefix, is writable again for the last holder.

    Args:
        size: pages of a pool, page 0 included (`PageTable.size`).
        name: groups of pools, for messages.
        null: page 0 is the null page and never allocated (`PageTable.null`).
        parts: equal parts of consecutive pages, one per device; the first page of each is its null page.

    Attributes:
        shared: number of pages with several holders.

    Raises:
        SlotError: no page of a part could be allocated, or the parts are not equal.
    """

    def __init__(self, size: int, name: str = "pages", null: bool = True, parts: int = 1):
        if size % parts or size // parts < 1 + null:
            each = "" if parts == 1 else f", in {parts} equal parts"
            message = f"expected a size of at least {parts * (1 + null)}{each}, got {size}"
            raise SlotError(SlotFault.SIZE.fault(f"pages of {name!r}", message))
        self.size, self.name, self.null, self.parts = size, name, null, parts
        self._lock, self._each = threading.Lock(), size // parts
        self._free = [deque(range(begin + null, begin + self._each)) for begin in range(0, size, self._each)]
        self._holders: dict[int, list[weakref.ref[Page]]] = {}
        self._counts = np.zeros(size, np.int32)  # holders of each page, to check whole tables at once
        self.shared = 0

    @classmethod
    def of(cls, table: PageTable) -> "PageOwner":
        return cls(table.size, ", ".join(table.names), table.null)

    @property
    def free(self) -> int:
        with self._lock:
            return sum(map(len, self._free))

    def free_in(self, part: int) -> int:
        """Return the number of free pages of a part."""
        with self._lock:
            return len(self._free[part])

    def acquire(self, count: int = 1, part: int = 0) -> list[Page]:
        """Take `count` free pages of a part with earlier values, or raise SlotsExhausted."""
        with self._lock:
            free = self._free[part]
            if count > len(free):
                where = "" if self.parts == 1 else f" of part {part}"
                message = f"expected {count} free, {len(free)} of {self._each - self.null}{where} are; release some"
                raise SlotsExhausted(SlotFault.EXHAUSTED.fault(f"pages of {self.name!r}", message))
            return [self._issue(free.popleft()) for _ in range(count)]

    def share(self, page: Page) -> Page:
        """Return another right to a page; raises SlotError for a released or foreign page."""
        with self._lock:
            self._raise(f"share of {page!r}", self._faults("page", page))
            return self._issue(page._number)

    def release(self, page: Page) -> None:
        """Give a page up; raises SlotError for a released or foreign page."""
        with self._lock:
            self._raise(f"release of {page!r}", self._faults("page", page))
            self._keep(page._number, [holder for holder in self._holders[page._number] if holder() is not page])

    def reclaim(self) -> list[int]:
        """Give up the pages of tokens that were dropped without release; return their numbers."""
        with self._lock:
            alive = {page: [token for token in tokens if token() is not None] for page, tokens in self._holders.items()}
            lost = [page for page, tokens in alive.items() if len(tokens) < self._counts[page]]
            for page in lost:
                self._keep(page, alive[page])
            return lost

    def _keep(self, page: int, holders: "list[weakref.ref[Page]]") -> None:
        """Set the remaining holders of a page; free it without any."""
        self.shared -= int(self._counts[page]) > 1 >= len(holders)
        self._counts[page], self._holders[page] = len(holders), holders
        if not holders:
            del self._holders[page]
            self._free[page // self._each].append(page)

    def holders(self, page: Page) -> int:
        with self._lock:
            self._raise(f"holders of {page!r}", self._faults("page", page))
            return int(self._counts[page._number])

    def counts(self) -> np.ndarray:
        """Return the number of holders of each page, int32 [size]."""
        with self._lock:
            return frozen_copy(self._counts)

    def require_one_holder(self, table: np.ndarray, written: np.ndarray) -> None:
        """Check that the written pages of a step have one holder each.

        Args:
            table: page numbers, int [lane, place], counted over all parts.
            written: bool [lane, place].

        Raises:
            SlotError: a written page has several holders, or none.
        """
        with self._lock:
            counts = self._counts[table]
            wrong = written & (counts != 1)
            if wrong.any():
                faults = [
                    (SlotFault.SHARED if counts[lane, place] else SlotFault.RELEASED).fault(
                        f"lane {lane}, page {table[lane, place]}",
                        f"would be written and has {counts[lane, place]} holders, expected 1; share full pages only",
                    )
                    for lane, place in np.argwhere(wrong).tolist()
                ]
                self._raise("written pages", faults)

    def bind(
        self,
        rows: Sequence[Sequence[Page] | None],
        lanes: int,
        pages: int,
        writes: Sequence[tuple[int, int]] | None = None,
    ) -> np.ndarray:
        """Return a step's page table, int32 [lanes, pages]; 0 after a lane's last page.

        The array is new and immutable; pages are counted over all parts.

        Args:
            rows: pages of each lane in token order; None if idle.
            pages: table width.
            writes: per lane, written places [first, end) in its row; None only reads.

        Raises:
            SlotError: all faults: wrong numbers of lanes or pages, released or foreign pages, or written pages that are
                shared or in another lane's row.
        """
        with self._lock:
            faults: list[Statement] = []
            if len(rows) != lanes:
                message = f"expected pages for each of {lanes} lanes, got {len(rows)}"
                faults.append(SlotFault.LANES.fault("", message))
            table = np.zeros((len(rows), pages), np.int32)
            for lane, row in enumerate(rows):
                lane_pages = row or ()
                lane_faults = [
                    fault
                    for place, page in enumerate(lane_pages)
                    for fault in self._faults(f"lane {lane}, page {place}", page)
                ]
                if len(lane_pages) > pages:
                    message = f"expected at most {pages} pages, got {len(lane_pages)}"
                    lane_faults.append(SlotFault.PLACES.fault(f"lane {lane}", message))
                faults += lane_faults
                if not lane_faults:
                    table[lane, : len(lane_pages)] = [page._number for page in lane_pages]
                    if len(lane_pages) < pages and not self.null:
                        message = f"{len(lane_pages)} of {pages} pages, and there is no null page for the others"
                        faults.append(SlotFault.NO_NULL_ROW.fault(f"lane {lane}", message))
            if writes is not None and not faults:
                faults += self._write_faults(table, writes)
            self._raise(f"bind of {lanes} lanes", faults)
        return frozen_copy(table)

    def check_integrity(self) -> None:
        """Check that every page is exactly one of: null page (if any), free, held."""
        with self._lock:
            nulls = list(range(0, self.size, self._each)) if self.null else []
            free = [page for part in self._free for page in part]
            counts = Counter([*nulls, *free, *self._holders])
            wrong = {page: counts[page] for page in {*range(self.size), *counts} if counts[page] != 1}
            lost = sorted(page for page, tokens in self._holders.items() if any(token() is None for token in tokens))
            terms = f"{len(nulls)} + {len(free)} + {len(self._holders)} of {self.size}, pages by times found: {wrong}"
            message = f"expected null + free + held = size, each page once; got {terms}"
            faults = [SlotFault.STATES.fault("", message)] if wrong else []
            holders = np.zeros(self.size, np.int32)
            holders[list(self._holders)] = [len(tokens) for tokens in self._holders.values()]
            if (holders != self._counts).any() or self.shared != (holders > 1).sum():
                pages = np.flatnonzero(holders != self._counts).tolist()
                message = (
                    f"expected the holders {holders[pages].tolist()}, counted {self._counts[pages].tolist()}; "
                    f"{(holders > 1).sum()} pages have several, counted {self.shared}"
                )
                faults.append(SlotFault.STATES.fault(f"pages {pages}", message))
            if lost:
                message = "they are held by tokens that no longer exist; release a page before dropping it"
                faults.append(SlotFault.DROPPED.fault(f"pages {lost}", message))
            self._raise("integrity", faults)

    def _write_faults(self, table: np.ndarray, writes: Sequence[tuple[int, int]]) -> list[Statement]:
        if len(writes) != len(table):
            message = f"expected places to write for each of {len(table)} lanes, got {len(writes)}"
            return [SlotFault.LANES.fault("", message)]
        mask = np.zeros(table.shape, bool)
        faults: list[Statement] = []
        for lane, (first, end) in enumerate(writes):
            if not 0 <= first <= end <= table.shape[1]:
                message = f"writes to places [{first}, {end}) of {table.shape[1]}"
                faults.append(SlotFault.PLACES.fault(f"lane {lane}", message))
                continue
            mask[lane, first:end] = True
            shared = [int(page) for page in table[lane, first:end] if self._counts[page] > 1]
            faults += [
                SlotFault.SHARED.fault(f"lane {lane}", f"page {page} is shared, and would be written")
                for page in shared
            ]
        return faults or page_faults([(PageTable(self.name, self.size, null=self.null), table, mask)])

    def _issue(self, number: int) -> Page:
        page = Page(self, number)
        self._holders.setdefault(number, []).append(weakref.ref(page))
        self._counts[number] += 1
        self.shared += int(self._counts[number] == 2)
        return page

    def _faults(self, where: str, page: Page) -> list[Statement]:
        if not isinstance(page, Page):
            message = f"expected a page of {self.name!r}, got {page!r}; pages are not given by number"
            return [SlotFault.NO_TOKEN.fault(where, message)]
        if page._owner is not self:
            message = f"{page!r} belongs to another owner; expected one of {self.name!r} ({self.size} pages)"
            return [SlotFault.FOREIGN.fault(where, message)]
        if any(holder() is page for holder in self._holders.get(page._number, ())):
            return []
        return [SlotFault.RELEASED.fault(where, f"{page!r} was released; acquire another one")]

    def _raise(self, action: str, faults: list[Statement]) -> None:
        if faults:
            raise SlotError(*faults, where=f"pages of {self.name!r}, {action}")
