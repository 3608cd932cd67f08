"""Reads and writes of pool rows that no bad index can turn into another's row.

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
    """Where `dynamic_slice` starts a window of `length` in a dimension of `size`."""
    if isinstance(start, int):
        return min(max(start, 0), size - length)
    return lax.clamp(jnp.zeros((), start.dtype), start, jnp.full((), size - length, start.dtype))


def read_box(pool: jax.Array, axis: int, starts: Sequence[Start], sizes: Sequence[int]) -> jax.Array:
    """`dynamic_slice(pool, starts, sizes)`, filled where the row is out of range.

    Args:
        axis: the row axis.
        starts: along each dimension; an int is a constant.
    """
    dims, index = _index(pool, axis, starts, sizes)
    numbers = lax.GatherDimensionNumbers(tuple(range(pool.ndim)), (), dims)
    return lax.gather(pool, index, numbers, tuple(sizes), mode="fill", unique_indices=True, indices_are_sorted=True)


def read_rows(pool: jax.Array, axis: int, rows: jax.Array, starts: Sequence[int], sizes: Sequence[int]) -> jax.Array:
    """The same box of several rows, stacked along a new first dimension.

    Args:
        rows: integer [N].
        starts, sizes: of the box along each dimension; the start along `axis` is not used.
    """
    dims = _indexed(pool.shape, axis, starts, sizes)
    columns = [rows[:, None] if dim == axis else jnp.full((len(rows), 1), starts[dim], rows.dtype) for dim in dims]
    index = columns[0] if len(columns) == 1 else jnp.concatenate(columns, axis=1)
    numbers = lax.GatherDimensionNumbers(tuple(range(1, pool.ndim + 1)), (), dims)
    return lax.gather(pool, index, numbers, tuple(sizes), mode="fill")


def box_index(
    pool: jax.Array, axis: int, starts: Sequence[Start], sizes: Sequence[int]
) -> tuple[lax.ScatterDimensionNumbers, jax.Array]:
    """The dimension numbers and the index vector with which a scatter updates one box."""
    dims, index = _index(pool, axis, starts, sizes)
    return lax.ScatterDimensionNumbers(tuple(range(pool.ndim)), (), dims), index


def write_box(pool: jax.Array, update: jax.Array, axis: int, starts: Sequence[Start]) -> jax.Array:
    """`dynamic_update_slice(pool, update, starts)`, dropped where the row is out of range."""
    numbers, index = box_index(pool, axis, starts, update.shape)
    return lax.scatter(pool, index, update, numbers, mode="drop", unique_indices=True, indices_are_sorted=True)


def _indexed(shape: Sequence[int], axis: int, starts: Sequence[Start], sizes: Sequence[int]) -> tuple[int, ...]:
    """The row axis and the dimensions that a box does not fill."""
    return tuple(
        dim for dim in range(len(shape)) if dim == axis or (sizes[dim] < shape[dim] and not _is_zero(starts[dim]))
    )


def _index(
    pool: jax.Array, axis: int, starts: Sequence[Start], sizes: Sequence[int]
) -> tuple[tuple[int, ...], jax.Array]:
    dims = _indexed(pool.shape, axis, starts, sizes)
    row = starts[axis]
    wide = isinstance(row, jax.Array) and row.dtype.itemsize >= 4
    dtype = row.dtype if isinstance(row, jax.Array) and wide else jnp.int32
    parts = [
        jnp.asarray(starts[dim] if dim == axis else clamped(starts[dim], sizes[dim], pool.shape[dim]), dtype)
        for dim in dims
    ]
    return dims, parts[0][None] if len(parts) == 1 else jnp.stack(parts)


def _is_zero(start: Start) -> bool:
    return isinstance(start, int) and start == 0
