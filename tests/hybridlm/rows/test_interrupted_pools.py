"""An interrupt between any two statements of a pool loses no row or page."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
from interrupts import is_interrupted, unlock
from row_pools import row_pool

from models import KV_BLOCK

pytestmark = pytest.mark.usefixtures("fast_gc")


@pytest.mark.parametrize("action", ["acquire", "reserve", "release", "keep", "reclaim"])
def test_no_interrupt_loses_a_row_with_pages(action: str) -> None:
    """A pool is whole again without the interrupted row; a kept page and another row stay."""
    pool = row_pool(4, devices=2, blocks=3)
    stays = pool.acquire(2 * KV_BLOCK)
    kept = pool.keep_page(stays, 0)
    actions: dict[str, Callable[[Any], Any]] = {
        "acquire": lambda slot: pool.acquire(2 * KV_BLOCK, shared=[kept]),
        "reserve": lambda slot: pool.reserve(slot, 3 * KV_BLOCK),
        "release": lambda slot: pool.release(slot),
        "keep": lambda slot: pool.drop_page(pool.keep_page(slot, 0)),
        "reclaim": lambda slot: pool.reclaim(2),
    }
    line = 0
    while True:
        slot = pool.acquire(KV_BLOCK, shared=[kept])
        again = is_interrupted(line, lambda slot=slot: actions[action](slot))
        for owner in (pool.owner, pool.page_owner):
            assert owner is not None
            unlock(owner)
        gc.collect()
        if action != "release":
            assert pool.reclaim(2), "the row that was interrupted is whole, with or without its new pages"
            pool.check_integrity()
        del slot
        gc.collect()
        assert pool.reclaim(1), f"line {line}"
        pool.check_integrity()
        assert len(pool.owner.held) == 1 and sum(map(pool.free_pages, range(2))) == 10
        if not again:
            break
        line += 1
    assert line > 10
