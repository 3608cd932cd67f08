"""Parallel layers with a common input and the sum of their outputs."""

from dataclasses import dataclass, replace

from flax import nnx

from models.decoder.decoder import BranchConfig
from models.layers.activations import scaled
from models.sharding.devices import Devices
from models.sharding.shard_sizes import ShardingError, try_shard_configs
from models.state.shapes import Activations, LaneInfo
from models.state.state import Stateful


@dataclass(frozen=True)
class ParallelConfig:
    layers: tuple[BranchConfig, ...]
    multipliers: tuple[float, ...]

    def shard(self, devices: Devices) -> "ParallelConfig":
        local, faults = try_shard_configs(self.layers, devices)
        if faults:
            raise ShardingError(devices, faults)
        return replace(self, layers=tuple(local[layer] for layer in self.layers))

    def build(self, hidden: int, rngs: nnx.Rngs) -> "Parallel":
        return Parallel(self, hidden, rngs)


class Parallel(Stateful):
    """Sum of layers, `sum_i multiplier_i layer_i(x)`; the state is a tuple."""

    def __init__(self, config: ParallelConfig, hidden: int, rngs: nnx.Rngs):
        self.multipliers = config.multipliers
        self.layers = nnx.List([layer.build(hidden, rngs) for layer in config.layers])
        axes = {layer.summed_over for layer in self.layers}
        assert len(axes) == 1, f"parallel layers: expected all-reduces over the same mesh axes, got {axes}"
        (self.summed_over,) = axes

    def state_arrays(self) -> tuple:
        return tuple(layer.state_arrays() for layer in self.layers)

    def without_commit(self) -> list[Stateful]:
        return [inner for layer in self.layers for inner in layer.without_commit()]

    def sites(self) -> dict[str, int]:
        return {kind: count for layer in self.layers for kind, count in layer.sites().items()}

    def __call__(self, x: Activations, info: LaneInfo, state: tuple) -> tuple[Activations, tuple]:
        pairs = zip(self.layers, state, strict=True)
        outputs, states = zip(*(layer(x, info, old) for layer, old in pairs), strict=True)
        total = scaled(outputs[0], self.multipliers[0])
        for output, factor in zip(outputs[1:], self.multipliers[1:], strict=True):
            total = total + scaled(output, factor)
        return total, states

    def commit(self, pending: tuple, info: LaneInfo, state: tuple) -> tuple:
        entries = zip(self.layers, pending, state, strict=True)
        return tuple(layer.commit(new, info, old) for layer, new, old in entries)
