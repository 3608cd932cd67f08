"""Gated DeltaNet mixer (arXiv:2412.06464) as in Qwen3-Next, Qwen3.5, OLMo Hybrid and GigaChat3.5."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models.layers.activations import scaled
from models.layers.initial import decay_rates, matrix, parameter
from models.layers.norms import rms_norm
from models.mixers.recurrent import DeltaRule, HeadOutputs, Inner
from models.ops.float32 import silu_gated
from models.ops.linear import joined_linear, linear
from models.ops.recurrences.delta_rule import DeltaTokens
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.sharding.shard_sizes import shard_config
from models.sharding.sharded_dim import Segment, shard_inputs, shard_outputs
from models.state.shapes import Activations
from models.state.state import ConvRecurrentState, conv_recurrent


@dataclass(frozen=True)
class GatedDeltaNetConfig:
    """Sizes of a Gated DeltaNet layer.

    Attributes:
        key_heads, value_heads: `linear_num_key_heads`, `linear_num_value_heads` (a multiple of the former).
        key_size, value_size: `linear_key_head_dim`, `linear_value_head_dim`.
        kernel: `linear_conv_kernel_dim`.
        eps: `rms_norm_eps`, of the gated norm.
        strongest_write: upper bound of the write strength; above 1 a write may reverse the sign of the state (negative
            eigenvalues).
        gate, gate_factor: activation of the output gate, and a factor on it.
        norm_offset: 1 if checkpoints store the weights of the gated norm minus one.
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    kernel: int
    eps: float
    strongest_write: float = 1.0
    gate: Literal["silu", "sigmoid"] = "silu"
    gate_factor: float = 1.0
    norm_offset: float = 0.0
    devices: Devices = SINGLE_DEVICE

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_size

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_size

    @property
    def channels(self) -> int:
        return 2 * self.key_width + self.value_width

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments of the channels [q | k | v], by heads."""
        keys = Segment(self.key_width, self.key_heads, replicable=True)
        return keys, keys, Segment(self.value_width, self.value_heads)

    def shard(self, devices: Devices) -> "GatedDeltaNetConfig":
        """Return one device's config; fewer key heads than devices are replicated."""
        return shard_config(self, devices, "value_heads", repeated=("key_heads",))

    def build(self, hidden: int, rngs: nnx.Rngs) -> "GatedDeltaNet":
        return GatedDeltaNet(self, hidden, rngs)


class GatedDeltaNet(DeltaRule):
    """Mixer: projections -> short convolution -> gated delta rule -> gated norm -> projection."""

    def __init__(self, config: GatedDeltaNetConfig, hidden: int, rngs: nnx.Rngs):
        c = config
        self.config, self.key_heads = config, config.key_heads
        channels, heads = shard_outputs(*c.segments), shard_outputs(Segment(c.value_heads, c.value_heads))
        values = Segment(c.value_width, c.value_heads)
        self.in_proj_qkv = matrix(rngs, c.channels, hidden, sharded=(channels,))
        self.in_proj_z = matrix(rngs, c.value_width, hidden, sharded=(shard_outputs(values),))
        self.in_proj_b = matrix(rngs, c.value_heads, hidden, sharded=(heads,))
        self.in_proj_a = matrix(rngs, c.value_heads, hidden, sharded=(heads,))
        self.conv1d = matrix(rngs, c.channels, 1, c.kernel, sharded=(channels,))
        self.A_log = decay_rates(rngs, c.value_heads, sharded=(heads,))
        self.dt_bias = parameter(jnp.ones((c.value_heads,), jnp.float32), heads)
        self.norm = nnx.Param(jnp.full((c.value_size,), 1.0 - c.norm_offset, jnp.float32))
        self.out_proj = matrix(rngs, hidden, c.value_width, sharded=(shard_inputs(values),))

    def state_arrays(self) -> ConvRecurrentState:
        c = self.config
        return conv_recurrent(c.kernel, c.segments, c.value_heads, c.key_size, c.value_size)

    def project_in(self, x: Activations) -> tuple[DeltaTokens, Inner]:
        c = self.config

        def gates(b: Array, a: Array, rate: Array, bias: Array) -> tuple[Array, Array]:
            return scaled(jax.nn.sigmoid(b), c.strongest_write), -jnp.exp(rate) * jax.nn.softplus(a + bias)

        weights, vectors = (self.in_proj_b[...], self.in_proj_a[...]), (self.A_log[...], self.dt_bias[...])
        beta, log_decay = joined_linear(x, weights, vectors, c.devices, joined=gates)
        mixed, gate = (linear(x, weight[...], c.devices) for weight in (self.in_proj_qkv, self.in_proj_z))
        return DeltaTokens(mixed, log_decay, beta), gate

    def gated(self, mixed: HeadOutputs, gate: Inner) -> HeadOutputs:
        c = self.config
        normed, gate = rms_norm(mixed, self.norm[...] + c.norm_offset, c.eps), gate.reshape(mixed.shape)
        gated = silu_gated(gate, normed) if c.gate == "silu" else jax.nn.sigmoid(gate) * normed
        return scaled(gated, c.gate_factor)
