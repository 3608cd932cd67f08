"""Local shard sizes: the config of one device, and an error that lists every size that does not divide."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from models.sharding.devices import EXPERT, MODEL, SINGLE_DEVICE, Devices

C = TypeVar("C")
MAX_LISTED_DEVICES = 256
"""Devices along an axis up to which an error lists the numbers that divide."""
INDIVISIBLE = (1 << 61) - 1
"""A prime number of devices that divides no size."""


class ShardedSize(NamedTuple):
    """A size of a config that is divided by the devices along a mesh axis.

    Attributes:
        field: its name in the config.
        size: of the whole model.
        axis: mesh axis that shards it.
        replicable: several devices may hold the same unit, where there are more devices than units.
    """

    field: str
    size: int
    axis: str = MODEL
    replicable: bool = False

    def fits(self, devices: int) -> bool:
        """Whether this number of devices can shard it."""
        return self.size % devices == 0 or (self.replicable and devices % self.size == 0)

    def fault(self, devices: Devices) -> str:
        """Describe a size that does not divide, with the numbers of devices that do."""
        fitting = [str(count) for count in range(1, min(self.size, MAX_LISTED_DEVICES) + 1) if self.size % count == 0]
        more = f", or any multiple of {self.size}" if self.replicable else ""
        return (
            f"{self.field} = {self.size} is not divided by {devices.along(self.axis)} devices along {self.axis!r}; "
            f"{', '.join(fitting)} would do{more}"
        )


class ShardingError(ValueError):
    """A model that cannot be sharded over these numbers of devices.

    Attributes:
        devices: the numbers of devices.
        faults: every size that does not divide, one sentence each.
    """

    def __init__(self, devices: Devices, faults: Iterable[str], remedy: str = ""):
        self.devices = devices
        self.faults = list(faults)
        lines = "\n".join(f"  - {fault}" for fault in self.faults)
        super().__init__(
            f"the model cannot be split over model={devices.model}, expert={devices.expert} "
            f"({len(self.faults)} fault(s)):\n{lines}{remedy}"
        )


@runtime_checkable
class Shardable(Protocol):
    """A config that has a config of local sizes for each of several devices."""

    def shard(self, devices: Devices) -> Any:
        """Return the config of one device's shard; raises ShardingError if sizes do not divide."""
        ...


def check_sizes(devices: Devices, sizes: Sequence[ShardedSize]) -> None:
    """Raise `ShardingError` with every size that the devices do not divide."""
    faults = [size.fault(devices) for size in sizes if not size.fits(devices.along(size.axis))]
    if faults:
        raise ShardingError(devices, faults)


def shard_config(
    config: C, devices: Devices, *fields: str, repeated: Sequence[str] = (), others: Sequence[ShardedSize] = ()
) -> C:
    """Return a dataclass with fields divided by the devices along `model`, and `devices` in the field of that name.

    Args:
        config: of the whole model.
        devices: that shard it.
        fields: names of fields that must be multiples of their number.
        repeated: names of fields that may also be divisors of it: then each device has one unit.
        others: further sizes that must divide, which the caller divides.

    Raises:
        ShardingError: with every size that does not divide.
    """
    name = type(config).__name__
    sizes = [
        ShardedSize(f"{name}.{field}", getattr(config, field), MODEL, field in repeated)
        for field in (*fields, *repeated)
    ]
    check_sizes(devices, [*sizes, *others])
    new: dict[str, Any] = {field: max(getattr(config, field) // devices.model, 1) for field in repeated}
    new |= {field: getattr(config, field) // devices.model for field in fields}
    return replace(config, **new, devices=devices)  # type: ignore[type-var]  # a type variable cannot say "any dataclass"


def try_shard_configs(
    configs: Iterable[Shardable], devices: Devices, sizes: Sequence[ShardedSize] = ()
) -> tuple[dict[Any, Any], list[str]]:
    """Return the local config of each config, and every fault of them and of further sizes, each once."""
    local: dict[Any, Any] = {}
    faults = [size.fault(devices) for size in sizes if not size.fits(devices.along(size.axis))]
    for config in configs:
        try:
            local[config] = config.shard(devices)
        except ShardingError as error:
            faults += error.faults
    return local, list(dict.fromkeys(faults))


def shard_configs(configs: Iterable[Shardable], devices: Devices, sizes: Sequence[ShardedSize]) -> dict[Any, Any]:
    """Return the local config of each config of a model's layers.

    Args:
        configs: of the whole layers.
        devices: that shard the model.
        sizes: further sizes that must divide.

    Raises:
        ShardingError: with every size that does not divide, and the numbers of devices that divide all.
    """
    configs = list(configs)

    def fits(axis: str, count: int) -> bool:
        return not try_shard_configs(configs, SINGLE_DEVICE._replace(**{axis: count}), sizes)[1]

    local, faults = try_shard_configs(configs, devices, sizes)
    if not faults:
        return local
    lines = []
    for axis in (MODEL, EXPERT):
        counts = [str(count) for count in range(1, MAX_LISTED_DEVICES + 1) if fits(axis, count)]
        # Devices along an axis that shards nothing all compute the same.
        lines.append(f"{axis} = {'anything' if fits(axis, INDIVISIBLE) else ', '.join(counts)}")
    raise ShardingError(devices, faults, f"\nIt can be split over {' and over '.join(lines)}.")
