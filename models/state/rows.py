"""Rows of pools by slot: take the rows of the lanes, put them back.

`slots` has the row of each lane: in bounds and distinct, also for idle lanes. None stands for row i of lane i.
"""

from jax import Array
from jaxtyping import Int32, Shaped

Slots = Int32[Array, "lane"] | None


def take_rows(pool: Shaped[Array, "row ..."], slots: Slots) -> Shaped[Array, "lane ..."]:
    if slots is None:
        return pool
    return pool.at[slots].get(mode="promise_in_bounds", unique_indices=True, wrap_negative_indices=False)


def put_rows(pool: Shaped[Array, "row ..."], slots: Slots, rows: Shaped[Array, "lane ..."]) -> Shaped[Array, "row ..."]:
    """Return the pool with new rows of the lanes; other rows keep their bits."""
    if slots is None:
        return rows
    return pool.at[slots].set(rows, mode="promise_in_bounds", unique_indices=True, wrap_negative_indices=False)
