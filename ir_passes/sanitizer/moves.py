"""Gathers, scatters and dynamic slices of tags, with the state's indices.

Indices along tag axes of length 1 become zero; others are clamped, filled or dropped as in the state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ir_passes.host.row_ledger import ReservedOwner
from ir_passes.jaxpr.ir import JaxprEqn, shape_of
from ir_passes.sanitizer.tags import COLUMNS, LABEL, UNKNOWN, Ints, Tags, numpy_of, rows_axis


@dataclass(frozen=True)
class Addressing:
    """Addressing of a tagged value by an equation.

    Attributes:
        column: index component or start operand of the rows, or None.
        batch: shape of the index batch.
        window: axes of the read rows or the update outside the batch.
    """

    column: int | None
    batch: tuple[int, ...]
    window: tuple[int, ...]

    def spread(self, batch: Ints) -> Ints:
        """Expand a batch array to rows or update, with length 1 along the window."""
        return numpy_of(batch).expand_dims(batch, self.window)


def window_of(eqn: JaxprEqn, tags: Tags, indices: Array | None) -> Addressing:
    """Return the addressing of rows by a gather, scatter or dynamic slice."""
    axis = rows_axis(tags)
    if indices is None:
        return Addressing(axis, (), tuple(range(len(tags.shape))))
    numbers: Any = eqn.params["dimension_numbers"]
    if eqn.primitive.name == "gather":
        named, window = numbers.start_index_map, numbers.offset_dims
    else:
        named, window = numbers.scatter_dims_to_operand_dims, numbers.update_window_dims
    named = [int(place) for place in named]
    column = named.index(axis) if axis in named else None
    return Addressing(column, indices.shape[:-1], tuple(int(place) for place in window))


def partial_rows(eqn: JaxprEqn, tags: Tags) -> bool:
    axis = rows_axis(tags)
    return axis is not None and eqn.params["slice_sizes"][axis] < tags.shape[axis]


def gather(eqn: JaxprEqn, array: Ints, indices: Array) -> Ints:
    if set(array.shape[:-1]) <= {1} and array.shape[-1] == 1:
        return array.reshape((1,) * (len(shape_of(eqn.outvars[0])) + 1))
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    rank = array.ndim - 1
    batching, collapsed = _batching(array, numbers.operand_batching_dims, numbers.start_indices_batching_dims)
    out_rank = len(shape_of(eqn.outvars[0]))
    mirrored = lax.GatherDimensionNumbers(
        offset_dims=(*(int(axis) for axis in numbers.offset_dims), out_rank),
        collapsed_slice_dims=tuple(sorted({*(int(axis) for axis in numbers.collapsed_slice_dims), *collapsed})),
        start_index_map=tuple(int(axis) for axis in numbers.start_index_map),
        operand_batching_dims=tuple(batching),
        start_indices_batching_dims=tuple(batching.values()),
    )
    sizes = tuple(1 if array.shape[axis] == 1 else int(sizes[axis]) for axis in range(rank))
    return lax.gather(
        jnp.asarray(array),
        _zero_units(array, indices, mirrored.start_index_map),
        mirrored,
        slice_sizes=(*sizes, array.shape[-1]),
        mode=eqn.params["mode"],
        fill_value=int(ReservedOwner.OUTSIDE) if array.shape[-1] == COLUMNS else UNKNOWN,
    )


def scatter(eqn: JaxprEqn, array: Ints, indices: Array, labels: Ints, moved: Ints, window: Addressing) -> Array:
    """Return a pool's rows after a scatter of labels.

    Computed updates are written last, so a row with several updates is computed if any update is. Dropped updates
    change nothing.

    Args:
        labels: of the update, [..., 4], with length 1 where the pool's tags have it.
        moved: mask of updates that are moved rows; a NumPy array if all are alike.
    """
    numbers = eqn.params["dimension_numbers"]
    _, collapsed = _batching(array, numbers.operand_batching_dims, numbers.scatter_indices_batching_dims)
    mirrored = lax.ScatterDimensionNumbers(
        update_window_dims=(*window.window, labels.ndim - 1),
        inserted_window_dims=tuple(sorted({*(int(axis) for axis in numbers.inserted_window_dims), *collapsed})),
        scatter_dims_to_operand_dims=tuple(int(axis) for axis in numbers.scatter_dims_to_operand_dims),
    )
    indices = _without_dropped(eqn, array, indices, window)
    indices = _zero_units(array, indices, mirrored.scatter_dims_to_operand_dims)
    labels_before = jnp.asarray(array)[..., LABEL:]
    mode = eqn.params["mode"]
    labels_after = lax.scatter(labels_before, indices, jnp.asarray(labels), mirrored, mode=mode)
    if window.column is not None and not isinstance(moved, np.ndarray):
        axis = mirrored.scatter_dims_to_operand_dims[window.column]
        rows, column = array.shape[axis], indices[..., window.column]
        if mode == lax.GatherScatterMode.CLIP:
            column = jnp.clip(column, 0, rows - 1)
        moved_rows = jnp.all(moved, axis=window.window) if window.window else moved
        stamped = indices.at[..., window.column].set(jnp.where(moved_rows, rows, column))
        labels_after = lax.scatter(
            labels_after, stamped, jnp.asarray(labels), mirrored, mode=lax.GatherScatterMode.FILL_OR_DROP
        )
    return jnp.concatenate([array[..., :LABEL], labels_after], axis=-1)


def _without_dropped(eqn: JaxprEqn, array: Ints, indices: Array, window: Addressing) -> Array:
    """Move updates with a dropped index within the row to a row past the end."""
    if window.column is None or eqn.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
        return indices
    numbers: Any = eqn.params["dimension_numbers"]
    full, update = shape_of(eqn.invars[0]), shape_of(eqn.invars[2])
    hidden = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    axes = [axis for axis in range(len(full)) if axis not in hidden]
    sizes = {axis: update[place] for axis, place in zip(axes, numbers.update_window_dims, strict=True)}
    row = numbers.scatter_dims_to_operand_dims[window.column]
    written = jnp.ones(indices.shape[:-1], bool)
    for column, axis in enumerate(numbers.scatter_dims_to_operand_dims):
        if axis != row:
            place = indices[..., column]
            written &= (place >= 0) & (place <= full[axis] - sizes.get(axis, 1))
    return indices.at[..., window.column].set(jnp.where(written, indices[..., window.column], array.shape[row]))


def dynamic_slice(eqn: JaxprEqn, array: Ints, starts: list[Array]) -> Ints:
    if set(array.shape[:-1]) <= {1}:
        return array
    sizes = [1 if array.shape[axis] == 1 else size for axis, size in enumerate(eqn.params["slice_sizes"])]
    return lax.dynamic_slice(jnp.asarray(array), _starts(array, starts), (*sizes, array.shape[-1]))


def dynamic_update_slice(array: Ints, labels: Ints, starts: list[Array]) -> Array:
    updated = lax.dynamic_update_slice(jnp.asarray(array)[..., LABEL:], jnp.asarray(labels), _starts(array, starts))
    return jnp.concatenate([array[..., :LABEL], updated], axis=-1)


def addressed(array: Ints, column: Array) -> Array:
    """Return the rows with these clamped numbers, [..., 5]."""
    return jnp.asarray(array).reshape((-1, COLUMNS)).at[column].get(mode="clip", wrap_negative_indices=False)


def _batching(array: Ints, operand: Any, indices: Any) -> tuple[dict[int, int], set[int]]:
    """Return batching axis -> index axis of the tags, and batching axes that they lack."""
    pairs = {int(axis): int(place) for axis, place in zip(operand, indices, strict=True)}
    present = {axis: place for axis, place in pairs.items() if array.shape[axis] > 1}
    return present, pairs.keys() - present.keys()


def _zero_units(array: Ints, indices: Array, named: Sequence[int]) -> Array:
    factors = [0 if array.shape[axis] == 1 else 1 for axis in named]
    return indices * jnp.array(factors, indices.dtype).reshape((1,) * (indices.ndim - 1) + (len(factors),))


def _starts(array: Ints, starts: list[Array]) -> list[Array]:
    zero = jnp.zeros((), starts[0].dtype) if starts else jnp.zeros((), jnp.int32)
    return [zero if array.shape[axis] == 1 else start for axis, start in enumerate(starts)] + [zero]
