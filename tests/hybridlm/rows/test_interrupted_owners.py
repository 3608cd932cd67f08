"""An interrupt between any two statements of an owner loses no row or page."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from hybridlm.rows.pool import RowPool
from hybridlm.steps.structure import Rows
from ir_passes.host.page_owner import PageOwner
from ir_passes.host.slot_owner import SlotOwner
from models import KV_BLOCK

FILES = ("slot_owner.py", "page_owner.py", "pool.py")


def is_interrupted(line: int, call: Callable[[], Any]) -> bool:
    """Call with Ctrl-C before the line with this number, counted as they run; False after the last one."""
    lines = iter(range(line + 1))

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        if event == "line" and next(lines, None) == line:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def check(owner: SlotOwner | PageOwner, *rights: Any) -> None:
    """Check after the loss of all other tokens that just these rows are held."""
    if owner._lock.locked():  # a trace may interrupt after the block and before its lock's release, a signal does not
        owner._lock.release()
    gc.collect()
    owner.reclaim()
    owner.check_integrity()
    rows = {right._row for right in rights}
    assert owner.held == sorted(rows) and owner.free == owner.size - len(rows) - owner.null * owner.parts
    assert owner.reclaim() == []


ACTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "acquire": lambda owner, right: owner.acquire(),
    "move": lambda owner, right: owner.move(right),
    "share": lambda owner, right: owner.share(right),
    "release": lambda owner, right: owner.release(right),
    "bind slots": lambda owner, right: owner.bind([right, None], 2),
    "bind pages": lambda owner, right: owner.bind([[right], None], 2, 1, [(0, 1), (0, 0)]),
    "reclaim": lambda owner, right: owner.reclaim(),
}


@pytest.mark.parametrize(
    "owner, actions",
    [
        (SlotOwner(5), ("acquire", "move", "release", "bind slots", "reclaim")),
        (SlotOwner(6, null=False, parts=2), ("acquire", "move", "release", "reclaim")),
        (PageOwner(5), ("acquire", "share", "release", "bind pages", "reclaim")),
        (PageOwner(8, parts=2), ("acquire", "share", "release", "reclaim")),
    ],
    ids=["slots", "slots of two devices", "pages", "pages of two devices"],
)
def test_no_interrupt_loses_a_row(owner: Any, actions: tuple[str, ...]) -> None:
    pages = isinstance(owner, PageOwner)
    held = owner.acquire(1)[0] if pages else owner.acquire()
    for action in actions:
        line = 0
        while True:
            right = owner.acquire(1)[0] if pages else owner.acquire()
            again = is_interrupted(line, lambda action=action, right=right: ACTIONS[action](owner, right))
            del right
            check(owner, held)
            if not again:
                break
            line += 1
        assert line > 3, action


def test_no_interrupt_loses_a_shared_page() -> None:
    owner, line = PageOwner(5), 0
    (held,) = owner.acquire(1)
    for action in (owner.release, owner.share):
        line = 0
        while is_interrupted(line, lambda action=action: action(owner.share(held))):
            check(owner, held)
            assert owner.holders(held) == 1 and owner.shared == 0
            line += 1
        check(owner, held)
        assert line > 6


@pytest.mark.parametrize("action", ["acquire", "reserve", "release", "keep", "reclaim"])
def test_no_interrupt_loses_a_row_with_pages(action: str) -> None:
    """A pool is whole again without the interrupted row; a kept page and another row stay."""
    token: Any = np.zeros((4, 1), np.int32)
    pool = RowPool(Rows((), token), 2 + 4 * 3, 3, devices=2)
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
            if owner._lock.locked():
                owner._lock.release()
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
