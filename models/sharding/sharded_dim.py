"""Shard specs of parameters and states: which dimension is sharded over which mesh axis, and in which segments.

A dimension that consists of several segments ([q | k | v], [gate | up]) is never sharded as one contiguous run: each
segment is, and the shard of a device is its piece of every segment, one after another. A piece is a number of whole
units (heads, groups). A replicable segment with fewer units than devices gives each unit to several adjacent devices,
as GQA does with key/value heads.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.sharding.devices import EXPERT, MODEL


class Segment(NamedTuple):
    """A contiguous run of entries of one dimension that is sharded by itself.

    Attributes:
        size: number of entries.
        units: number of indivisible units of equal size (heads, groups, columns) that the entries form.
        replicable: a unit may lie on several devices, where there are more devices than units.
    """

    size: int
    units: int
    replicable: bool = False


@dataclass(frozen=True)
class ShardedDim:
    """A dimension of an array that is sharded over the devices along one mesh axis.

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
        """Return the shard of one device: a slice of the whole array's dimension for each segment, in order.

        Args:
            device: its index along the axis.
            devices: devices along the axis; a number that `DecoderConfig.shard` accepts.
        """
        found, start = [], 0
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
            found.append(slice(start + first * unit, start + (first + count) * unit))
            start += segment.size
        return found

    def order(self, devices: int) -> np.ndarray:
        """Return the whole array's entries in the order in which the devices' shards hold them, one after another.

        Entries that lie on several devices are there several times. Arguments and errors as for `slices`.
        """
        entries = np.arange(self.size)
        return np.concatenate([entries[one] for device in range(devices) for one in self.slices(device, devices)])


def shard_outputs(*segments: Segment) -> ShardedDim:
    """Shard the rows of `[out, in]` over `model`: the outputs of a projection (column parallel in Megatron's terms)."""
    return ShardedDim(0, MODEL, segments)


def shard_inputs(*segments: Segment) -> ShardedDim:
    """Shard the columns of `[out, in]` over `model`: the inputs of a projection (row parallel in Megatron's terms)."""
    return ShardedDim(1, MODEL, segments)


def shard_experts(count: int) -> ShardedDim:
    """Shard the first dimension, which has one entry for each expert, over `expert`."""
    return ShardedDim(0, EXPERT, (Segment(count, count),))
