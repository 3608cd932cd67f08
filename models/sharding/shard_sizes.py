"""What of a config one device has: sizes divided by the number of devices, and the error where they do not divide."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from models.sharding.devices import EXPERT, MODEL, SINGLE_DEVICE, Devices

C = TypeVar("C")
MAX_LISTED_DEVICES = 256
"""Devices along an axis up to which numbers are listed."""
INDIVISIBLE = (1 << 61) - 1
"""A prime number of devices that no size can be divided by."""


class ShardedSize(NamedTuple):
    """A size of a config that is divided among devices.

    Attributes:
        field: where it stands in the config.
        size: of the whole model.
        axis: mesh axis whose devices share it.
        replicable: each of several devices may have the same, where there are more devices than it counts.
    """

    field: str
    size: int
    axis: str = MODEL
    replicable: bool = False

    def fits(self, devices: int) -> bool:
        """Whether so many devices can share it."""
        return self.size % devices == 0 or (self.replicable and devices % self.size == 0)

    def fault(self, devices: Devices) -> str:
        """What is wrong with it, and which numbers of devices are right."""
        fitting = [str(count) for count in range(1, min(self.size, MAX_LISTED_DEVICES) + 1) if self.size % count == 0]
        more = f", or any multiple of {self.size}" if self.replicable else ""
        return (
            f"{self.field} = {self.size} is not divided by {devices.along(self.axis)} devices along {self.axis!r}; "
            f"{', '.join(fitting)} would do{more}"
        )


class ShardingError(ValueError):
    """A model that cannot be spread over so many devices.

    Attributes:
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
    """A config that can be shared."""

    def shard(self, devices: Devices) -> Any: ...


def check_sizes(devices: Devices, sizes: Sequence[ShardedSize]) -> None:
    """Raise `ShardingError` with every size that the devices cannot share."""
    faults = [size.fault(devices) for size in sizes if not size.fits(devices.along(size.axis))]
    if faults:
        raise ShardingError(devices, faults)


def shard_config(
    config: C, devices: Devices, *fields: str, repeated: Sequence[str] = (), others: Sequence[ShardedSize] = ()
) -> C:
    """A dataclass with fields divided by the devices along `model`, and `devices` in the field of that name.

    Args:
        config: of the whole model.
        devices: that share it.
        fields: names of fields that must be multiples of their number.
        repeated: names of fields that may also be divisors of it: then each device has one.
        others: further sizes that have to be divided, by who asks.

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
    """What one device has of each config, and every fault of them and of further sizes, each once."""
    shares: dict[Any, Any] = {}
    faults = [size.fault(devices) for size in sizes if not size.fits(devices.along(size.axis))]
    for config in configs:
        try:
            shares[config] = config.shard(devices)
        except ShardingError as error:
            faults += error.faults
    return shares, list(dict.fromkeys(faults))


def shard_configs(configs: Iterable[Shardable], devices: Devices, sizes: Sequence[ShardedSize]) -> dict[Any, Any]:
    """What one device has of each config of a model's layers.

    Args:
        configs: of the whole layers.
        devices: that share the model.
        sizes: further ones that are divided.

    Raises:
        ShardingError: with every size that does not divide, and the numbers of devices that would do.
    """
    configs = list(configs)

    def fits(axis: str, count: int) -> bool:
        return not try_shard_configs(configs, SINGLE_DEVICE._replace(**{axis: count}), sizes)[1]

    shares, faults = try_shard_configs(configs, devices, sizes)
    if not faults:
        return shares
    lines = []
    for axis in (MODEL, EXPERT):
        counts = [str(count) for count in range(1, MAX_LISTED_DEVICES + 1) if fits(axis, count)]
        # devices along an axis that nothing is split along all compute the same
        lines.append(f"{axis} = {'anything' if fits(axis, INDIVISIBLE) else ', '.join(counts)}")
    raise ShardingError(devices, faults, f"\nIt can be split over {' and over '.join(lines)}.")
