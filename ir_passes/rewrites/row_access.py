"""Reads and writes of pool rows in which a bad index never reaches another lane's row.

JAX's dynamic_slice, dynamic_update_slice and mode="clip" move an index that is out of range onto the nearest row. Here
a read out of range is filled (NaN; the smallest integer) and a write out of range is dropped; nothing wraps. An index
along another dimension stays inside its own row and is clamped as before.
"""

from collections.abc import Sequence

import jax
from jax import lax
from jax import numpy as jnp

Start = jax.Array | int


def clamped(start: Start, length: int, size: int) -> Start:
    """Return the start that `dynamic_slice` clamps to, for a window of `length` in a dimension of `size`."""
    if isinstance(start, int):
        return min(max(start, 0), size - length)
    return lax.clamp(jnp.zeros((), start.dtype), start, jnp.full((), size - length, start.dtype))


def read_rows(pool: jax.Array, axis: int, starts: Sequence[Start], sizes: Sequence[int], count: int) -> jax.Array:
    """`count` boxes of different rows, stacked along a new first dimension.

    Args:
        starts: along each dimension, an int or integer [count].
        sizes: of the box along each dimension.
    """
    dims = indexed_dims(pool.shape, axis, starts, sizes)
    index = row_index(pool.shape, dims, axis, starts, sizes, count)
    numbers = lax.GatherDimensionNumbers(tuple(range(1, pool.ndim + 1)), (), dims)
    return lax.gather(pool, index, numbers, tuple(sizes), mode="fill")


def row_index(
    shape: Sequence[int], dims: Sequence[int], axis: int, starts: Sequence[Start], sizes: Sequence[int], count: int
) -> jax.Array:
    """Index vectors [count, len(dims)] of boxes whose starts are ints or integer [count]."""
    row = starts[axis]
    dtype = row.dtype if isinstance(row, jax.Array) else jnp.int32
    columns: list[jax.Array] = []
    for dim in dims:
        start = starts[dim] if dim == axis else clamped(starts[dim], sizes[dim], shape[dim])
        one = jnp.full((count,), start, dtype) if isinstance(start, int) else lax.convert_element_type(start, dtype)
        columns.append(one[:, None])
    return columns[0] if len(columns) == 1 else lax.concatenate(columns, 1)


def indexed_dims(shape: Sequence[int], axis: int, starts: Sequence[Start], sizes: Sequence[int]) -> tuple[int, ...]:
    """The row axis and the dimensions that a box does not fill."""
    return tuple(
        dim for dim in range(len(shape)) if dim == axis or (sizes[dim] < shape[dim] and not _is_zero(starts[dim]))
    )


def _is_zero(start: Start) -> bool:
    return isinstance(start, int) and start == 0
