"""Kimi Delta Attention (KDA, arXiv:2510.26692): gated delta rule with a decay per key channel.

Queries, keys and values have equal numbers of heads; the output gate is a sigmoid.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models.layers.initial import decay_rates, matrix, parameter
from models.layers.norms import rms_norm
from models.mixers.recurrent import DeltaRule, HeadOutputs, Inner
from models.ops.linear import linear
from models.ops.recurrences.delta_rule import DeltaTokens
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.sharding.shard_sizes import shard_config
from models.sharding.sharded_dim import Segment, shard_inputs, shard_outputs
from models.state.shapes import Activations
from models.state.state import ConvRecurrentState, conv_recurrent


@dataclass(frozen=True)
class KimiDeltaAttentionConfig:
    """Sizes and gates of a layer.

    Attributes:
        heads, head_size: of queries, keys and values alike.
        bottleneck: rank of the projections of decay and output gate; None for full matrices.
        lower_bound: the log-decay is `lower_bound * sigmoid(exp(A_log) * f)`; None for `-exp(A_log) * softplus(f)`.
    """

    heads: int
    head_size: int
    kernel: int
    eps: float
    bottleneck: int | None
    lower_bound: float | None = None
    devices: Devices = SINGLE_DEVICE

    @property
    def width(self) -> int:
        return self.heads * self.head_size

    @property
    def channels(self) -> int:
        return 3 * self.width

    @property
    def segment(self) -> Segment:
        """Segment of the channels of the queries, keys, values, decay or gate, by heads."""
        return Segment(self.width, self.heads)

    def shard(self, devices: Devices) -> "KimiDeltaAttentionConfig":
        """Return one device's config: its heads and a replicated bottleneck."""
        return shard_config(self, devices, "heads")

    def build(self, hidden: int, rngs: nnx.Rngs) -> "KimiDeltaAttention":
        return KimiDeltaAttention(self, hidden, rngs)


class GateProjection(nnx.Module):
    """Projection to every channel of every head, through a bottleneck or directly."""

    def __init__(self, width: Segment, bottleneck: int | None, hidden: int, rngs: nnx.Rngs, devices: Devices):
        self.devices = devices
        self.down = None if bottleneck is None else matrix(rngs, bottleneck, hidden)
        self.up = matrix(rngs, width.size, bottleneck or hidden, sharded=(shard_outputs(width),))

    def __call__(self, x: Activations) -> Array:
        if self.down is not None:
            x = linear(x, self.down[...], self.devices)
        return linear(x, self.up[...], self.devices)


class KimiDeltaAttention(DeltaRule):
    """Mixer: x -> projections -> short convolution -> delta rule -> gated norm -> projection."""

    def __init__(self, config: KimiDeltaAttentionConfig, hidden: int, rngs: nnx.Rngs):
        c = config
        self.config, self.key_heads = config, config.heads
        channels, heads = shard_outputs(c.segment, c.segment, c.segment), shard_outputs(Segment(c.heads, c.heads))
        self.in_proj_qkv = matrix(rngs, c.channels, hidden, sharded=(channels,))
        self.conv1d = matrix(rngs, c.channels, 1, c.kernel, sharded=(channels,))
        self.decay = GateProjection(c.segment, c.bottleneck, hidden, rngs, config.devices)
        self.in_proj_b = matrix(rngs, c.heads, hidden, sharded=(heads,))
        self.A_log = decay_rates(rngs, c.heads, sharded=(heads,))
        self.dt_bias = parameter(jnp.ones((c.width,), jnp.float32), shard_outputs(c.segment))
        self.gate = GateProjection(c.segment, c.bottleneck, hidden, rngs, config.devices)
        self.norm = nnx.Param(jnp.ones((c.head_size,), jnp.float32))
        self.out_proj = matrix(rngs, hidden, c.width, sharded=(shard_inputs(c.segment),))

    def state_arrays(self) -> ConvRecurrentState:
        c = self.config
        return conv_recurrent(c.kernel, (c.segment,) * 3, c.heads, c.head_size, c.head_size)

    def log_decay(self, x: Activations) -> Array:
        """Return g <= 0, float32 [lane, token, head, key]."""
        c = self.config
        f = (self.decay(x) + self.dt_bias[...][None, None]).reshape((*x.shape[:2], c.heads, c.head_size))
        rate = jnp.exp(self.A_log[...])[None, None, :, None]
        return -rate * jax.nn.softplus(f) if c.lower_bound is None else c.lower_bound * jax.nn.sigmoid(rate * f)

    def project_in(self, x: Activations) -> tuple[DeltaTokens, Inner]:
        devices = self.config.devices
        beta = jax.nn.sigmoid(linear(x, self.in_proj_b[...], devices))
        return DeltaTokens(linear(x, self.in_proj_qkv[...], devices), self.log_decay(x), beta), self.gate(x)

    def gated(self, mixed: HeadOutputs, gate: Inner) -> HeadOutputs:
        return rms_norm(mixed, self.norm[...], self.config.eps) * jax.nn.sigmoid(gate.reshape(mixed.shape))
