"""A pool with one row, as of an engine with one lane: the row is used by its slot."""

from collections.abc import Callable

import jax.numpy as jnp
import pytest
from jax import Array, lax

from ir_passes import IsolationError, Lane, LaneContract, Pool, SlotMap, ViolationKind, prove_isolation

POOL = Pool("state", dims=("row", "channel"))
CONTRACT = LaneContract((POOL, Lane(role="length"), Lane(), SlotMap("state", 1, null=False)), (POOL,))
ARGS = jnp.zeros((1, 4)), jnp.zeros(1, jnp.int32), jnp.zeros((1, 4)), jnp.zeros(1, jnp.int32)


def step(place: Callable[[Array], Array]) -> Callable[..., tuple[Array]]:
    """Return a step that adds a lane's numbers to its row at `place(slot)`."""

    def run(pool: Array, lengths: Array, x: Array, slots: Array) -> tuple[Array]:
        start = place(slots[0]), jnp.int32(0)
        row = lax.dynamic_slice(pool, start, (1, 4))
        return (lax.dynamic_update_slice(pool, jnp.where(lengths[0] > 0, row + x[0][None], row), start),)

    return run


def test_the_only_row_is_that_of_its_slot() -> None:
    proof = prove_isolation(step(lambda slot: slot), ARGS, CONTRACT)
    assert {"idle", "frame", "dimensions"} <= {statement.id for statement in proof.proved}


@pytest.mark.parametrize("place", [jnp.zeros_like, lambda slot: slot + 1], ids=["no slot", "another row"])
def test_the_only_row_is_not_used_without_its_slot(place: Callable[[Array], Array]) -> None:
    with pytest.raises(IsolationError) as error:
        prove_isolation(step(place), ARGS, CONTRACT)
    kinds = {violation.kind for violation in error.value.violations}
    assert kinds & {ViolationKind.CROSS_LANE, ViolationKind.WRONG_ROW}


def test_an_idle_lane_does_not_write_the_only_row() -> None:
    def run(pool: Array, lengths: Array, x: Array, slots: Array) -> tuple[Array]:
        return (lax.dynamic_update_slice(pool, x, (slots[0], jnp.int32(0))),)

    with pytest.raises(IsolationError):
        prove_isolation(run, ARGS, CONTRACT)


@pytest.mark.parametrize("spread", [lambda pool: jnp.broadcast_to(pool, (3, 4)), lambda pool: pool + jnp.zeros((3, 4))])
def test_the_only_row_is_no_row_of_three_slots(spread: Callable[[Array], Array]) -> None:
    contract = LaneContract((Pool("state"), SlotMap("state", 3, role="read", null=False)), Lane())
    with pytest.raises(IsolationError, match="not the lane's entry"):
        prove_isolation(lambda pool, slots: spread(pool)[slots], (ARGS[0], jnp.arange(2)), contract)
