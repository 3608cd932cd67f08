"""Shards of a parameter over the devices of a mesh (tensor parallel and expert parallel).

A dimension is sharded over one axis of the mesh. If it consists of several segments (rows of q, k and v), each device
has its own piece of every segment, one after another. The array over all devices therefore has another order than the
whole parameter, and is longer if several devices have the same piece.
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


class Shards(NamedTuple):
    """Layout of a parameter over devices.

    Attributes:
        shape: of the whole parameter.
        sharded_dims: its sharded dimensions; the others are whole on every device.
        sharding: of the array over all devices, dimensions in the same order; None for JAX's default device.
    """

    shape: tuple[int, ...]
    sharded_dims: tuple[ShardedDim, ...] = ()
    sharding: NamedSharding | None = None

    def _along(self, sharded: ShardedDim) -> int:
        assert self.sharding is not None
        return self.sharding.mesh.shape[sharded.axis]

    @property
    def distinct(self) -> int:
        """Number of distinct shards."""
        return math.prod(self._along(sharded) for sharded in self.sharded_dims)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of one device's shard, the same for all devices."""
        shape = list(self.shape)
        for sharded in self.sharded_dims:
            shape[sharded.dim] = sum(one.stop - one.start for one in sharded.slices(0, self._along(sharded)))
        return tuple(shape)

    def local_bytes(self, dtype: np.dtype) -> int:
        """Return the bytes of one device's shard."""
        return math.prod(self.local_shape) * dtype.itemsize

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Shape of the array over all devices."""
        shape = list(self.local_shape)
        for sharded in self.sharded_dims:
            shape[sharded.dim] *= self._along(sharded)
        return tuple(shape)

    def windows(self, at: tuple[int, ...]) -> Iterator[tuple[ArraySlice, ArraySlice]]:
        """Yield the pieces of one device's shard: the place in the whole parameter, and the place in the shard.

        Args:
            at: where the shard begins in the array over all devices.
        """
        pieces = [[(slice(None), slice(None))] for _ in self.shape]
        local = self.local_shape
        for sharded in self.sharded_dims:
            device = at[sharded.dim] // local[sharded.dim]
            pieces[sharded.dim], start = [], 0
            for one in sharded.slices(device, self._along(sharded)):
                size = one.stop - one.start
                pieces[sharded.dim].append((one, slice(start, start + size)))
                start += size
        for piece in itertools.product(*pieces):
            yield tuple(source for source, _ in piece), tuple(target for _, target in piece)

    def build(
        self, host: Callable[[Iterator[tuple[ArraySlice, ArraySlice]], tuple[int, ...]], np.ndarray]
    ) -> jax.Array:
        """Build the array from one host array for each distinct shard of this process's devices.

        Args:
            host: (windows, shape) -> a shard, which must not be written to afterwards.
        """
        if self.sharding is None:
            return jax.device_put(host(self.windows(()), self.shape))
        parts: dict[tuple[int, ...], list[Any]] = {}
        for device, window in self.sharding.addressable_devices_indices_map(self.global_shape).items():
            parts.setdefault(tuple(one.start or 0 for one in window or ()), []).append(device)
        placed = []
        for at, devices in parts.items():
            part = host(self.windows(at), self.local_shape)
            placed += [jax.device_put(part, device) for device in devices]
            jax.block_until_ready(placed)
        return jax.make_array_from_single_device_arrays(self.global_shape, self.sharding, placed)


ALL_WHOLE: Mapping[tuple[str | int, ...], Shards] = MappingProxyType({})
"""Every parameter is whole on JAX's default device."""


def shards_of(weight: Weight, shards: Mapping[tuple[str | int, ...], Shards]) -> Shards:
    """Return the layout of a parameter; by default it is whole on JAX's default device."""
    return shards.get(weight.path) or Shards(tuple(weight.shape))
