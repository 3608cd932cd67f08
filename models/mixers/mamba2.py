"""Mamba2 mixer, a selective state space model (SSD, arXiv:2405.21060)."""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float32

from models.layers.initial import decay_rates, matrix, parameter
from models.layers.norms import grouped_rms_norm
from models.layers.short_conv import layer_conv
from models.mixers.recurrent import Channels, HeadOutputs, HeadRecurrence, Inner
from models.ops.float32 import silu
from models.ops.linear import linear
from models.ops.recurrences.recurrence import RecurrenceInputs
from models.ops.recurrences.ssd import ssd
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.sharding.shard_sizes import shard_groups
from models.sharding.sharded_dim import Segment, shard_inputs, shard_outputs
from models.state.shapes import Activations, LaneInfo, over_last
from models.state.state import ConvRecurrentState, conv_recurrent


@dataclass(frozen=True)
class Mamba2Config:
    """Sizes and variants of a Mamba2 layer.

    Attributes:
        heads, head_size: their product is the inner width.
        groups: groups of heads (a divisor) with common B and C, and one norm over their channels.
        state_size: size of B and C, and of the state per channel.
        step_limits: minimum and maximum time step (`time_step_limit`).
        norm: "gated" norms `y * silu(z)`, "normed" is gated after its norm, "none" has no norm.
        multipliers: factors on the `segments` of the input projection.
        group_devices: number of devices with heads of the same group.
    """

    heads: int
    head_size: int
    groups: int
    state_size: int
    kernel: int
    eps: float
    conv_bias: bool = True
    step_limits: tuple[float, float] = (0.0, math.inf)
    norm: Literal["gated", "normed", "none"] = "gated"
    multipliers: tuple[float, ...] = (1.0,) * 5
    devices: Devices = SINGLE_DEVICE
    group_devices: int = 1

    @property
    def width(self) -> int:
        return self.heads * self.head_size

    @property
    def channels(self) -> int:
        return self.width + 2 * self.groups * self.state_size

    @property
    def inner(self) -> Segment:
        return Segment(self.width, self.heads)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments [z | x | B | C | dt] of the input projection."""
        shared = Segment(self.groups * self.state_size, self.groups, replicable=True)
        return self.inner, self.inner, shared, shared, Segment(self.heads, self.heads)

    def shard(self, devices: Devices) -> "Mamba2Config":
        return shard_groups(self, devices)

    def build(self, hidden: int, rngs: nnx.Rngs) -> "Mamba2":
        return Mamba2(self, hidden, rngs)


Mamba2Tokens = tuple[Channels, Float32[Array, "lane token value_head"]]
"""Inputs of the convolution, channels [x | B | C], and the time step of each head, at least 0."""


class Mamba2(HeadRecurrence):
    """Mixer: x -> projection -> short convolution -> SSD -> gated norm -> projection."""

    def __init__(self, config: Mamba2Config, hidden: int, rngs: nnx.Rngs):
        c = config
        self.config = config
        channels, heads = shard_outputs(*c.segments[1:4]), shard_outputs(c.segments[4])
        self.in_proj = matrix(rngs, c.width + c.channels + c.heads, hidden, sharded=(shard_outputs(*c.segments),))
        self.conv1d = matrix(rngs, c.channels, 1, c.kernel, sharded=(channels,))
        self.conv_bias = parameter(jnp.zeros((c.channels,), jnp.float32), channels) if c.conv_bias else None
        self.A_log = decay_rates(rngs, c.heads, sharded=(heads,))
        self.dt_bias = parameter(jnp.ones((c.heads,), jnp.float32), heads)
        self.D = parameter(jnp.ones((c.heads,), jnp.float32), heads)
        self.norm = parameter(jnp.ones((c.width,), jnp.float32), shard_outputs(c.inner)) if c.norm != "none" else None
        self.out_proj = matrix(rngs, hidden, c.width, sharded=(shard_inputs(c.inner),))

    def state_arrays(self) -> ConvRecurrentState:
        c = self.config
        return conv_recurrent(c.kernel, c.segments[1:4], c.heads, c.state_size, c.head_size)

    def project_in(self, x: Activations) -> tuple[Mamba2Tokens, Inner]:
        c = self.config
        projected = linear(x, self.in_proj[...], c.devices)
        if any(factor != 1.0 for factor in c.multipliers):
            factors = np.repeat(np.array(c.multipliers, np.float32), [part.size for part in c.segments])
            projected = projected * over_last(jnp.asarray(factors), projected)
        z, conv, step = jnp.split(projected, [c.width, c.width + c.channels], axis=-1)
        step = jax.nn.softplus(step + self.dt_bias[...][None, None])
        low, high = c.step_limits
        if low > 0.0 or high < math.inf:
            step = jnp.clip(step, low, high)
        return (conv, step), z

    def recur(
        self, tokens: Mamba2Tokens, info: LaneInfo, state: ConvRecurrentState
    ) -> tuple[HeadOutputs, ConvRecurrentState]:
        c = self.config
        inputs_of_conv, step = tokens
        lanes, length, _ = inputs_of_conv.shape
        bias = None if self.conv_bias is None else self.conv_bias[...]
        mixed, conv = layer_conv(inputs_of_conv, self.conv1d[...], state.conv, info, bias, c.devices)
        # The bias makes the inputs of padding tokens nonzero.
        mixed = jnp.where(info.valid[:, :, None], mixed, 0.0)
        value, key, query = jnp.split(mixed, [c.width, c.width + c.groups * c.state_size], axis=-1)
        key, query = (part.reshape((lanes, length, c.groups, c.state_size)) for part in (key, query))
        value = value.reshape((lanes, length, c.heads, c.head_size))
        log_decay = -jnp.exp(self.A_log[...])[None, None] * step
        inputs = RecurrenceInputs(
            query, key, value, log_decay, state.recurrent, info.valid, info.fresh, devices=c.devices, slots=info.slots
        )
        out, recurrent = ssd(inputs, keep_state=info.verifying, surroundings=(step, self.D[...]))
        return out, ConvRecurrentState(conv, recurrent)

    def gated(self, mixed: HeadOutputs, gate: Inner) -> Inner:
        c = self.config
        y, gate = mixed.reshape(gate.shape), silu(gate)
        if self.norm is None:
            return y * gate
        if c.norm == "gated":
            y = y * gate
        y = grouped_rms_norm(y, self.norm[...], c.groups, c.eps, c.devices, c.group_devices)
        return y * gate if c.norm == "normed" else y
