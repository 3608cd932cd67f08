"""Each row has one holder: every violation raises, and bound arrays never change."""

import copy
import gc
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from ir_passes import SlotMap
from ir_passes.host.local_slots import bind_local
from ir_passes.host.slot_faults import SlotError, SlotFault, SlotsExhausted
from ir_passes.host.slot_owner import NULL_ROW, Slot, SlotOwner


def row_of(owner: SlotOwner, slot: Slot) -> int:
    return int(owner.bind([slot], 1)[0])


def test_the_null_row_is_never_handed_out() -> None:
    owner = SlotOwner.of(SlotMap(("conv", "ssm"), size=5))
    slots = [owner.acquire() for _ in range(4)]
    assert sorted(row_of(owner, slot) for slot in slots) == [1, 2, 3, 4]
    np.testing.assert_array_equal(owner.bind([None, slots[2], None], 3), [NULL_ROW, 3, NULL_ROW])
    owner.check_integrity()


def test_a_dropped_token_is_a_leak_that_is_named() -> None:
    owner = SlotOwner(3)
    saved, _ = owner.acquire(), owner.acquire()
    del _
    gc.collect()
    with pytest.raises(SlotsExhausted, match=r"1 of them by tokens that were dropped without release: rows \[2\]"):
        owner.acquire()
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.DROPPED,)):
        owner.check_integrity()
    assert owner.reclaim() == [2] and owner.reclaim() == [] and owner.free == 1
    owner.check_integrity()
    row_of(owner, owner.acquire())
    owner.release(saved)


def test_all_faults_in_one_message() -> None:
    owner, other = SlotOwner(4, "mine"), SlotOwner(9, "other")
    dead, live, foreign = owner.acquire(), owner.acquire(), other.acquire()
    owner.release(dead)
    with pytest.raises(SlotError) as error:
        owner.bind([dead, live, live, foreign, 2], 4)  # pyright: ignore[reportArgumentType]  # wrong on purpose
    results = [(fault.id, fault.about) for fault in error.value.faults]
    assert results == [
        (SlotFault.LANES, ""),
        (SlotFault.RELEASED, "lane 0"),
        (SlotFault.FOREIGN, "lane 3"),
        (SlotFault.NO_TOKEN, "lane 4"),
        (SlotFault.SHARED, "lanes [1, 2]"),
    ]
    assert all(fault.sentence in str(error.value) for fault in error.value.faults)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_token_cannot_be_copied(duplicate) -> None:
    slot = SlotOwner(4).acquire()
    with pytest.raises(TypeError, match="has one holder"):
        duplicate(slot)


def test_too_small() -> None:
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.SIZE,)):
        SlotOwner(1)


def test_arrays_are_fresh_and_can_never_be_written() -> None:
    owner = SlotOwner(70)
    slots = [owner.acquire() for _ in range(64)]
    first, second = owner.bind(slots, 64), owner.bind(slots, 64)
    assert first.dtype == np.int32 and first.shape == (64,)
    assert not np.shares_memory(first, second)
    with pytest.raises(ValueError):
        first[0] = 5
    with pytest.raises(ValueError):
        first.setflags(write=True)


def test_a_running_step_keeps_its_rows_while_the_host_continues() -> None:
    owner = SlotOwner(9)
    slots: list[Slot | None] = [owner.acquire() for _ in range(8)]
    busy = jax.jit(lambda x, rows: ((x @ x @ x @ x).sum() * jnp.float32(0), rows))
    x = jnp.ones((500, 500))
    busy(x, owner.bind(slots, 8))[1].block_until_ready()
    calls, want = [], []
    for _ in range(8):
        slots = slots[1:] + slots[:1]
        array = owner.bind(slots, 8)
        want.append(array.tolist())
        calls.append(busy(x, array)[1])
        del array
    assert [rows.tolist() for rows in calls] == want


def test_threads_never_hold_the_same_row() -> None:
    owner = SlotOwner(17)
    clashes, contents, lock = [], set(), threading.Lock()

    def work() -> None:
        for _ in range(200):
            slot = owner.acquire()
            row = row_of(owner, slot)
            with lock:
                clashes.extend([row] if row in contents else [])
                contents.add(row)
            with lock:
                contents.discard(row)
            owner.release(slot)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes
    owner.check_integrity()
    assert owner.free == 16


@pytest.mark.parametrize("fault", ["duplicate in the free list", "free and held", "lost row", "null row freed"])
def test_integrity_finds_a_broken_free_list(fault: str) -> None:
    owner = SlotOwner(5)
    slot = owner.acquire()
    row = row_of(owner, slot)
    match fault:
        case "duplicate in the free list":
            owner._free[0].append(owner._free[0][0])
        case "free and held":
            owner._free[0].append(row)
        case "lost row":
            owner._free[0].pop()
        case _:
            owner._free[0][0] = NULL_ROW
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.STATES,)):
        owner.check_integrity()


class Machine(RuleBasedStateMachine):
    """An owner next to a model: the set of live tokens and their rows."""

    live = Bundle("live")
    dead = Bundle("dead")

    def __init__(self) -> None:
        super().__init__()
        self.owner = SlotOwner(7)
        self.rows: dict[Slot, int] = {}

    @precondition(lambda self: len(self.rows) < 6)
    @rule(target=live)
    def acquire(self) -> Slot:
        slot = self.owner.acquire()
        row = row_of(self.owner, slot)
        assert 0 < row < 7 and row not in self.rows.values()
        self.rows[slot] = row
        return slot

    @precondition(lambda self: len(self.rows) == 6)
    @rule()
    def exhausted(self) -> None:
        with pytest.raises(SlotsExhausted, match="all 6 rows"):
            self.owner.acquire()

    @rule(target=dead, slot=consumes(live))
    def release(self, slot: Slot) -> Slot:
        self.owner.release(slot)
        del self.rows[slot]
        return slot

    @rule(target=live, slot=consumes(live))
    def move(self, slot: Slot) -> Slot:
        new = self.owner.move(slot)
        self.rows[new] = self.rows.pop(slot)
        for use in (self.owner.release, self.owner.move):
            with pytest.raises(SlotError):
                use(slot)
        return new

    @rule(slot=dead)
    def use_after_release(self, slot: Slot) -> None:
        for use in (self.owner.release, self.owner.move, lambda slot: self.owner.bind([slot], 1, "read")):
            with pytest.raises(SlotError):
                use(slot)

    @rule(slots=st.lists(st.one_of(st.none(), live), max_size=8), role=st.sampled_from(["both", "read", "write"]))
    def bind(self, slots: list[Slot | None], role) -> None:
        active = [slot for slot in slots if slot is not None]
        if role != "read" and len(set(active)) < len(active):
            with pytest.raises(SlotError, check=lambda error: {*error.ids} == {SlotFault.SHARED}):
                self.owner.bind(slots, len(slots), role)
        else:
            want = [NULL_ROW if slot is None else self.rows[slot] for slot in slots]
            assert self.owner.bind(slots, len(slots), role).tolist() == want

    @invariant()
    def conserved(self) -> None:
        self.owner.check_integrity()
        assert (self.owner.free, len(self.owner.held)) == (6 - len(self.rows), len(self.rows))


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_rows_of_two_maps_that_are_declared_disjoint() -> None:
    owner = SlotOwner(6, "state")
    running, snapshots = [owner.acquire(), owner.acquire()], [owner.acquire(), None]
    np.testing.assert_array_equal(owner.bind(snapshots, 2, "write", beside=running), [3, 0])
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.NOT_DISJOINT,)):
        owner.bind([snapshots[0], running[0]], 2, "write", beside=running)


def test_rows_are_taken_from_the_part_with_the_most_free_rows() -> None:
    owner = SlotOwner(6, "state", null=False, parts=3)
    slots = [owner.acquire() for _ in range(6)]
    rows = [row_of(owner, slot) for slot in slots]
    assert [row // 2 for row in rows] == [0, 1, 2, 0, 1, 2] and sorted(rows) == list(range(6))
    with pytest.raises(SlotsExhausted, match="all 6 rows are held"):
        owner.acquire()
    for number in (4, 1, 3):
        owner.release(slots.pop(number))
    repeated = [owner.acquire() for _ in range(3)]
    assert [row_of(owner, slot) for slot in repeated] == [3, 2, 5]
    owner.check_integrity()


@pytest.mark.parametrize("size, null, parts", [(5, False, 2), (4, True, 2)])
def test_parts_are_equal_and_have_no_null_row(size: int, null: bool, parts: int) -> None:
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.SIZE,)):
        SlotOwner(size, null=null, parts=parts)


def test_rows_within_a_device() -> None:
    owners = [SlotOwner(4, "state"), SlotOwner(4, "state")]
    slots = [owners[0].acquire(), None, owners[1].acquire(), owners[1].acquire()]
    np.testing.assert_array_equal(bind_local(owners, slots, 4), [1, 0, 1, 2])
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.FOREIGN,)):
        bind_local(owners, [slots[2], None, slots[0], None], 4)
    for wrong in (slots[:3], [*slots, None]):
        with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.LANES,)):
            bind_local(owners, wrong, len(wrong))
