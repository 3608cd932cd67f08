"""The host's owner of pages keeps `PageTable`'s promises and raises at violations."""

import copy
import gc

import numpy as np
import pytest

from ir_passes import PageTable
from ir_passes.host.page_owner import PageOwner
from ir_passes.host.page_tables import check_page_tables, written_places
from ir_passes.host.slot_faults import SlotError, SlotFault, SlotsExhausted

ENTRY = PageTable("kv", 8)
TABLE = np.array([[1, 2, 0], [1, 3, 4]], np.int32)


def owner() -> PageOwner:
    return PageOwner.of(ENTRY)


def test_pages_are_handed_out_once_and_come_back() -> None:
    pages = owner()
    slot = pages.acquire(7)
    assert sorted(pages.bind([slot], 1, 7)[0].tolist()) == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(SlotsExhausted):
        pages.acquire()
    pages.release(slot[0])
    assert pages.free == 1
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.RELEASED,)):
        pages.bind([slot], 1, 7)
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.RELEASED,)):
        pages.release(slot[0])


def test_bound_table_is_immutable_and_null_behind_the_pages() -> None:
    pages = owner()
    table = pages.bind([pages.acquire(2), None], 2, 3)
    assert table.tolist() == [[1, 2, 0], [0, 0, 0]]
    with pytest.raises(ValueError, match="read-only"):
        table[0, 0] = 3


def test_shared_page_is_read_only_until_one_holder_is_left() -> None:
    pages = owner()
    prefix, actual, yours = *pages.acquire(1), pages.acquire(1), pages.acquire(1)
    repeat = pages.share(prefix)
    rows = [[prefix, *actual], [repeat, *yours]]
    assert pages.bind(rows, 2, 2, writes=[(1, 2), (1, 2)]).tolist() == [[1, 2], [1, 3]]
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.SHARED,)):
        pages.bind(rows, 2, 2, writes=[(0, 1), (1, 2)])
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.SHARED,)):
        pages.bind([[prefix, *actual]], 1, 2, writes=[(0, 1)])
    pages.release(repeat)
    assert pages.bind([[prefix, *actual]], 1, 2, writes=[(0, 1)]).tolist() == [[1, 2]]


def test_holders_are_counted() -> None:
    pages = owner()
    first, second, third = pages.acquire(3)
    others = [pages.share(second), pages.share(second)]
    assert [pages.holders(page) for page in (first, second, others[0], third)] == [1, 3, 3, 1]
    assert pages.counts().tolist() == [0, 1, 3, 1, 0, 0, 0, 0] and pages.shared == 1
    pages.release(second)
    assert pages.holders(others[0]) == 2 and pages.shared == 1 and pages.free == 4
    pages.release(others[1])
    assert pages.shared == 0
    pages.check_integrity()
    for again in (second, others[1]):
        with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.RELEASED,)):
            pages.release(again)
        with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.RELEASED,)):
            pages.share(again)
    assert pages.counts().tolist() == [0, 1, 1, 1, 0, 0, 0, 0]
    pages.release(others[0])
    assert pages.free == 5 and not pages.counts()[2]
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.RELEASED,)):
        pages.holders(others[0])
    pages._holders[1] = 2
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.STATES,)):
        pages.check_integrity()


def test_pages_of_dropped_tokens_are_reclaimed() -> None:
    pages = PageOwner(6)
    (kept, dropped), (shared,) = pages.acquire(2), pages.acquire(1)
    second = pages.share(shared)
    numbers = pages.bind([[dropped, shared]], 1, 2)[0].tolist()
    del dropped, second
    gc.collect()
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.DROPPED,)):
        pages.check_integrity()
    assert sorted(pages.reclaim()) == sorted(numbers) and pages.reclaim() == []
    pages.check_integrity()
    assert pages.free == 3 and pages.shared == 0 and pages.holders(shared) == pages.holders(kept) == 1


def test_written_pages_of_a_table_have_one_holder() -> None:
    """Every fault of a table is reported, with lane and page."""
    pages = owner()
    first, second, third = pages.acquire(3)
    pages.share(second)
    table = np.array([[1, 2, 0], [3, 2, 4]])
    pages.require_one_holder(table, np.array([[True, False, False], [True, False, False]]))
    pages.require_one_holder(table, np.zeros((2, 3), bool))
    with pytest.raises(SlotError, match="lane 1, page 2: .* has 2 holders") as error:
        pages.require_one_holder(table, np.array([[True, True, False], [False, True, True]]))
    assert error.value.ids == (SlotFault.SHARED, SlotFault.SHARED, SlotFault.RELEASED)
    assert [page is not None for page in (first, third)] == [True, True]


def test_one_page_of_two_lanes_is_not_written() -> None:
    pages = owner()
    slot = pages.acquire(2)
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.SHARED,)):
        pages.bind([slot, slot[:1]], 2, 2, writes=[(0, 1), (1, 1)])


def test_null_page_is_not_written() -> None:
    pages = owner()
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.NULL_PAGE,)):
        pages.bind([pages.acquire(1)], 1, 2, writes=[(1, 2)])


def test_foreign_and_copied_pages() -> None:
    pages, rest = owner(), owner()
    (page,) = rest.acquire()
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.FOREIGN,)):
        pages.bind([[page]], 1, 1)
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.NO_TOKEN,)):
        pages.bind([[1]], 1, 1)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(page)


def test_tables_of_another_allocator() -> None:
    writes = written_places(np.array([5, 8]), np.array([1, 2]), tokens=4, pages=3)
    assert writes.tolist() == [[False, True, False], [False, False, True]]
    check_page_tables([(ENTRY, TABLE, writes)])
    first = written_places(np.array([3, 8]), np.array([2, 0]), tokens=4, pages=3)
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.SHARED,)):
        check_page_tables([(ENTRY, TABLE, first)])
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.NULL_PAGE,)):
        check_page_tables([(ENTRY, TABLE, written_places(np.array([8, 0]), np.array([1, 0]), tokens=4, pages=3))])
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.RANGE,)):
        check_page_tables([(ENTRY, np.array([[9]]), None)])
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.PLACES,)):
        written_places(np.array([11]), np.array([2]), tokens=4, pages=3)


def test_rows_next_to_pages() -> None:
    """A slot mapping: rows in flat pools next to a page table."""
    read, write = PageTable("kv", 8, page_size=4, role="read"), PageTable("kv", 32, role="write")
    check_page_tables([(read, TABLE, None), (write, np.array([9, 32], np.int32), None)])
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.SHARED,)):
        check_page_tables([(read, TABLE, None), (write, np.array([32, 9], np.int32), None)])
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.NULL_PAGE,)):
        check_page_tables([(read, TABLE, None), (write, np.array([2, 32], np.int32), None)])
