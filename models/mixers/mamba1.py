"""Mamba mixer: selective state space model with a decay per channel and state (S6, arXiv:2312.00752)."""

from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from models.layers.initial import decay_rates, matrix, parameter
from models.layers.norms import rms_norm
from models.layers.short_conv import layer_conv
from models.mixers.recurrent import Inner, Recurrent
from models.ops.float32 import full_einsum, silu_gated
from models.ops.layout import unfused
from models.ops.linear import linear
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.state.rows import put_rows, take_rows
from models.state.shapes import Activations, LaneInfo
from models.state.state import ConvRecurrentState, state_array


@dataclass(frozen=True)
class Mamba1Config:
    """Sizes and variants of a Mamba layer.

    Attributes:
        state_size: size of B and C, and of the state per channel.
        rank: size of the compressed time step (`time_step_rank`).
        norms: RMS norms of time step, B and C: "none", "plain" without weights, or "weighted".
    """

    width: int
    state_size: int
    rank: int
    kernel: int
    conv_bias: bool = True
    norms: Literal["none", "plain", "weighted"] = "none"
    eps: float = 1e-6
    devices: Devices = SINGLE_DEVICE

    @property
    def parts(self) -> tuple[int, int, int]:
        """Sizes of time step, B and C in one projection."""
        return self.rank, self.state_size, self.state_size

    def shard(self, devices: Devices) -> "Mamba1Config":
        """Return one device's config, with the whole layer."""
        return replace(self, devices=devices)

    def build(self, hidden: int, rngs: nnx.Rngs) -> "Mamba1":
        return Mamba1(self, hidden, rngs)


class Mamba1(Recurrent):
    """Mixer: x -> projection -> short convolution -> selective scan -> gate -> projection.

    With channel c, state n, x of the convolution, [r | B | C] = x_proj(x) and time step d = softplus(dt_proj(r) + b):

        S_t[c, n] = exp(d[c] A[c, n]) S_{t-1}[c, n] + d[c] x[c] B[n]        y_t[c] = sum_n S_t[c, n] C[n] + D[c] x[c]

    The scan runs token by token.
    """

    summed_over = ()

    def __init__(self, config: Mamba1Config, hidden: int, rngs: nnx.Rngs):
        c = config
        self.config = config
        self.in_proj = matrix(rngs, 2 * c.width, hidden)
        self.conv1d = matrix(rngs, c.width, 1, c.kernel)
        self.conv_bias = parameter(jnp.zeros((c.width,), jnp.float32)) if c.conv_bias else None
        self.x_proj = matrix(rngs, sum(c.parts), c.width)
        self.dt_proj = matrix(rngs, c.width, c.rank)
        self.dt_bias = parameter(jnp.ones((c.width,), jnp.float32))
        self.A_log = decay_rates(rngs, c.width, c.state_size)
        self.D = parameter(jnp.ones((c.width,), jnp.float32))
        self.dt_norm, self.b_norm, self.c_norm = (
            parameter(jnp.ones((size,), jnp.float32)) if c.norms == "weighted" else None for size in c.parts
        )
        self.out_proj = matrix(rngs, hidden, c.width)

    def state_arrays(self) -> ConvRecurrentState:
        """Return convolution inputs and states [1, channel, state]."""
        c = self.config
        conv = state_array(role="conv", tap=c.kernel - 1, channel=c.width)
        return ConvRecurrentState(conv, state_array(jnp.float32, value_head=1, channel=c.width, key=c.state_size))

    def project_in(self, x: Activations) -> tuple[Inner, Inner]:
        mixed, gate = jnp.split(linear(x, self.in_proj[...], self.config.devices), 2, axis=-1)
        return mixed, gate

    def recur(self, tokens: Inner, info: LaneInfo, state: ConvRecurrentState) -> tuple[Inner, ConvRecurrentState]:
        bias = None if self.conv_bias is None else self.conv_bias[...]
        x, conv = layer_conv(tokens, self.conv1d[...], state.conv, info, bias, self.config.devices)
        x = jnp.where(info.valid[:, :, None], x, 0.0)
        step, key, query = self._selected(x)
        rates = -jnp.exp(self.A_log[...])[None, None]

        def token(states: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
            x, step, key, query, valid, begins = inputs
            step, written = step[:, None, :, None], (step * x)[:, None, :, None] * key[:, None, None, :]
            # Zeros replace the decayed states of fresh lanes, and outputs read the new states (ops/layout: in place).
            decayed = jnp.where(begins[:, None, None, None], 0.0, jnp.exp(step * rates) * states)
            states = jnp.where(valid[:, None, None, None], decayed + written, states)
            outputs = full_einsum("nhik,nhvk->nhiv", query[:, None, None], states)[:, 0, 0]
            return states, unfused(outputs, self.config.devices.platform)

        begins = (jnp.arange(x.shape[1], dtype=jnp.int32) == 0)[None] & info.fresh[:, None]
        inputs = tuple(jnp.moveaxis(part, 1, 0) for part in (x, step, key, query, info.valid, begins))
        rows = take_rows(state.recurrent, info.slots)
        if info.verifying:
            # A loop would copy the old states (ops/layout: in place). There are few tokens.
            states, outputs = rows, []
            for i in range(x.shape[1]):
                states, output = token(states, tuple(part[i] for part in inputs))
                outputs.append(output)
            outputs = jnp.stack(outputs)
        else:
            states, outputs = lax.scan(token, rows, inputs)
        y = jnp.moveaxis(outputs, 0, 1) + self.D[...][None, None] * x
        recurrent = state.recurrent if info.verifying else put_rows(state.recurrent, info.slots, states)
        return y, ConvRecurrentState(conv, recurrent)

    def _selected(self, x: Inner) -> tuple[Array, Array, Array]:
        """Return time steps [lane, token, inner], and B and C [lane, token, state]."""
        c = self.config
        parts = jnp.split(linear(x, self.x_proj[...], c.devices), [c.rank, c.rank + c.state_size], axis=-1)
        if c.norms == "weighted":
            weights = [norm[...] for norm in (self.dt_norm, self.b_norm, self.c_norm) if norm is not None]
            parts = [rms_norm(part, weight, c.eps) for part, weight in zip(parts, weights, strict=True)]
        elif c.norms == "plain":
            parts = [rms_norm(part, jnp.ones(part.shape[-1:], jnp.float32), c.eps) for part in parts]
        step, key, query = parts
        step = linear(step, self.dt_proj[...], c.devices) + self.dt_bias[...][None, None]
        return jax.nn.softplus(step), key, query

    def project_out(self, mixed: Inner, gate: Inner, info: LaneInfo) -> Activations:
        return linear(silu_gated(gate, mixed), self.out_proj[...], self.config.devices)
