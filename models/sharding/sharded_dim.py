"""Shard specs of parameters and states: dimension, mesh axis and segments.

Each segment of a dimension ([q | k | v], [gate | up]) is sharded separately: the shard of a device is its piece of
every segment, in order. A piece is a number of whole units (heads, groups). A replicable segment with fewer units than
devices gives each unit to several adjacent devices, like key/value heads in GQA.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.sharding.devices import EXPERT, MODEL


class Segment(NamedTuple):
    """A contiguous run of entries of one dimension, sharded separately.

    Attributes:
        size: number of entries.
        units: number of indivisible units of equal size (heads, groups, columns).
        replicable: several devices may have the same unit, with more devices than units.
    """

    size: int
    units: int
    replicable: bool = False


@dataclass(frozen=True)
class ShardedDim:
    """A dimension of an array, sharded over the devices along one mesh axis.

    Attributes:
        dim: index of the dimension.
        axis: `models.sharding.devices.MODEL` (tensor parallel) or `EXPERT` (expert parallel).
        segments: in the order of the whole array.
    """

    dim: int
    axis: str
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        """Entries of the dimension in the whole array."""
        return sum(segment.size for segment in self.segments)

    def slices(self, device: int, devices: int) -> list[slice]:
        """Return the shard of one device: a slice of the dimension for each segment.

        Args:
            device: its index along the axis.
            devices: devices along the axis; a number accepted by `DecoderConfig.shard`.
        """
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
        """Return the entries of the dimension in the order of the devices' shards.

        Replicated entries occur several times. Arguments and errors as for `slices`.
        """
        entries = np.arange(self.size)
        return np.concatenate([entries[part] for device in range(devices) for part in self.slices(device, devices)])


def shard_outputs(*segments: Segment) -> ShardedDim:
    """Shard the rows of `[out, in]`, a projection's outputs, over `model` (Megatron: column parallel)."""
    return ShardedDim(0, MODEL, segments)


def shard_inputs(*segments: Segment) -> ShardedDim:
    """Shard the columns of `[out, in]`, a projection's inputs, over `model` (Megatron: row parallel)."""
    return ShardedDim(1, MODEL, segments)


def shard_experts(count: int) -> ShardedDim:
    """Shard the first dimension, the experts, over `expert`."""
    return ShardedDim(0, EXPERT, (Segment(count, count),))
