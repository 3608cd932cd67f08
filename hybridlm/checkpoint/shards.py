"""Shards of a parameter over a mesh (tensor parallel and expert parallel).

Of a dimension with several segments (rows of q, k and v), each device has a piece of every segment. The array over all
devices has another order than the whole parameter, and is longer with copies.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from models.sharding.sharded_dim import ShardedDim
from models.weights.sources import ArraySlice, Weight

ParameterPath = tuple[str | int, ...]


def dotted(path: ParameterPath) -> str:
    return ".".join(map(str, path))


class Shards(NamedTuple):
    """Layout of a parameter over devices.

    Attributes:
        sharded_dims: others are whole on every device.
        sharding: None for JAX's default device.
    """

    shape: tuple[int, ...]
    sharded_dims: tuple[ShardedDim, ...] = ()
    sharding: NamedSharding | None = None

    def _along(self, sharded: ShardedDim) -> int:
        assert self.sharding is not None
        return self.sharding.mesh.shape[sharded.axis]

    @property
    def distinct(self) -> int:
        return math.prod(self._along(sharded) for sharded in self.sharded_dims)

    @property
    def local_shape(self) -> tuple[int, ...]:
        shape = list(self.shape)
        for sharded in self.sharded_dims:
            shape[sharded.dim] = sum(part.stop - part.start for part in sharded.slices(0, self._along(sharded)))
        return tuple(shape)

    def local_bytes(self, dtype: np.dtype) -> int:
        return math.prod(self.local_shape) * dtype.itemsize

    @property
    def global_shape(self) -> tuple[int, ...]:
        shape = list(self.local_shape)
        for sharded in self.sharded_dims:
            shape[sharded.dim] *= self._along(sharded)
        return tuple(shape)

    def windows(self, start: tuple[int, ...]) -> Iterator[tuple[ArraySlice, ArraySlice]]:
        """Yield the pieces of the shard at `start`: place in parameter and shard."""
        pieces = [[(slice(None), slice(None))] for _ in self.shape]
        local = self.local_shape
        for sharded in self.sharded_dims:
            device = start[sharded.dim] // local[sharded.dim]
            pieces[sharded.dim], offset = [], 0
            for part in sharded.slices(device, self._along(sharded)):
                size = part.stop - part.start
                pieces[sharded.dim].append((part, slice(offset, offset + size)))
                offset += size
        for piece in itertools.product(*pieces):
            yield tuple(source for source, _ in piece), tuple(target for _, target in piece)


def build_together(
    layouts: Mapping[str, Shards], host: Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, np.ndarray]]
) -> dict[str, jax.Array]:
    """Build arrays on the same devices; this process reads each shard once.

    Args:
        host: shards, not written to afterwards, by the start of each.
    """
    shardings = {name: layout.sharding for name, layout in layouts.items() if layout.sharding is not None}
    if not shardings:
        arrays = host({name: (0,) * len(layout.shape) for name, layout in layouts.items()})
        return {name: jax.device_put(array) for name, array in arrays.items()}
    places: dict[Any, dict[str, tuple[int, ...]]] = {}
    for name, sharding in shardings.items():
        for device, window in sharding.addressable_devices_indices_map(layouts[name].global_shape).items():
            places.setdefault(device, {})[name] = tuple(part.start or 0 for part in window or ())
    shards: dict[tuple[tuple[int, ...], ...], list[Any]] = {}
    for device, starts in places.items():
        shards.setdefault(tuple(starts.values()), []).append(device)
    placed: dict[str, list[jax.Array]] = {name: [] for name in layouts}
    for devices in shards.values():
        for name, part in host(places[devices[0]]).items():
            placed[name] += [jax.device_put(part, device) for device in devices]
        jax.block_until_ready(placed)
    return {
        name: jax.make_array_from_single_device_arrays(layouts[name].global_shape, sharding, placed[name])
        for name, sharding in shardings.items()
    }


ALL_WHOLE: Mapping[ParameterPath, Shards] = MappingProxyType({})


def shards_of(weight: Weight, shards: Mapping[ParameterPath, Shards]) -> Shards:
    """Return a parameter's layout; by default whole on JAX's default device."""
    return shards.get(weight.path) or Shards(tuple(weight.shape))
