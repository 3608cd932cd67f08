"""Lanes of a step and rows of a pool: assignment, and tokens consumed per row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridlm.rows.pool import RowPool, RowsLost
from hybridlm.steps.structure import Rows
from ir_passes import SlotError, SlotFault
from ir_passes.host.slot_faults import SlotsExhausted
from ir_passes.host.slot_owner import Slot
from models import KV_BLOCK

BLOCKS = 2
"""Pages of a row."""


def pool_of(size: int, devices: int = 1, pages: int | None = None) -> RowPool:
    token: Any = np.zeros((size, 1), np.int32)
    return RowPool(Rows((), token), devices + size * BLOCKS if pages is None else pages, BLOCKS, devices)


def acquired(pool: RowPool, rows: Sequence[int]) -> list[Slot]:
    """Return slots of these rows, in this order; all other rows are free."""
    slots = [pool.acquire(BLOCKS * KV_BLOCK) for _ in range(pool.size)]
    by_row = dict(zip(pool.rows_of(slots), slots, strict=True))
    for row in set(by_row) - set(rows):
        pool.release(by_row[row])
    return [by_row[row] for row in rows]


def fault(kind: SlotFault) -> Any:
    return pytest.raises(SlotError, check=lambda error: error.ids == (kind,))


@st.composite
def arrangements(draw: st.DrawFn) -> tuple[int, int, list[int], int]:
    """Draw devices, rows per device, sequences' rows in any order, and sufficient lanes."""
    devices, each = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    rows = draw(st.lists(st.integers(0, devices * each - 1), unique=True))
    fullest = max([1, *(sum(row // each == device for row in rows) for device in range(devices))])
    return devices, each, rows, draw(st.integers(fullest, each))


@given(arrangements())
def test_sequences_have_lanes_on_their_devices_and_lanes_distinct_rows(
    arrangement: tuple[int, int, list[int], int],
) -> None:
    devices, each, rows, lanes = arrangement
    pool = pool_of(devices * each, devices)
    places, lane_map = pool.arrange(acquired(pool, rows), devices * lanes)
    numbers = lane_map.rows.tolist()
    assert [numbers[place] for place in places] == rows
    assert len(numbers) == devices * lanes and len(set(numbers)) == len(numbers)
    for lane, row in enumerate(numbers):
        assert row // each == lane // lanes and lane_map.slots[lane] == row % each
    assert lane_map.rows.dtype == lane_map.slots.dtype == np.int32


@given(arrangements())
def test_as_many_lanes_as_rows_have_the_rows_of_their_numbers(arrangement: tuple[int, int, list[int], int]) -> None:
    devices, each, rows, _ = arrangement
    pool = pool_of(devices * each, devices)
    places, lane_map = pool.arrange(acquired(pool, rows), pool.size)
    assert places == rows and lane_map.rows.tolist() == list(range(pool.size))
    assert lane_map.slots.tolist() == list(range(each)) * devices


@given(arrangements())
def test_lanes_that_are_needed_are_enough_and_no_fewer(arrangement: tuple[int, int, list[int], int]) -> None:
    devices, each, rows, _ = arrangement
    pool = pool_of(devices * each, devices)
    slots = acquired(pool, rows)
    needed = pool.lanes_for(slots)
    pool.arrange(slots, needed)
    most = max((pool.devices_of(slots).count(device) for device in range(devices)), default=0)
    assert needed == devices * most
    if rows:
        with fault(SlotFault.LANES):
            pool.arrange(slots, needed - devices)


@pytest.mark.parametrize("lanes", [3, 10, 1])
def test_lanes_are_equal_on_all_devices_and_at_most_the_rows(lanes: int) -> None:
    with fault(SlotFault.LANES):
        pool_of(8, 2).arrange((), lanes)


def test_lanes_have_immutable_rows() -> None:
    pool = pool_of(4)
    _, lane_map = pool.arrange([pool.acquire(100)], 2)
    for array in lane_map:
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 3
        with pytest.raises(ValueError):
            array.setflags(write=True)


def test_only_live_distinct_slots_have_lanes() -> None:
    pool, other = pool_of(4), pool_of(4)
    slot, released, foreign = pool.acquire(), pool.acquire(), other.acquire()
    pool.owner.release(released)
    wrong: list[tuple[list[Any], SlotFault]] = [
        ([slot, slot], SlotFault.SHARED), ([released], SlotFault.RELEASED), ([foreign], SlotFault.FOREIGN),
        ([0], SlotFault.NO_TOKEN), ([None], SlotFault.NO_NULL_ROW),
    ]  # fmt: skip
    for slots, kind in wrong:
        for use in (pool.rows_of, pool.lanes_for, lambda slots: pool.arrange(slots, 4)):
            with fault(kind):
                use(slots)


def test_tokens_are_counted_by_row() -> None:
    pool = pool_of(4)
    first, second, third = (pool.acquire() for _ in range(3))
    pool.advance(np.array([2, 0, 3]), np.array([5, 7, 0]))
    assert [pool.consumed(slot) for slot in (first, second, third)] == [7, 0, 5]
    pool.owner.release(first)
    fresh = [pool.acquire(), pool.acquire()]
    assert [pool.consumed(slot) for slot in fresh] == [0, 0]
    pool.moved(second, 11)
    pool.advance(np.array([1]), np.array([1]))
    assert pool.consumed(second) == 12


def test_a_count_is_unknown_until_the_step_that_decides_it_is_read() -> None:
    pool = pool_of(4)
    first, second, third = (pool.acquire() for _ in range(3))
    pool.unsettle(np.array([0, 2]))
    assert [pool.settled(slot) for slot in (first, second, third)] == [False, True, False]
    assert pool.consumed(second) == 0
    with fault(SlotFault.UNREAD):
        pool.consumed(first)
    pool.settle(first, 3)
    assert pool.settled(first) and pool.consumed(first) == 3 and not pool.settled(third)
    pool.owner.release(third)
    pool.acquire()
    last = pool.acquire()
    assert pool.rows_of([last]) == [2] and pool.settled(last) and pool.consumed(last) == 0


def test_a_vacated_pool_is_as_new() -> None:
    pool = pool_of(4, 2)
    slot = pool.acquire()
    pool.unsettle(np.array([0, 1, 2, 3]))
    pool.vacate()
    with fault(SlotFault.FOREIGN):
        pool.rows_of([slot])
    slots = [pool.acquire() for _ in range(4)]
    assert all(map(pool.settled, slots)) and pool.rows_of(slots) == [0, 2, 1, 3]
    with pytest.raises(SlotsExhausted):
        pool.acquire()


def test_arrays_that_were_not_put_back_are_lost() -> None:
    pool = pool_of(2)
    rows = pool.take()
    assert pool.arrays is None
    for use in (pool.take, pool.look):
        with pytest.raises(RowsLost, match="a step was interrupted"):
            use()
    pool.arrays = rows
    assert pool.arrays is not None and pool.look() is rows
