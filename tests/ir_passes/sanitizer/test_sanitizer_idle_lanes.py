"""Idle lanes on other sequences' rows keep the labels, in operations and writes by position."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from labelled_steps import LabelledSteps

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
        self.steps = LabelledSteps(step_of(), args, CONTRACT, masked=["args[0][1]"])

    def take(self, slots: list[int], turns: list[tuple[int, int, int] | None]) -> None:
        positions, lengths = (jnp.array([turn[k] if turn else 0 for turn in turns], jnp.int32) for k in (1, 2))
        args = self.pools, jnp.array(slots, jnp.int32), lengths, positions, jnp.ones((N, D))
        _, self.pools = self.steps.take(args, turns)

    def row(self, row: int) -> set[tuple[int, ...]]:
        """Return the labels of a row in all pools: owner, position, layout, epoch."""
        return {tuple(np.asarray(labels)[row].tolist()) for labels in self.steps.labels}


def test_the_step_is_proved() -> None:
    prove_isolation(step_of(), arrays(), CONTRACT)


@pytest.mark.slow
def test_idle_lanes_keep_the_labels_of_other_sequences() -> None:
    engine = Engine()
    engine.take([4, 1, 0], [(7, 0, 1), (8, 0, 1), None])
    # the second and third lane are idle, on the rows of sequence 7 and of none
    engine.take([1, 4, 3], [(8, 1, 1), None, None])
    assert engine.row(4) == {(7, 1, 0, 1)} and engine.row(3) == {(0, 0, 0, 0)}
    engine.take([3, 4, 1], [(9, 0, 1), (7, 1, 1), (8, 2, 1)])
    assert (engine.row(3), engine.row(4), engine.row(1)) == ({(9, 1, 0, 3)}, {(7, 2, 0, 3)}, {(8, 3, 0, 3)})


@pytest.mark.parametrize(
    ("slots", "fault", "lane"), [([1, 4, 3], LabelFault.OWNER, 0), ([4, 3, 1], LabelFault.OWNER, 1)]
)
def test_rows_of_another_sequence_are_named(slots: list[int], fault: LabelFault, lane: int) -> None:
    engine = Engine()
    engine.take([4, 1, 0], [(7, 0, 1), (8, 0, 1), None])
    with pytest.raises(SanitizerError) as error:
        engine.take(slots, [(7, 1, 1), (8, 1, 1), None])
    assert (fault, lane) in {(item.id, item.lane) for item in error.value.faults if isinstance(item, LaneFault)}


def test_a_step_that_takes_the_next_lanes_rows_is_found() -> None:
    """Without a proof: the labels alone show it."""
    args = arrays()
    pools, slots, lengths, *rest = args
    steps = LabelledSteps(step_of(lambda slots: jnp.roll(slots, 1)), args, CONTRACT)
    with pytest.raises(SanitizerError, match="writes another lane's row"):
        steps.take((pools, slots, jnp.ones_like(lengths), *rest), [(7, 0, 1), (8, 0, 1), (9, 0, 1)])


def test_a_declaration_without_slots_cannot_be_followed() -> None:
    declared = Opaque((Lane(), LENGTH, Lane(), Lane(), Pool("state")), (Lane(), Pool("state")), fresh=2)
    contract = LaneContract(CONTRACT.inputs, CONTRACT.outputs, opaque={"advanced_in_place": declared})
    with pytest.raises(UntrackedError) as error:
        sanitize(step_of(), arrays(), contract)
    assert UntrackedFault.OPAQUE.value in {*error.value.ids}
