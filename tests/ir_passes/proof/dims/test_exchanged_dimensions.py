"""Writes are refused if scatter indices or a sort exchange named dimensions of a pool."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

from ir_passes import IsolationError, LaneContract, Pool, SlotMap, ViolationKind, name_dims, prove_isolation

LANES, ROWS, SIZE = 3, 8, 4
STATE = Pool("s", dims=("row", "key", "value"))
CONTRACT = LaneContract((STATE, SlotMap("s", ROWS)), STATE)
KEYS, VALUES = jnp.arange(SIZE)[:, None], jnp.arange(SIZE)[None, :]
EXCHANGED = (VALUES * SIZE + KEYS).reshape(-1)
Change = Callable[[Array, Array], Array]


def rows_of(change: Callable[[Array], Array]) -> Change:
    return lambda pool, slots: pool.at[slots].set(change(pool[slots]), mode="drop")


def sorted_anew(rows: Array) -> Array:
    places = jnp.broadcast_to(EXCHANGED, (LANES, SIZE * SIZE))
    return lax.sort((places, rows.reshape(LANES, -1)), dimension=1, num_keys=1)[1].reshape(rows.shape)


TRANSPOSED: dict[str, Change] = {
    "scattered": rows_of(lambda rows: rows.at[:, VALUES, KEYS].set(rows)),
    "scattered and added": rows_of(lambda rows: (0 * rows).at[:, VALUES, KEYS].add(rows)),
    "scattered into the pool": lambda pool, slots: pool.at[slots[:, None, None], VALUES, KEYS].set(
        pool[slots], mode="drop"
    ),
    "sorted by places": rows_of(sorted_anew),
    "a column at a time": rows_of(
        lambda rows: lax.fori_loop(0, SIZE, lambda i, new: new.at[:, i, jnp.arange(SIZE)].set(rows[:, :, i]), rows)
    ),
}
STRAIGHT: dict[str, Change] = {
    "columns into the pool": lambda pool, slots: pool.at[slots[:, None], :, jnp.arange(SIZE)].set(
        pool[slots].swapaxes(1, 2), mode="drop"
    ),
    "sorted within a dimension": rows_of(lambda rows: jnp.sort(rows, 2)),
    "a place of each row": lambda pool, slots: pool.at[slots, slots % SIZE].set(
        name_dims(pool[slots, slots % SIZE], "row", "value"), mode="drop"
    ),
    "a place of each row, in an array": rows_of(
        lambda rows: rows.at[jnp.arange(LANES), jnp.arange(LANES)].set(name_dims(rows[:, 1], "row", "value"))
    ),
    "an element of each row": lambda pool, slots: pool.at[slots, 0, 1].set(pool[slots, 0, 1], mode="drop"),
}


def written(step: Change) -> Any:
    pool = np.random.default_rng(0).normal(size=(ROWS, SIZE, SIZE)).astype(np.float32)
    return pool, jax.jit(step)(pool, jnp.arange(1, LANES + 1, dtype=jnp.int32))


def faults(step: Change) -> set[ViolationKind]:
    args = jnp.zeros((ROWS, SIZE, SIZE)), jnp.arange(1, LANES + 1, dtype=jnp.int32)
    try:
        prove_isolation(step, args, CONTRACT)
    except IsolationError as error:
        return {violation.kind for violation in error.violations}
    return set()


@pytest.mark.parametrize("name", TRANSPOSED)
def test_rows_transposed_by_places_are_refused(name: str) -> None:
    """Run: every row is transposed."""
    old, new = written(TRANSPOSED[name])
    np.testing.assert_array_equal(new[1 : LANES + 1], np.swapaxes(old[1 : LANES + 1], 1, 2))
    assert faults(TRANSPOSED[name]) == {ViolationKind.DIMENSIONS}


@pytest.mark.parametrize("name", STRAIGHT)
def test_rows_in_the_order_of_the_pool_are_proved(name: str) -> None:
    assert faults(STRAIGHT[name]) == set()
