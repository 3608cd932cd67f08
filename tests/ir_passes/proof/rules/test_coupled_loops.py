"""Pools of a group are coupled if loops and whole operations write all lanes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax

from ir_passes import IsolationError, Lane, LaneContract, Pool, SlotMap, ViolationKind, prove_isolation

LANES, ROWS, SIZE = 4, 9, 8
CONTRACT = LaneContract(
    (Pool("rows"), Lane(role="length"), Lane(), SlotMap("rows", ROWS, null=False)), (Lane(), Pool("rows"))
)
ARGUMENTS = (
    (jnp.zeros((ROWS, SIZE)), jnp.zeros((ROWS, SIZE))), jnp.ones(LANES, jnp.int32), jnp.zeros((LANES, SIZE)),
    jnp.arange(LANES, dtype=jnp.int32),
)  # fmt: skip
Write = Callable[[Array, Array, Array, Array], Array]


def at_once(pool: Array, lengths: Array, x: Array, slots: Array) -> Array:
    """Write the rows of all lanes by one scatter."""
    rows = pool.at[slots].get(mode="promise_in_bounds")
    rows = jnp.where((lengths > 0)[:, None], rows + x, rows)
    return pool.at[slots].set(rows, mode="promise_in_bounds", unique_indices=True)


def added(pool: Array, length: Any, x: Array, slot: Any) -> Array:
    """Write the row of one lane."""
    row = lax.dynamic_slice_in_dim(pool, slot, 1)
    return lax.dynamic_update_slice_in_dim(pool, jnp.where(length > 0, row + x[None], row), slot, 0)


def in_a_loop(pool: Array, lengths: Array, x: Array, slots: Array) -> Array:
    """Write the rows of the lanes one after the other."""
    return lax.scan(lambda pool, lane: (added(pool, *lane), None), pool, (lengths, x, slots))[0]


def in_two_loops(pool: Array, lengths: Array, x: Array, slots: Array) -> Array:
    """Write each half of each row in a separate loop."""

    def lane(pool: Array, lane: Any) -> tuple[Array, None]:
        length, _, slot = lane

        def half(pool: Array, first: Any) -> tuple[Array, None]:
            row = lax.dynamic_slice(pool, (slot, first), (1, SIZE // 2))
            row = jnp.where(length > 0, row + 1.0, row)
            return lax.dynamic_update_slice(pool, row, (slot, first)), None

        return lax.scan(half, pool, jnp.arange(2, dtype=jnp.int32) * (SIZE // 2))[0], None

    return lax.scan(lane, pool, (lengths, x, slots))[0]


def by_branch(pool: Array, lengths: Array, x: Array, slots: Array) -> Array:
    """Write the rows of the lanes that say so."""

    def lane(pool: Array, lane: Any) -> tuple[Array, None]:
        return lax.cond(lane[0] > 0, lambda pool: added(pool, *lane), lambda pool: pool, pool), None

    return lax.scan(lane, pool, (lengths, x, slots))[0]


def first_lanes(pool: Array, lengths: Array, x: Array, slots: Array) -> Array:
    """Write the rows of half of the lanes."""
    half = LANES // 2
    return in_a_loop(pool, lengths[:half], x[:half], slots[:half])


def violations(write: Write, other: Write) -> set[ViolationKind]:
    def step(pools: Any, lengths: Any, x: Any, slots: Any) -> Any:
        first, second = pools
        return x, (write(first, lengths, x, slots), other(second, lengths, x, slots))

    try:
        proof = prove_isolation(step, ARGUMENTS, CONTRACT)
    except IsolationError as error:
        return {violation.kind for violation in error.violations}
    assert "coupling" in {statement.id for statement in proof.proved}
    return set()


@pytest.mark.parametrize("other", [at_once, in_a_loop, in_two_loops])
def test_a_loop_over_all_lanes_writes_the_rows_of_all(other: Write) -> None:
    assert violations(in_a_loop, other) == set()


@pytest.mark.parametrize("write", [at_once, in_a_loop])
@pytest.mark.parametrize("other", [by_branch, first_lanes])
def test_lanes_that_skip_one_of_the_pools_are_found(write: Write, other: Write) -> None:
    assert violations(write, other) == {ViolationKind.COUPLING}


@pytest.mark.parametrize("write", [at_once, in_a_loop, in_two_loops, by_branch, first_lanes])
def test_each_form_writes_only_rows_of_its_lanes(write: Write) -> None:
    """Run: another lane's row, and a row without a lane, keep their numbers."""
    (pool, _), lengths, x, slots = ARGUMENTS
    new = jax.jit(write)(pool, lengths.at[1].set(0), x + 1.0, slots)
    busy = [0] if write is first_lanes else [0, 2, 3]
    assert set(map(int, jnp.flatnonzero(new.any(axis=1)))) == set(busy)
