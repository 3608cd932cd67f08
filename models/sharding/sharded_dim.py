"""How a parameter is cut into the shares of several devices.

Rows that belong to several segments ([q | k | v], [gate | up]) are never cut as one run: each part is, and a device's
share is its piece of every part, one after another. A piece is a number of whole units (heads, groups); a part that may
be repeated and has fewer units than there are devices gives one unit to several neighbours.
"""

from dataclasses import dataclass
from typing import NamedTuple

from models.sharding.devices import EXPERT, MODEL


class Segment(NamedTuple):
    """A run of entries of one dimension that is cut for itself.

    Attributes:
        size: its entries.
        units: how many indivisible units they are, of equal size.
        replicable: a unit may lie on several devices, where there are more devices than units.
    """

    size: int
    units: int
    replicable: bool = False


@dataclass(frozen=True)
class ShardedDim:
    """One dimension of an array, split over the devices along one mesh axis.

    Attributes:
        dim: the dimension.
        axis: `models.sharding.devices.MODEL` or `EXPERT`.
        segments: in the order in which they lie in the whole array.
    """

    dim: int
    axis: str
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        """Entries of the dimension in the whole array."""
        return sum(part.size for part in self.segments)

    def slices(self, device: int, devices: int) -> list[slice]:
        """Where the share of one device lies in the whole array: a slice of each part, in their order.

        Args:
            device: its place along the axis.
            devices: devices along the axis; a number that `DecoderConfig.share` accepts.
        """
        found, start = [], 0
        for part in self.segments:
            unit = part.size // part.units
            if part.units % devices == 0:
                first, count = device * (part.units // devices), part.units // devices
            elif part.replicable and devices % part.units == 0:
                first, count = device // (devices // part.units), 1
            else:
                raise ValueError(
                    f"dimension {self.dim}: {part.units} units cannot be split over {devices} devices along "
                    f"{self.axis}; `DecoderConfig.share` lists the numbers that it can be split over"
                )
            found.append(slice(start + first * unit, start + (first + count) * unit))
            start += part.size
        return found


def shard_outputs(*segments: Segment) -> ShardedDim:
    """The first dimension, split over `model`: what a projection gives."""
    return ShardedDim(0, MODEL, segments)


def shard_inputs(*segments: Segment) -> ShardedDim:
    """The second of two dimensions, split over `model`: what a projection takes."""
    return ShardedDim(1, MODEL, segments)


def shard_experts(count: int) -> ShardedDim:
    """The first dimension, one entry for each expert, split over `expert`."""
    return ShardedDim(0, EXPERT, (Segment(count, count),))
