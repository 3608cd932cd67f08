"""Places in a kernel's memory: reads and writes by successive indexers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ir_passes.jaxpr import ir
from ir_passes.kernels.memory import UnreadableKernel, uninitialized, within


def is_constant(value: Any) -> bool:
    return isinstance(value, np.generic | np.ndarray | int | float | bool)


@dataclass(frozen=True)
class IndexRange:
    """`size` elements from `start` along a dimension; size None: an index or an array."""

    start: Any
    size: int | None
    stride: int = 1


def place_of(index: Any) -> IndexRange:
    if isinstance(index, IndexRange):
        return index
    if hasattr(index, "size") and hasattr(index, "start"):
        return IndexRange(index.start, int(index.size), int(getattr(index, "stride", 1)))
    return IndexRange(index, None)


Places = list[list[IndexRange]]
"""Indexers, each into the result of the one before."""


@dataclass(frozen=True)
class SelectedBox:
    """The selected part of a masked load or store.

    Attributes:
        places: in the memory, in bounds.
        bounds: start and end along each dimension of the value.
    """

    places: Places
    bounds: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]

    def of(self, value: Any) -> Any:
        return lax.slice(value, [begin for begin, _ in self.bounds], [end for _, end in self.bounds])

    def padded(self, part: Any, mask: Any, other: Any) -> Any:
        """Return `other` (None: anything) with this selected part."""
        if part.shape == self.shape:
            return part
        if other is None:
            other = uninitialized(self.shape, part.dtype)
        around = [(begin, size - end, 0) for (begin, end), size in zip(self.bounds, self.shape, strict=True)]
        padded = lax.pad(part, np.zeros((), part.dtype), around)
        return jnp.where(mask, padded, other)


def varying_along(numbers: Any, dim: int) -> Any:
    """Return an array that varies along `dim` only as 1-D."""
    rest = tuple(size for d, size in enumerate(numbers.shape) if d != dim)
    return numbers.reshape(-1) if np.prod(rest) == 1 and numbers.ndim > dim else None


def places_of(eqn: ir.JaxprEqn, indexers: Sequence[Any]) -> Places:
    all_places = []
    for indexer in indexers:
        indices = getattr(indexer, "indices", None)
        if indices is None:
            raise UnreadableKernel(f"a reference seen as another one, {type(indexer).__name__}")
        places = [_checked(place_of(index), int(full)) for index, full in zip(indices, indexer.shape, strict=True)]
        arrays = [np.ndim(place.start) > 0 for place in places]
        parts = zip(places, indexer.shape, arrays, strict=True)
        is_alone = sum(arrays) == 1 and all(is_array or _is_whole(place, full) for place, full, is_array in parts)
        if any(arrays) and not all(arrays) and not is_alone:
            raise UnreadableKernel("arrays of indices beside slices")
        all_places.append(places)
    return all_places


def _is_whole(place: IndexRange, full: int) -> bool:
    is_static = isinstance(place.start, int | np.integer)
    return is_static and (place.start, place.size, place.stride) == (0, full, 1)


def _checked(place: IndexRange, full: int) -> IndexRange:
    if is_constant(place.start) and np.ndim(place.start) == 0:
        place = IndexRange(int(place.start), place.size, place.stride)
    last = ((place.size or 1) - 1) * place.stride
    if isinstance(place.start, int) and 0 <= place.start < full - last:
        return place
    if place.stride != 1:
        raise UnreadableKernel("a computed slice with a stride")
    start = jnp.asarray(place.start)
    return IndexRange(within(start, full - (place.size or 1) + 1), place.size)


def read_at(value: Any, places: Places) -> Any:
    for indices in places:
        value = _read_once(value, indices)
    return value


def _whole(value: Any, indices: list[IndexRange]) -> bool:
    return all(map(_is_whole, indices, value.shape))


def is_static(indices: list[IndexRange]) -> bool:
    return all(isinstance(place.start, int | np.integer) for place in indices)


def numpy_index(place: IndexRange) -> Any:
    if place.size is None:
        return place.start
    return slice(place.start, place.start + (place.size - 1) * place.stride + 1, place.stride)


def _numbers(indices: list[IndexRange]) -> tuple[Any, ...]:
    return tuple(place.start if place.size is None else slice(None) for place in indices)


def _read_once(value: Any, indices: list[IndexRange]) -> Any:
    if _whole(value, indices):
        return value
    if any(np.ndim(place.start) for place in indices):
        return value.at[_numbers(indices)].get(mode="promise_in_bounds")
    if isinstance(value, np.ndarray):
        return value[tuple(map(numpy_index, indices))]
    if is_static(indices):
        ends = [place.start + ((place.size or 1) - 1) * place.stride + 1 for place in indices]
        part = lax.slice(value, [place.start for place in indices], ends, [place.stride for place in indices])
    else:
        sizes = [place.size or 1 for place in indices]
        part = lax.dynamic_slice(value, _starts(indices), sizes, allow_negative_indices=False)
    return lax.squeeze(part, _scalar_dims(indices))


def write_at(value: Any, places: Places, new: Any) -> Any:
    if not places:
        return new
    indices, *rest = places
    new = write_at(_read_once(value, indices), rest, new) if rest else new
    if _whole(value, indices):
        return new
    if any(np.ndim(place.start) for place in indices):
        return value.at[_numbers(indices)].set(new, mode="promise_in_bounds")
    part = lax.expand_dims(new, _scalar_dims(indices))
    if any(place.stride != 1 for place in indices):
        raise UnreadableKernel("a store with a stride")
    return lax.dynamic_update_slice(value, part, _starts(indices), allow_negative_indices=False)


def _scalar_dims(indices: list[IndexRange]) -> list[int]:
    return [dim for dim, place in enumerate(indices) if place.size is None]


def _starts(indices: list[IndexRange]) -> list[Any]:
    return [lax.convert_element_type(place.start, jnp.int32) for place in indices]
