"""Rows of pools by slot: take the rows of the lanes, put them back.

A pool has a row for each sequence, a step a lane for some of them. `slots` has the row of each lane: in bounds and
distinct, also for idle lanes. None stands for row i of lane i.
"""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int32, Shaped

Slots = Int32[Array, "lane"] | None


def take_rows(pool: Shaped[Array, "row ..."], slots: Slots) -> Shaped[Array, "lane ..."]:
    """Return the rows of the lanes."""
    if slots is None:
        return pool
    return pool.at[slots].get(mode="promise_in_bounds", unique_indices=True, wrap_negative_indices=False)


def put_rows(pool: Shaped[Array, "row ..."], slots: Slots, rows: Shaped[Array, "lane ..."]) -> Shaped[Array, "row ..."]:
    """Return the pool with new rows of the lanes; other rows keep their bits."""
    if slots is None:
        return rows
    return pool.at[slots].set(rows, mode="promise_in_bounds", unique_indices=True, wrap_negative_indices=False)


def take_positions(
    pool: Shaped[Array, "row head context size"], slots: Slots, start: Int32[Array, ""], count: int
) -> Shaped[Array, "lane head count size"]:
    """Return positions of the lanes' rows, without a copy of whole rows.

    Args:
        pool: keys or values.
        slots: the row of each lane.
        start: the first position.
        count: number of positions.
    """
    if slots is None:
        return lax.dynamic_slice_in_dim(pool, start, count, axis=2)
    places = jnp.stack([slots, jnp.broadcast_to(start, slots.shape)], axis=1)
    dims = lax.GatherDimensionNumbers(offset_dims=(1, 2, 3), collapsed_slice_dims=(0,), start_index_map=(0, 2))
    sizes = (1, pool.shape[1], count, pool.shape[3])
    return lax.gather(pool, places, dims, sizes, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)
