"""The host's owner of a paged cache's pages.

`PageOwner` allocates pages and counts their holders, so that the assumptions of `contract.PageTable` are true: pages
are in range, written only by the single lane that names them, never the null page, and read-only if several lanes name
them.
"""

from collections.abc import Sequence

import numpy as np

from ir_passes.contract.entries import PageTable
from ir_passes.contract.statements import Statement
from ir_passes.host.page_tables import page_faults
from ir_passes.host.slot_faults import SlotError, SlotFault, SlotsExhausted
from ir_passes.host.slot_owner import Right, RowOwner, frozen_copy


class Page(Right):
    """The right to use a page, from `PageOwner.acquire` or `share`."""

    __slots__ = ()
    _instead = "use PageOwner.share for another one"

    def __repr__(self) -> str:
        return f"page {self._row} of {self._owner.name!r}"


class PageOwner(RowOwner[Page]):
    """Thread-safe allocator of pages: the longest free page first, and shared pages are read-only.

    A page with several holders, for example of a prefix, is writable again for the last holder.

    Args:
        size: pages of a pool, page 0 included (`PageTable.size`).
        name: groups of pools, for messages.
        null: page 0 is the null page and never allocated (`PageTable.null`).
        parts: equal parts of consecutive pages, one per device; the first page of each is its null page.

    Raises:
        SlotError: no page of a part could be allocated, or the parts are not equal.
    """

    _kind, _noun, _rows = Page, "page", "pages"
    _texts = {
        SlotFault.NO_TOKEN: "expected a page of {name!r}, got {right!r}; pages are not given by number",
        SlotFault.FOREIGN: "{right!r} belongs to another owner; expected one of {name!r} ({size} pages)",
        SlotFault.RELEASED: "{right!r} was released; acquire another one",
        SlotFault.STATES: (
            "expected null + free + held = size, each page once; got {numbers} of {size}, pages by times found: {wrong}"
        ),
    }

    def __init__(self, size: int, name: str = "pages", null: bool = True, parts: int = 1):
        if size % parts or size // parts < 1 + null:
            each = "" if parts == 1 else f", in {parts} equal parts"
            message = f"expected a size of at least {parts * (1 + null)}{each}, got {size}"
            raise SlotError(SlotFault.SIZE.fault(f"pages of {name!r}", message))
        super().__init__(size, name, null, parts)

    @classmethod
    def of(cls, table: PageTable) -> "PageOwner":
        return cls(table.size, ", ".join(table.names), table.null)

    @property
    def shared(self) -> int:
        """Number of pages with several holders."""
        return int((self._holders > 1).sum())

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
            return self._issue(self._row_of("share", page))

    def holders(self, page: Page) -> int:
        with self._lock:
            return int(self._holders[self._row_of("holders", page)])

    def counts(self) -> np.ndarray:
        """Return the number of holders of each page, int32 [size]."""
        with self._lock:
            return frozen_copy(self._holders)

    def require_one_holder(self, table: np.ndarray, written: np.ndarray) -> None:
        """Check that the written pages of a step have one holder each.

        Args:
            table: page numbers, int [lane, place], counted over all parts.
            written: bool [lane, place].

        Raises:
            SlotError: a written page has several holders, or none.
        """
        with self._lock:
            counts = self._holders[table]
            wrong = written & (counts != 1)
            if wrong.any():
                faults = [
                    (SlotFault.SHARED if counts[lane, place] else SlotFault.RELEASED).fault(
                        f"lane {lane}, page {table[lane, place]}",
                        f"would be written and has {counts[lane, place]} holders, expected 1; share full pages only",
                    )
                    for lane, place in np.argwhere(wrong).tolist()
                ]
                raise self._error("written pages", faults)

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
                    self._fault(f"lane {lane}, page {place}", page)
                    for place, page in enumerate(lane_pages)
                    if not self._has(page)
                ]
                if len(lane_pages) > pages:
                    message = f"expected at most {pages} pages, got {len(lane_pages)}"
                    lane_faults.append(SlotFault.PLACES.fault(f"lane {lane}", message))
                faults += lane_faults
                if not lane_faults:
                    table[lane, : len(lane_pages)] = [page._row for page in lane_pages]
                    if len(lane_pages) < pages and not self.null:
                        message = f"{len(lane_pages)} of {pages} pages, and there is no null page for the others"
                        faults.append(SlotFault.NO_NULL_ROW.fault(f"lane {lane}", message))
            if writes is not None and not faults:
                faults += self._write_faults(table, writes)
            if faults:
                raise self._error(f"bind of {lanes} lanes", faults)
        return frozen_copy(table)

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
            shared = [int(page) for page in table[lane, first:end] if self._holders[page] > 1]
            faults += [
                SlotFault.SHARED.fault(f"lane {lane}", f"page {page} is shared, and would be written")
                for page in shared
            ]
        return faults or page_faults([(PageTable(self.name, self.size, null=self.null), table, mask)])
