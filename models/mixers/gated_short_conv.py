"""Gated short convolution of LFM2."""

from dataclasses import dataclass

import jax.numpy as jnp
from flax import nnx

from models.layers.initial import matrix
from models.layers.short_conv import layer_conv
from models.mixers.recurrent import Inner, Recurrent
from models.ops.linear import linear
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.sharding.shard_sizes import shard_config
from models.sharding.sharded_dim import Segment, shard_inputs, shard_outputs
from models.state.shapes import Activations, LaneInfo
from models.state.state import ConvRecurrentState, state_array


@dataclass(frozen=True)
class GatedShortConvConfig:
    """Taps (`conv_L_cache`) and local channels."""

    kernel: int
    channels: int
    devices: Devices = SINGLE_DEVICE

    def shard(self, devices: Devices) -> "GatedShortConvConfig":
        return shard_config(self, devices, "channels")

    def build(self, hidden: int, rngs: nnx.Rngs) -> "GatedShortConv":
        return GatedShortConv(self, hidden, rngs)


class GatedShortConv(Recurrent):
    """Mixer `out_proj(c * conv(b * u))` with `[b | c | u] = in_proj x`."""

    def __init__(self, config: GatedShortConvConfig, hidden: int, rngs: nnx.Rngs):
        self.config = config
        channels = Segment(config.channels, config.channels)
        self.in_proj = matrix(rngs, 3 * channels.size, hidden, sharded=(shard_outputs(channels, channels, channels),))
        self.conv = matrix(rngs, channels.size, 1, config.kernel, sharded=(shard_outputs(channels),))
        self.out_proj = matrix(rngs, hidden, channels.size, sharded=(shard_inputs(channels),))

    def state_arrays(self) -> ConvRecurrentState:
        """Return the last K-1 gated inputs."""
        c = self.config
        channels = (Segment(c.channels, c.channels),)
        return ConvRecurrentState(state_array(role="conv", tap=c.kernel - 1, channel=channels), None)

    def project_in(self, x: Activations) -> tuple[Inner, Inner]:
        b, c, u = jnp.split(linear(x, self.in_proj[...], self.config.devices), 3, axis=-1)
        return b * u, c

    def recur(self, tokens: Inner, info: LaneInfo, state: ConvRecurrentState) -> tuple[Inner, ConvRecurrentState]:
        devices = self.config.devices
        mixed, conv = layer_conv(tokens, self.conv[...], state.conv, info, devices=devices, activated=False)
        return mixed, ConvRecurrentState(conv, None)

    def project_out(self, mixed: Inner, gate: Inner, info: LaneInfo) -> Activations:
        return linear(gate * mixed, self.out_proj[...], self.config.devices)
