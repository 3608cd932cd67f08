"""Dense feed-forward layers (MLP), with SwiGLU, GEGLU or squared ReLU."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float32

from models.layers.activations import SwigluLimit, bounded_silu_gated, gelu_gated, scaled
from models.layers.initial import matrix
from models.ops.linear import joined_linear, linear
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.sharding.shard_sizes import shard_config
from models.sharding.sharded_dim import Segment, shard_inputs, shard_outputs
from models.state.shapes import Activations, LaneInfo
from models.state.state import Stateful

Activation = Literal["swiglu", "geglu", "relu2"]
"""SwiGLU and GEGLU (arXiv:2002.05202), or squared ReLU without a gate (arXiv:2109.08668)."""


def relu_squared(x: Float32[Array, "*rows width"]) -> Float32[Array, "*rows width"]:
    """Return `max(x, 0)^2`."""
    positive = jnp.maximum(x, 0.0)
    return positive * positive


@dataclass(frozen=True)
class MlpConfig:
    """Width (`intermediate_size`) and activation of a feed-forward layer.

    Attributes:
        gate_multiplier, out_multiplier: factors on the gate before its activation, and on the output.
        limit: of SwiGLU; None for no bound.
    """

    width: int
    activation: Activation = "swiglu"
    gate_multiplier: float = 1.0
    out_multiplier: float = 1.0
    limit: SwigluLimit | None = None
    devices: Devices = SINGLE_DEVICE

    def shard(self, devices: Devices) -> "MlpConfig":
        return shard_config(self, devices, "width")

    def build(self, hidden: int, rngs: nnx.Rngs) -> "Mlp":
        return Mlp(self, hidden, rngs)


class Mlp(Stateful):
    """`down(activation(up x))`, with a `gate_proj` for gated activations."""

    def __init__(self, config: MlpConfig, hidden: int, rngs: nnx.Rngs):
        self.config = config
        width = Segment(config.width, config.width)
        gated = config.activation != "relu2"
        self.gate_proj = matrix(rngs, config.width, hidden, sharded=(shard_outputs(width),)) if gated else None
        self.up_proj = matrix(rngs, config.width, hidden, sharded=(shard_outputs(width),))
        self.down_proj = matrix(rngs, hidden, config.width, sharded=(shard_inputs(width),))

    def project(self, x: Float32[Array, "*rows hidden"]) -> Float32[Array, "*rows hidden"]:
        """Return the output, or this device's part of it."""
        c, down = self.config, self.down_proj[...]
        if self.gate_proj is None:
            inner = relu_squared(linear(x, self.up_proj[...], c.devices))
        else:
            geglu = c.activation == "geglu"
            activation = gelu_gated if geglu else partial(bounded_silu_gated, limit=c.limit)
            inner = joined_linear(
                x,
                (self.gate_proj[...], self.up_proj[...]),
                devices=c.devices,
                joined=lambda gate, up: activation(scaled(gate, c.gate_multiplier), up),
                dtype=getattr(down, "dtype", jnp.float32),
            )
        return scaled(linear(inner, down, c.devices), c.out_multiplier)

    def __call__(self, x: Activations, info: LaneInfo, state: None) -> tuple[Activations, None]:
        return self.project(x), None
