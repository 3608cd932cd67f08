"""An interrupt between any two statements of an owner loses no row or page."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
from interrupts import is_interrupted, unlock

from ir_passes.host.page_owner import PageOwner
from ir_passes.host.slot_owner import SlotOwner

pytestmark = pytest.mark.usefixtures("fast_gc")


def check(owner: SlotOwner | PageOwner, *rights: Any) -> None:
    """Check after the loss of all other tokens that just these rows are held."""
    unlock(owner)
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
