"""Pages of rows: allocated in growth, freed, listed in tables, and checked."""

import random
from typing import Any

import numpy as np
import pytest
from row_pools import BLOCKS, row_pool

from hybridlm.compiler.host import Slot, SlotsExhausted
from hybridlm.rows.pool import RowPool
from ir_passes import SlotError, SlotFault
from models import KV_BLOCK


def fault(kind: SlotFault) -> Any:
    return pytest.raises(SlotError, check=lambda error: error.ids == (kind,))


def tables(pool: RowPool, slots: list[Slot]) -> list[list[int]]:
    """The pages of each row over all devices, from the table of a step."""
    places, lane_map = pool.arrange(slots, pool.size)
    assert lane_map.pages is not None
    each = pool.pages // pool.devices
    return [
        [int(page) + pool.devices_of([slot])[0] * each for page in lane_map.pages[place] if page]
        for slot, place in zip(slots, places, strict=True)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_random_sequences_have_their_pages_alone(seed: int) -> None:
    """Compare with page counts by device: rows have enough, pages are exclusive, none lost."""
    rng = random.Random(seed)
    devices = rng.choice((1, 2, 4))
    free = [rng.randint(2, 5)] * devices
    pool = row_pool(4 * devices, devices, pages=devices + sum(free))
    total, rows, held = sum(free), [4] * devices, dict[Slot, int]()
    for _ in range(200):
        slot, positions = rng.choice([None, *held]), rng.randint(0, 2 * KV_BLOCK)
        if slot is None:
            needed = -(-positions // KV_BLOCK)
            fitting = [device for device in range(devices) if rows[device] and free[device] >= needed]
            assert sorted(pool.devices_for(positions)) == fitting
            if not fitting:
                with pytest.raises(SlotsExhausted):
                    pool.acquire(positions)
                continue
            slot = pool.acquire(positions)
            device = pool.devices_of([slot])[0]
            assert rows[device] == max(rows[each] for each in fitting)
            held[slot], rows[device], free[device] = needed, rows[device] - 1, free[device] - needed
        elif rng.random() < 0.4:
            device = pool.devices_of([slot])[0]
            pool.release(slot)
            rows[device], free[device] = rows[device] + 1, free[device] + held.pop(slot)
        else:
            device, needed = pool.devices_of([slot])[0], max(held[slot], -(-positions // KV_BLOCK))
            assert pool.missing([slot], [positions]) == [needed - held[slot]]
            if free[device] >= needed - held[slot]:
                pool.reserve(slot, positions)
                free[device], held[slot] = free[device] - needed + held[slot], needed
            else:
                with pytest.raises(SlotsExhausted):
                    pool.reserve(slot, positions)
        pool.check_integrity()
        named = tables(pool, list(held))
        assert [len(pages) for pages in named] == list(held.values())
        pages = [page for row in named for page in row]
        assert len(set(pages)) == len(pages) == total - sum(free)
        assert all(page % (pool.pages // devices) for page in pages), "never a null page"


def test_a_row_keeps_its_pages_as_it_grows() -> None:
    pool = row_pool(4)
    first, second = pool.acquire(100), pool.acquire(1)
    before = tables(pool, [first, second])
    pool.reserve(first, KV_BLOCK)
    assert tables(pool, [first, second]) == before
    pool.reserve(first, KV_BLOCK + 1)
    after = tables(pool, [first, second])
    assert after[0][:1] == before[0] and len(after[0]) == 2 and after[1] == before[1]
    with fault(SlotFault.PLACES):
        pool.reserve(first, 2 * KV_BLOCK + 1)
    with fault(SlotFault.PLACES):
        pool.page(second, 1)


def test_a_step_writes_within_the_pages_of_its_rows() -> None:
    pool = row_pool(4)
    slot = pool.acquire(KV_BLOCK)
    rows = np.array(pool.rows_of([slot]) + [3])
    nothing = np.zeros(2, int)
    pool.require_pages(rows, nothing, np.array([KV_BLOCK, 0]))
    with fault(SlotFault.PLACES):
        pool.require_pages(rows, nothing, np.array([KV_BLOCK + 1, 0]))
    with fault(SlotFault.PLACES):
        pool.require_pages(rows, nothing, np.array([1, 1]))
    pool.reserve(slot, 2 * KV_BLOCK)
    # Behind the context nothing is written.
    pool.require_pages(rows, nothing, np.array([2 * KV_BLOCK + 9, 0]))


@pytest.mark.parametrize("devices", [1, 2])
def test_a_shared_page_is_read_only_for_all_its_rows(devices: int) -> None:
    """From the first row's reading until the last holder but one has gone."""
    pool = row_pool(2 * devices, devices)
    first = pool.acquire(2 * KV_BLOCK, devices - 1)
    kept = pool.keep_page(first, 0)
    second = pool.acquire(2 * KV_BLOCK, devices - 1, [kept])
    rows, (pages, other_pages) = np.array(pool.rows_of([first, second])), tables(pool, [first, second])
    assert pages[0] == other_pages[0] and pages[1] != other_pages[1]
    assert pool.page(second, 0) == pages[0] == pool.page_number(kept)

    def writes(begin: int, other_begin: int) -> None:
        pool.require_pages(rows, np.array([begin, other_begin]), np.array([begin + 1, other_begin + 1]))

    def refused(begin: int, other_begin: int) -> None:
        with fault(SlotFault.SHARED):
            writes(begin, other_begin)

    writes(KV_BLOCK, KV_BLOCK)
    pool.require_pages(rows, np.array([0, 0]), np.array([0, 0]))
    refused(KV_BLOCK - 1, KV_BLOCK)
    refused(KV_BLOCK, KV_BLOCK - 1)
    with fault(SlotFault.SHARED):
        pool.require_pages(rows, np.array([0, KV_BLOCK]), np.array([KV_BLOCK + 1, KV_BLOCK + 1]))
    pool.check_integrity()
    pool.release(first)
    pool.check_integrity()
    assert pool.devices_for(2 * KV_BLOCK, [kept])[0] == devices - 1
    rows = np.array(pool.rows_of([second, second][:1]) * 2)
    refused(KV_BLOCK - 1, KV_BLOCK)
    pool.drop_page(kept)
    writes(KV_BLOCK - 1, KV_BLOCK)
    pool.release(second)
    assert [pool.free_pages(device) for device in range(devices)] == [2 * BLOCKS] * devices
    pool.check_integrity()
    with fault(SlotFault.RELEASED):
        pool.drop_page(kept)
    with fault(SlotFault.RELEASED):
        pool.acquire(KV_BLOCK, devices - 1, [kept])


def test_pages_are_shared_with_new_rows_of_their_device() -> None:
    pool = row_pool(4, 2)
    slot, other = pool.acquire(KV_BLOCK, 0), pool.acquire(KV_BLOCK, 1)
    kept = pool.keep_page(slot, 0)
    with fault(SlotFault.PLACES):
        pool._grow(pool.rows_of([slot])[0], 0, [kept])
    pool._release_pages(pool.rows_of([other])[0])
    with fault(SlotFault.PLACES):
        pool._grow(pool.rows_of([other])[0], 0, [kept])
    with fault(SlotFault.PLACES):
        pool.keep_page(slot, 1)
    far = pool.acquire(KV_BLOCK, 1, [kept])  # a page of its own, for a copy
    assert pool.page(far, 0) // (pool.pages // 2) == 1
    pool.vacate()
    assert pool.free_pages(0) == 2 * BLOCKS - 1, "a kept page outlives its row"
    pool.check_integrity()


def test_a_pool_without_a_kv_cache_has_no_pages() -> None:
    pool = row_pool(4, pages=0)
    slot = pool.acquire(10**6)
    pool.reserve(slot, 10**7)
    assert pool.arrange([slot], 2)[1].pages is None and pool.devices_for(10**9) == [0]
    pool.require_pages(np.array([0]), np.array([0]), np.array([10**6]))
    pool.check_integrity()
    pool.release(slot)


@pytest.mark.parametrize(
    "kind",
    ["released page", "page of another row", "old table", "pages of a free row", "lost", "kept and lost", "not kept"],
)
def test_integrity_finds_every_fault(kind: str) -> None:
    pool = row_pool(4)
    first, second = pool.acquire(200), pool.acquire(100)
    row, other = pool.rows_of([first, second])
    kept = pool.keep_page(first, 0)
    pool.check_integrity()
    change: dict[str, Any] = {
        "released page": lambda: pool.page_owner.release(pool._row_pages[row][0]),  # type: ignore[union-attr]
        "page of another row": lambda: pool._row_pages[other].append(pool._row_pages[row][1]),
        "old table": lambda: pool._table.__setitem__((row, 1), 0),
        "pages of a free row": lambda: pool.owner.release(first),
        "lost": lambda: pool._row_pages[row].pop(),
        "kept and lost": lambda: pool._kept.clear(),
        "not kept": lambda: pool.page_owner.release(kept),  # type: ignore[union-attr]
    }
    change[kind]()
    with pytest.raises(ValueError):
        pool.check_integrity()


def test_rows_are_reclaimed_when_no_traceback_holds_them() -> None:
    """The pool is whole again when the last dropped row is found; rows of sequences stay."""
    pool = row_pool(3)
    row, lost = pool.acquire(KV_BLOCK), pool.acquire(2 * KV_BLOCK)
    assert not pool.reclaim(1) and len(pool.owner.held) == 2
    del lost
    assert pool.reclaim(1) and len(pool.owner.held) == 1 and pool.free_pages(0) == 5
    pool.check_integrity()
    pool.release(row)
