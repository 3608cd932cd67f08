"""One parameter over the devices of a mesh: which part of the whole array each device has.

A dimension is split over one axis of the mesh. Where it is made of several parts (rows of q, k and v), each device has
its own piece of every part, one after another; so the array over all devices is the whole one in another order, and
longer where devices have the same piece.
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
    """How a parameter lies over devices.

    Attributes:
        shape: of the whole parameter.
        cuts: of its dimensions; a dimension without one is whole on every device.
        sharding: of the array over all devices, dimensions in the same order; None for JAX's default device.
    """

    shape: tuple[int, ...]
    cuts: tuple[ShardedDim, ...] = ()
    sharding: NamedSharding | None = None

    def _along(self, cut: ShardedDim) -> int:
        assert self.sharding is not None
        return self.sharding.mesh.shape[cut.axis]

    @property
    def split(self) -> bool:
        """Whether no device has all of it."""
        return self.different > 1

    @property
    def different(self) -> int:
        """Devices that have different parts."""
        return math.prod(self._along(cut) for cut in self.cuts)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Of one device."""
        shape = list(self.shape)
        for cut in self.cuts:  # of a share all devices have the same number of entries
            shape[cut.dim] = sum(one.stop - one.start for one in cut.slices(0, self._along(cut)))
        return tuple(shape)

    def local_bytes(self, dtype: np.dtype) -> int:
        """Of one device."""
        return math.prod(self.local_shape) * dtype.itemsize

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Of the array over all devices."""
        shape = list(self.local_shape)
        for cut in self.cuts:
            shape[cut.dim] *= self._along(cut)
        return tuple(shape)

    def windows(self, at: tuple[int, ...]) -> Iterator[tuple[ArraySlice, ArraySlice]]:
        """The pieces that one device has: where each lies in the whole parameter, and where in the device's array.

        Args:
            at: where the device's part of the array over all devices begins.
        """
        pieces = [[(slice(None), slice(None))] for _ in self.shape]
        local = self.local_shape
        for cut in self.cuts:
            device = at[cut.dim] // local[cut.dim]
            pieces[cut.dim], start = [], 0
            for one in cut.slices(device, self._along(cut)):
                size = one.stop - one.start
                pieces[cut.dim].append((one, slice(start, start + size)))
                start += size
        for piece in itertools.product(*pieces):
            yield tuple(source for source, _ in piece), tuple(target for _, target in piece)

    def build(
        self, host: Callable[[Iterator[tuple[ArraySlice, ArraySlice]], tuple[int, ...]], np.ndarray]
    ) -> jax.Array:
        """The array over all devices of this process, made of one host array for each different part.

        Args:
            host: (windows, shape) -> what a device has; nothing writes to it afterwards.
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
    """How a parameter lies; one that is not named is whole on JAX's default device."""
    return shards.get(weight.path) or Shards(tuple(weight.shape))
