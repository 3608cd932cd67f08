"""XLA's gather, scatter and dynamic slices in numpy, out-of-range indices included.

Every array has a leading axis of independent runs.
"""

from typing import Any

import numpy as np
from jax import lax

Mode = lax.GatherScatterMode
Params = dict[str, Any]


def _windows(starts: np.ndarray, sizes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Indices [run, point.., window..] of windows at `starts` [run, point.., dim]."""
    points = starts.shape[:-1]
    runs = np.arange(points[0]).reshape([-1] + [1] * (len(points) - 1 + len(sizes)))
    indices = [runs]
    for dim, size in enumerate(sizes):
        along = np.arange(size).reshape([-1 if d == dim else 1 for d in range(len(sizes))])
        indices.append(starts[..., dim].reshape(*points, *[1] * len(sizes)) + along)
    return tuple(indices)


def _clamp(starts: np.ndarray, sizes: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    return np.clip(starts, 0, np.array(shape) - np.array(sizes))


def dynamic_slice(params: Params, operand: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    sizes = tuple(params["slice_sizes"])
    if not sizes:
        return operand
    array = np.stack([start.astype(np.int64) for start in starts], axis=-1)
    return operand[_windows(_clamp(array, sizes, operand.shape[1:]), sizes)]


def dynamic_update_slice(_: Params, operand: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    sizes = update.shape[1:]
    if not sizes:
        return update
    array = np.stack([start.astype(np.int64) for start in starts], axis=-1)
    new = operand.copy()
    new[_windows(_clamp(array, sizes, operand.shape[1:]), sizes)] = update
    return new


def _starts(
    indices: np.ndarray, to_operand: tuple[int, ...], batching: tuple[int, ...], along: tuple[int, ...], rank: int
) -> np.ndarray:
    """[run, point.., dim]: where each slice begins in the operand."""
    starts = np.zeros((*indices.shape[:-1], rank), np.int64)
    for index, dim in enumerate(to_operand):
        starts[..., dim] = indices[..., index]
    for dim, index_dim in zip(batching, along, strict=True):
        shape = [1] * (indices.ndim - 1)
        shape[index_dim + 1] = -1
        starts[..., dim] = np.arange(indices.shape[index_dim + 1]).reshape(shape)
    return starts


def gather_fill(dtype: np.dtype, value: Any = None) -> Any:
    """Return `lax.gather`'s default fill for rows outside the operand."""
    if value is not None:
        return value
    if np.issubdtype(dtype, np.signedinteger):
        return np.iinfo(dtype).min
    if np.issubdtype(dtype, np.unsignedinteger):
        return np.iinfo(dtype).max
    return True if dtype == np.bool_ else np.nan


def gather(params: Params, operand: np.ndarray, indices: np.ndarray) -> np.ndarray:
    numbers, sizes = params["dimension_numbers"], tuple(params["slice_sizes"])
    batching = tuple(numbers.operand_batching_dims)
    starts = _starts(indices, numbers.start_index_map, batching, numbers.start_indices_batching_dims, operand.ndim - 1)
    nested = _clamp(starts, sizes, operand.shape[1:])
    result = operand[_windows(nested, sizes)]
    if Mode.from_any(params["mode"]) == Mode.FILL_OR_DROP:
        outside_value = (nested != starts).any(axis=-1)
        result[outside_value] = gather_fill(operand.dtype, params["fill_value"])
    points = starts.shape[:-1]
    dropped = (*numbers.collapsed_slice_dims, *batching)
    inner = [size for dim, size in enumerate(sizes) if dim not in dropped]
    result = result.reshape(*points, *inner)
    windows = [dim + 1 for dim in numbers.offset_dims]
    outer = [dim for dim in range(result.ndim) if dim not in windows]
    return np.moveaxis(result, range(result.ndim), (*outer, *windows))


COMBINE: dict[str, np.ufunc | None] = {
    "scatter": None, "scatter-add": np.add, "scatter-sub": np.subtract, "scatter-mul": np.multiply,
    "scatter-min": np.minimum, "scatter-max": np.maximum, "scatter_add": np.add, "scatter_mul": np.multiply,
    "scatter_min": np.minimum, "scatter_max": np.maximum,
}  # fmt: skip


def scatter(name: str, params: Params, operand: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    numbers = params["dimension_numbers"]
    batching = tuple(numbers.operand_batching_dims)
    starts = _starts(
        indices, numbers.scatter_dims_to_operand_dims, batching, numbers.scatter_indices_batching_dims, operand.ndim - 1
    )
    windows = [dim + 1 for dim in numbers.update_window_dims]
    outer = [dim for dim in range(updates.ndim) if dim not in windows]
    updates = updates.transpose((*outer, *windows))
    dropped = (*numbers.inserted_window_dims, *batching)
    window = iter(updates.shape[len(outer) :])
    sizes = tuple(1 if dim in dropped else next(window) for dim in range(operand.ndim - 1))
    inner = _clamp(starts, sizes, operand.shape[1:])
    places = np.broadcast_arrays(*_windows(inner, sizes))
    updates = updates.reshape(places[0].shape)
    if Mode.from_any(params["mode"]) != Mode.CLIP:
        saved = (inner == starts).all(axis=-1)
        places, updates = tuple(place[saved] for place in places), updates[saved]
    new = operand.copy()
    combine = COMBINE[name]
    if combine is None:
        new[tuple(places)] = updates
    else:
        combine.at(new, tuple(places), updates)
    return new
