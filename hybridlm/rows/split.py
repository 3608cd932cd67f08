"""Rows or pages of a pool split over a mesh axis; None: not split."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax


def local_row(row: Array, pool: Array, axis: str | None) -> Array:
    """Return a row's number on this device; other devices' rows are outside."""
    return row if axis is None else row - lax.axis_index(axis) * pool.shape[0]


def take_row(pool: Array, row: Array, axis: str | None, part: Callable[[Array], Any] | None = None) -> Array:
    """Return a row of a pool [row, ..] on every device; `row` is int32 [1].

    Args:
        part: row's number on the device -> index of a part, with zeros outside of the row; None for the whole row.
    """
    local = local_row(row, pool, axis)
    index = local if part is None else part(local)
    fill = None if axis is None and part is None else 0
    values = pool.at[index].get(mode="fill", fill_value=fill, unique_indices=part is None, wrap_negative_indices=False)
    return values if axis is None else _sum_of_bits(values, axis)


def _sum_of_bits(x: Array, axis: str) -> Array:
    """All-reduce an array that is zero on all but one device, as integers.

    A float sum would not keep signs: -0.0 + 0.0 is 0.0.
    """
    if jnp.issubdtype(x.dtype, jnp.integer):
        return lax.psum(x, axis)
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    return lax.bitcast_convert_type(lax.psum(bits, axis), x.dtype)
