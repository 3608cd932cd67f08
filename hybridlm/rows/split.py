"""Rows or pages of a pool split over mesh devices."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax


class SplitRows(NamedTuple):
    """Sharding of a pool's rows, as seen by the device that runs the step.

    Attributes:
        axis: None if every device has all rows.
    """

    axis: str | None = None

    def mine(self, row: Array, pool: Array) -> Array:
        """Return a row's number on this device; another device's row is outside its rows."""
        return row if self.axis is None else row - lax.axis_index(self.axis) * pool.shape[0]

    def take(self, pool: Array, row: Array, part: Callable[[Array], Any] | None = None) -> Array:
        """Return a row of a pool [row, ..] on every device; `row` is int32 [1].

        Args:
            part: row's number on the device -> index of the wanted part, with zeros outside of the row; None for the
                whole row.
        """
        local_row = self.mine(row, pool)
        index = local_row if part is None else part(local_row)
        fill = None if self.axis is None and part is None else 0
        values = pool.at[index].get(
            mode="fill", fill_value=fill, unique_indices=part is None, wrap_negative_indices=False
        )
        return values if self.axis is None else _sum_of_bits(values, self.axis)


def _sum_of_bits(x: Array, axis: str) -> Array:
    """All-reduce an array that is zero on all but one device, as integers.

    A float sum would not keep signs: -0.0 + 0.0 is 0.0.
    """
    if jnp.issubdtype(x.dtype, jnp.integer):
        return lax.psum(x, axis)
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    return lax.bitcast_convert_type(lax.psum(bits, axis), x.dtype)


WHOLE = SplitRows()
