"""The gated short convolution of LFM2: a mixer whose whole state is the last few inputs of its convolution."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx

from models.initial import matrix
from models.linear import linear
from models.recurrent import Recurrent
from models.shapes import Activations, ConvState, LaneInfo
from models.short_conv import layer_conv
from models.state import state_array


class GatedShortConvState(NamedTuple):
    """State of one layer for N lanes: `conv`, the last K-1 gated inputs of the convolution, cache dtype."""

    conv: ConvState


@dataclass(frozen=True)
class GatedShortConvConfig:
    """Taps of the convolution (`conv_L_cache`); it has as many channels as the residual stream."""

    kernel: int

    def build(self, hidden: int, rngs: nnx.Rngs) -> "GatedShortConv":
        return GatedShortConv(self, hidden, rngs)


class GatedShortConv(Recurrent):
    """`[b | c | u] = in_proj x;  y = out_proj(c * conv(b * u))`, without activation."""

    def __init__(self, config: GatedShortConvConfig, hidden: int, rngs: nnx.Rngs):
        self.config = config
        self.hidden = hidden
        self.in_proj = matrix(rngs, 3 * hidden, hidden)
        self.conv = matrix(rngs, hidden, 1, config.kernel)
        self.out_proj = matrix(rngs, hidden, hidden)

    def state_arrays(self) -> GatedShortConvState:
        return GatedShortConvState(state_array(tap=self.config.kernel - 1, channel=self.hidden))

    def given(self, x: Activations) -> tuple[Activations, Activations]:
        b, c, u = jnp.split(linear(x, self.in_proj[...]), 3, axis=-1)
        return b * u, c

    def recur(
        self, given: Activations, info: LaneInfo, state: GatedShortConvState
    ) -> tuple[Activations, GatedShortConvState]:
        mixed, conv = layer_conv(given, self.conv[...], state.conv, info)
        return mixed, GatedShortConvState(conv)

    def finish(self, mixed: Activations, rest: Activations) -> Activations:
        return linear(rest * mixed, self.out_proj[...])
