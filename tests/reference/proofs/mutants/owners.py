"""Host faults with rows: double grants, use after release, mutation during a step."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from mutants.mutant import Mutant, Tier
from zoo.program import LANES, SLOTS

from ir_passes import SlotError
from ir_passes.host.slot_faults import SlotsExhausted
from ir_passes.host.slot_owner import Slot, SlotOwner


def held(count: int) -> tuple[SlotOwner, list[Slot]]:
    owner = SlotOwner(SLOTS)
    return owner, [owner.acquire() for _ in range(count)]


def row_by_request_number() -> None:
    owner, slots = held(2)
    rows: list[Any] = [request % (SLOTS - 1) for request in (3, 3 + SLOTS - 1)]
    owner.bind([*slots, *rows], LANES)


def freed_twice() -> None:
    owner, (slot, _) = held(2)
    owner.release(slot)
    owner.release(slot)


def retained_after_a_move() -> None:
    """A snapshot has taken the row over; the sequence still decodes on it."""
    owner, (slot, other) = held(2)
    snapshot = owner.move(slot)
    owner.bind([slot, other, snapshot, None], LANES)


def freed_but_bound() -> None:
    owner, (slot, other) = held(2)
    owner.release(slot)
    owner.acquire()
    owner.bind([slot, other, None, None], LANES)


def two_lanes_one_row() -> None:
    """A removed row's neighbour is moved up, and stays where it was too."""
    owner, slots = held(3)
    owner.bind([slots[0], slots[2], slots[2], None], LANES)


def snapshots_share_a_row() -> None:
    """The ring's cursor was not moved back, so two snapshots collide."""
    owner, (first, second) = held(2)
    owner.bind([first, second, first, None], LANES, role="write")


def null_row_handed_out() -> None:
    owner, slots = held(SLOTS - 1)
    slots.append(owner.acquire())


def another_pools_slot() -> None:
    owner, slots = held(2)
    owner.bind([*slots, held(1)[1][0], None], LANES)


def other_batch() -> None:
    """Lanes were cancelled after the arrays of the step were begun."""
    owner, slots = held(3)
    owner.bind(slots, LANES)


def copied_token() -> None:
    copy.copy(held(1)[1][0])


def never_given_back() -> None:
    owner, slots = held(2)
    slots.clear()
    owner.check_integrity()


def array_written_during_the_step() -> None:
    owner, slots = held(2)
    rows = owner.bind([*slots, None, None], LANES)
    rows[:] = -1


def array_made_writable() -> None:
    """`device_put(..., may_alias=False)` shares bytes with numpy all the same."""
    owner, slots = held(2)
    owner.bind([*slots, None, None], LANES).setflags(write=True)


def bytes_behind_the_array() -> None:
    owner, slots = held(2)
    rows = owner.bind([*slots, None, None], LANES)
    np.frombuffer(rows.data, np.int32)[:] = 0


def _host(id: str, source: str, description: str, attempt: Callable[[], None], *errors: type[Exception]) -> Mutant:
    base = "SlotOwner"
    return Mutant(id, source, description, base, Tier.HOST, attempt=attempt, error=errors or (SlotError,))


MUTANTS = (
    _host("row-by-request-number", "kekzl/imp#500", "row = request % capacity", row_by_request_number),
    _host("freed-twice", "mistral.rs#2357", "a row is freed twice, then handed out twice", freed_twice),
    _host("retained-after-a-move", "FreeToken#287", "ownership passed on, the alias kept", retained_after_a_move),
    _host("freed-but-bound", "TRT-LLM#13151", "a row that looks free is used", freed_but_bound),
    _host("two-lanes-one-row", "vLLM#37728", "condensing the batch leaves a row twice", two_lanes_one_row),
    _host("snapshots-share-a-row", "Atlas#141", "two snapshots share a row of the ring", snapshots_share_a_row),
    _host("null-row-handed-out", "vLLM#39064, SGLang#17404", "the null row is handed out when the others are gone",
          null_row_handed_out, SlotsExhausted),
    _host("another-pools-slot", "tpu-inference#3565", "a slot of a pool of another size", another_pools_slot),
    _host("other-batch", "mlx-vlm#1889", "row metadata describes another batch", other_batch),
    _host("copied-token", "Megatron-LM#6584", "the right to a row is copied", copied_token, TypeError),
    _host("never-given-back", "kekzl/imp#501", "a teardown forgets to give the row back", never_given_back),
    _host("array-written-during-the-step", "sglang-jax#1503", "the index buffer is used again while a step reads it",
          array_written_during_the_step, ValueError),
    _host("array-made-writable", "jax#37830", "an array shared with a running step is written to", array_made_writable,
          ValueError),
    _host("bytes-behind-the-array", "jax#37830", "the bytes behind it are written to", bytes_behind_the_array,
          ValueError, TypeError),
)  # fmt: skip
