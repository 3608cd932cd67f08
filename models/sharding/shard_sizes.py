"""Local shard sizes: one device's config, and an error with every indivisible size."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from models.sharding.devices import EXPERT, MODEL, SINGLE_DEVICE, Devices

C = TypeVar("C")
MAX_LISTED_DEVICES = 256
INDIVISIBLE = (1 << 61) - 1
"""A prime number that divides no size."""


class ShardedSize(NamedTuple):
    """A size divided along a mesh axis; `replicable` units may be on several devices."""

    field: str
    size: int
    axis: str = MODEL
    replicable: bool = False

    def fits(self, devices: int) -> bool:
        return self.size % devices == 0 or (self.replicable and devices % self.size == 0)

    def fault(self, devices: Devices) -> str:
        """Describe an indivisible size, with possible numbers of devices."""
        fitting = [str(count) for count in range(1, min(self.size, MAX_LISTED_DEVICES) + 1) if self.size % count == 0]
        multiples = f", or any multiple of {self.size}" if self.replicable else ""
        return (
            f"{self.field} = {self.size} is not divided by {devices.along(self.axis)} devices along {self.axis!r}; "
            f"{', '.join(fitting)} would do{multiples}"
        )


class ShardingError(ValueError):
    """A model with sizes that these devices do not divide."""

    def __init__(self, devices: Devices, faults: Iterable[str], remedy: str = ""):
        self.devices, self._remedy = devices, remedy
        self.faults = list(faults)
        lines = "\n".join(f"  - {fault}" for fault in self.faults)
        super().__init__(
            f"the model cannot be split over model={devices.model}, expert={devices.expert} "
            f"({len(self.faults)} fault(s)):\n{lines}{remedy}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.devices, self.faults, self._remedy)


def _faults(devices: Devices, sizes: Sequence[ShardedSize]) -> list[str]:
    return [size.fault(devices) for size in sizes if not size.fits(devices.along(size.axis))]


def shard_config(
    config: C, devices: Devices, *fields: str, repeated: Sequence[str] = (), others: Sequence[ShardedSize] = ()
) -> C:
    """Return a config with `devices` and fields divided along `model`.

    Args:
        fields: multiples of their number.
        repeated: may also be divisors: each device has one unit.

    Raises:
        ShardingError: with every indivisible size.
    """
    name = type(config).__name__
    sizes = [
        ShardedSize(f"{name}.{field}", getattr(config, field), MODEL, field in repeated)
        for field in (*fields, *repeated)
    ]
    if faults := _faults(devices, [*sizes, *others]):
        raise ShardingError(devices, faults)
    new: dict[str, Any] = {field: max(getattr(config, field) // devices.model, 1) for field in repeated}
    new |= {field: getattr(config, field) // devices.model for field in fields}
    return replace(config, **new, devices=devices)  # type: ignore[type-var]  # a type variable cannot say "any dataclass"


def shard_groups(config: C, devices: Devices) -> C:
    """Return the config of one device's `heads` and their `groups`, replicated if shared.

    `group_devices` is the number of devices with heads of one group.
    """
    groups: int = getattr(config, "groups")  # noqa: B009  # a type variable cannot say which fields there are
    local: Any = shard_config(config, devices, "heads", repeated=("groups",))
    return replace(local, group_devices=max(devices.model // groups, 1))


def try_shard_configs(
    configs: Iterable[Any], devices: Devices, sizes: Sequence[ShardedSize] = ()
) -> tuple[dict[Any, Any], list[str]]:
    """Return each local config, and all faults once."""
    local: dict[Any, Any] = {}
    faults = _faults(devices, sizes)
    for config in configs:
        try:
            local[config] = config.shard(devices)
        except ShardingError as error:
            faults += error.faults
    return local, list(dict.fromkeys(faults))


def shard_configs(configs: Iterable[Any], devices: Devices, sizes: Sequence[ShardedSize]) -> dict[Any, Any]:
    """Return the local config of each layer config.

    Raises:
        ShardingError: with every indivisible size, and possible numbers of devices.
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
        # An axis without sharded sizes can have any number of devices.
        lines.append(f"{axis} = {'anything' if fits(axis, INDIVISIBLE) else ', '.join(counts)}")
    raise ShardingError(devices, faults, f"\nIt can be split over {' and over '.join(lines)}.")
