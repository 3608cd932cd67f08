"""Parallel layers: they have the same input, and their outputs are added."""

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
    """Configs of parallel layers, and the factor on the output of each."""

    layers: tuple[BranchConfig, ...]
    multipliers: tuple[float, ...]

    def shard(self, devices: Devices) -> "ParallelConfig":
        """Return the config of one device, that of each layer."""
        local, faults = try_shard_configs(self.layers, devices)
        if faults:
            raise ShardingError(devices, faults)
        return replace(self, layers=tuple(local[layer] for layer in self.layers))

    def build(self, hidden: int, rngs: nnx.Rngs) -> "Parallel":
        """Build the layers that share their input and whose outputs are summed."""
        return Parallel(self, hidden, rngs)


class Parallel(Stateful):
    """Sum of layers, `sum_i multiplier_i layer_i(x)`; the state is a tuple of the layers' states."""

    def __init__(self, config: ParallelConfig, hidden: int, rngs: nnx.Rngs):
        self.multipliers = config.multipliers
        self.layers = nnx.List([layer.build(hidden, rngs) for layer in config.layers])
        axes = {layer.summed_over for layer in self.layers}
        assert len(axes) == 1, f"layers whose outputs are summed over {axes} cannot be added before they are"
        (self.summed_over,) = axes

    def state_arrays(self) -> tuple:
        """Return the state of each layer, as `Stateful.state_arrays`."""
        return tuple(layer.state_arrays() for layer in self.layers)

    def without_commit(self) -> list[Stateful]:
        """Return those of the layers."""
        return [each for layer in self.layers for each in layer.without_commit()]

    def sites(self) -> dict[str, int]:
        """Return the number of heads by kind of mixer, of all layers together."""
        return {kind: count for layer in self.layers for kind, count in layer.sites().items()}

    def __call__(self, x: Activations, info: LaneInfo, state: tuple) -> tuple[Activations, tuple]:
        outputs, kept = zip(*(layer(x, info, own) for layer, own in zip(self.layers, state, strict=True)), strict=True)
        total = scaled(outputs[0], self.multipliers[0])
        for output, factor in zip(outputs[1:], self.multipliers[1:], strict=True):
            total = total + scaled(output, factor)
        return total, kept

    def commit(self, kept: tuple, info: LaneInfo, state: tuple) -> tuple:
        """Return the state of each layer with the accepted tokens only."""
        return tuple(layer.commit(given, info, own) for layer, given, own in zip(self.layers, kept, state, strict=True))
