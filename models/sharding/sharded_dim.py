"""Shard specs of parameters and states: dimension, mesh axis and segments.

Segments of a dimension ([q | k | v], [gate | up]) are sharded separately: a shard is a device's piece of every segment,
of whole units (heads, groups). A replicable segment with fewer units than devices gives each unit to adjacent devices,
like key/value heads in GQA.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.sharding.devices import EXPERT, MODEL


class Segment(NamedTuple):
    """A contiguous run of entries of one dimension, sharded separately.

    Attributes:
        units: indivisible equal units (heads, groups, columns).
        replicable: devices may share a unit.
    """

    size: int
    units: int
    replicable: bool = False


@dataclass(frozen=True)
class ShardedDim:
    """A dimension of an array, sharded by segments along mesh axis `MODEL` or `EXPERT`."""

    dim: int
    axis: str
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def slices(self, device: int, devices: int) -> list[slice]:
        """Return one device's shard: a slice per segment."""
        slices, start = [], 0
        for segment in self.segments:
            unit = segment.size // segment.units
            if segment.units % devices == 0:
                first, count = device * (segment.units // devices), segment.units // devices
            elif segment.replicable and devices % segment.units == 0:
                first, count = device // (devices // segment.units), 1
            else:
                raise ValueError(
                    f"dimension {self.dim}: {segment.units} units cannot be split over {devices} devices along "
                    f"{self.axis}; `DecoderConfig.shard` lists the numbers of devices that divide every size"
                )
            slices.append(slice(start + first * unit, start + (first + count) * unit))
            start += segment.size
        return slices

    def order(self, devices: int) -> np.ndarray:
        """Return the entries in the order of shards; replicated ones several times."""
        entries = np.arange(self.size)
        return np.concatenate([entries[part] for device in range(devices) for part in self.slices(device, devices)])


def shard_outputs(*segments: Segment) -> ShardedDim:
    """Shard the rows of `[out, in]`, outputs, over `model` (Megatron: column parallel)."""
    return ShardedDim(0, MODEL, segments)


def shard_inputs(*segments: Segment) -> ShardedDim:
    """Shard the columns of `[out, in]`, inputs, over `model` (Megatron: row parallel)."""
    return ShardedDim(1, MODEL, segments)


def shard_experts(count: int) -> ShardedDim:
    """Shard the first dimension, the experts, over `expert`."""
    return ShardedDim(0, EXPERT, (Segment(count, count),))
