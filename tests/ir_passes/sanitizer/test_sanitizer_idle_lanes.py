"""Idle lanes on other sequences' rows keep the labels, in operations and writes by position."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from hybridlm.compiler import host
from ir_passes import Lane, LaneContract, Opaque, Pool, SlotMap, prove_isolation
from ir_passes.sanitizer.sanitize import UntrackedError, sanitize
from ir_passes.sanitizer.verdict import LabelFault, LaneFault, SanitizerError, UntrackedFault

N, ROWS, D, CONTEXT = 3, 6, 4, 8
SLOTS = SlotMap("state", ROWS, null=False)
POOLS = Pool("state"), Pool("state")
LENGTH = Lane(role="length")
DECLARED = Opaque((SLOTS, LENGTH, Lane(), Lane(), Pool("state")), (Lane(), Pool("state")), fresh=2)
CONTRACT = LaneContract((POOLS, SLOTS, LENGTH, Lane(), Lane()), (Lane(), POOLS), opaque={"advanced_in_place": DECLARED})


def advanced_in_place(*arrays: Array) -> tuple[np.ndarray, np.ndarray]:
    slots, lengths, fresh, x, pool = (np.array(array) for array in arrays)
    out = np.zeros_like(x)
    for lane in np.flatnonzero(lengths):
        row = slots[lane]
        pool[row] = x[lane] + (0 if fresh[lane] else pool[row])
        out[lane] = pool[row]
    return out, pool


def step_of(used: Callable[[Array], Array] = lambda slots: slots) -> Callable[..., Any]:
    """Return a step with a declared recurrence and a cache with writes by position."""

    def step(pools: Any, slots: Array, lengths: Array, positions: Array, x: Array) -> Any:
        states, cache = pools
        rows, fresh = used(slots), (positions == 0) & (lengths > 0)
        like = tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (x, states))
        out, states = jax.pure_callback(advanced_in_place, like, rows, lengths, fresh, x, states)
        places = jnp.where(lengths > 0, positions, CONTEXT)
        cache = cache.at[rows, places].set(x, mode="drop", unique_indices=True)
        visible = jnp.arange(CONTEXT)[None] < (positions + lengths)[:, None]
        return out + jnp.sum(jnp.where(visible[..., None], cache[rows], 0.0), axis=1), (states, cache)

    return step


def arrays() -> tuple[Any, ...]:
    pools = jnp.zeros((ROWS, D)), jnp.zeros((ROWS, CONTEXT, D))
    return pools, jnp.array([4, 1, 0], jnp.int32), jnp.zeros(N, jnp.int32), jnp.zeros(N, jnp.int32), jnp.ones((N, D))


class Engine:
    """Rows of a pool, their labels, and the ledger."""

    def __init__(self) -> None:
        self.pools, *_ = args = arrays()
        self.sanitized, self.ledger = sanitize(step_of(), args, CONTRACT, masked=["args[0][1]"]), host.RowLedger()
        self.labels = self.sanitized.shadow_labels()

    def take(self, slots: list[int], work: list[host.LaneWork | None]) -> None:
        expected = self.ledger.expect(work)
        lengths, positions = (
            jnp.array([0 if lane is None else getattr(lane, name) for lane in work], jnp.int32)
            for name in ("length", "position")
        )
        _, self.pools, self.labels, verdict = self.sanitized.step(
            self.pools, jnp.array(slots, jnp.int32), lengths, positions, jnp.ones((N, D)), shadow_labels=self.labels,
            expected=expected,
        )  # fmt: skip
        self.sanitized.require(verdict, expected)


def test_the_step_is_proved() -> None:
    prove_isolation(step_of(), arrays(), CONTRACT)


@pytest.mark.slow
def test_idle_lanes_keep_the_labels_of_other_sequences() -> None:
    engine = Engine()
    engine.take([4, 1, 0], [host.LaneWork(7, 0, 1), host.LaneWork(8, 0, 1), None])
    # the second and third lane are idle, on the rows of sequence 7 and of none
    engine.take([1, 4, 3], [host.LaneWork(8, 1, 1), None, None])
    assert {tuple(np.asarray(labels)[4]) for labels in engine.labels} == {tuple(host.Label(7, 1, epoch=1))}
    assert {tuple(np.asarray(labels)[3]) for labels in engine.labels} == {tuple(host.Label(0))}
    engine.take([3, 4, 1], [host.LaneWork(9, 0, 1), host.LaneWork(7, 1, 1), host.LaneWork(8, 2, 1)])
    for row, label in {
        3: host.Label(9, 1, epoch=3),
        4: host.Label(7, 2, epoch=3),
        1: host.Label(8, 3, epoch=3),
    }.items():
        assert {tuple(np.asarray(labels)[row]) for labels in engine.labels} == {tuple(label)}


@pytest.mark.parametrize(
    ("slots", "fault", "lane"), [([1, 4, 3], LabelFault.OWNER, 0), ([4, 3, 1], LabelFault.OWNER, 1)]
)
def test_rows_of_another_sequence_are_named(slots: list[int], fault: LabelFault, lane: int) -> None:
    engine = Engine()
    engine.take([4, 1, 0], [host.LaneWork(7, 0, 1), host.LaneWork(8, 0, 1), None])
    with pytest.raises(SanitizerError) as error:
        engine.take(slots, [host.LaneWork(7, 1, 1), host.LaneWork(8, 1, 1), None])
    assert (fault, lane) in {(item.id, item.lane) for item in error.value.faults if isinstance(item, LaneFault)}


def test_a_step_that_takes_the_next_lanes_rows_is_found() -> None:
    """Without a proof: the labels alone show it."""
    args = arrays()
    sanitized = sanitize(step_of(lambda slots: jnp.roll(slots, 1)), args, CONTRACT)
    expected = host.RowLedger().expect([host.LaneWork(7, 0, 1), host.LaneWork(8, 0, 1), host.LaneWork(9, 0, 1)])
    pools, slots, lengths, *rest = args
    *_, verdict = sanitized.step(
        pools, slots, jnp.ones_like(lengths), *rest, shadow_labels=sanitized.shadow_labels(), expected=expected
    )
    with pytest.raises(SanitizerError, match="writes another lane's row"):
        sanitized.require(verdict, expected)


def test_a_declaration_without_slots_cannot_be_followed() -> None:
    declared = Opaque((Lane(), LENGTH, Lane(), Lane(), Pool("state")), (Lane(), Pool("state")), fresh=2)
    contract = LaneContract(CONTRACT.inputs, CONTRACT.outputs, opaque={"advanced_in_place": declared})
    with pytest.raises(UntrackedError) as error:
        sanitize(step_of(), arrays(), contract)
    assert UntrackedFault.OPAQUE.value in {*error.value.ids}
