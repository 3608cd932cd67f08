"""Lightning attention (arXiv:2401.04658): linear attention with one fixed decay per head.

With query q_t, key k_t, value v_t and decay rate r of a head, SSD without a time step (`ops/recurrences/ssd`):

    S_t = exp(-r) S_{t-1} + v_t k_t^T        y_t = S_t q_t
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.initial import matrix, parameter
from models.layers.norms import RMSNorm, grouped_rms_norm
from models.layers.rope import Rope
from models.mixers.recurrent import Channels, HeadOutputs, HeadRecurrence, Inner
from models.ops.float32 import silu
from models.ops.linear import linear
from models.ops.recurrences.recurrence import RecurrenceInputs
from models.ops.recurrences.ssd import ssd
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.sharding.shard_sizes import shard_groups
from models.sharding.sharded_dim import Segment, shard_inputs, shard_outputs
from models.state.shapes import Activations, LaneInfo
from models.state.state import ConvRecurrentState, state_array


@dataclass(frozen=True)
class LightningAttentionConfig:
    """Sizes and variants of a layer.

    Attributes:
        heads, head_size: of queries, keys and values alike.
        groups: groups of heads with one norm over their outputs.
        eps: of this norm.
        activated: SiLU of queries, keys and values.
        qk_eps: of the norms of each query and key; None without norms.
        rope: of queries and keys; None without positions.
        scale: of queries.
        devices, group_devices: as for `Mamba2Config`.
    """

    heads: int
    head_size: int
    groups: int
    eps: float
    activated: bool = False
    qk_eps: float | None = None
    rope: Rope | None = None
    scale: float = 1.0
    devices: Devices = SINGLE_DEVICE
    group_devices: int = 1

    @property
    def width(self) -> int:
        """Numbers of all heads of a token."""
        return self.heads * self.head_size

    @property
    def segment(self) -> Segment:
        """Segment of the queries, keys, values or gate, by heads."""
        return Segment(self.width, self.heads)

    def shard(self, devices: Devices) -> "LightningAttentionConfig":
        return shard_groups(self, devices)

    def build(self, hidden: int, rngs: nnx.Rngs) -> "LightningAttention":
        return LightningAttention(self, hidden, rngs)


class LightningAttention(HeadRecurrence):
    """Mixer: x -> projection -> recurrence with fixed decay -> gated norm -> projection."""

    def __init__(self, config: LightningAttentionConfig, hidden: int, rngs: nnx.Rngs):
        c = config
        self.config = config
        heads, inner = shard_outputs(Segment(c.heads, c.heads)), shard_outputs(c.segment)
        self.in_proj = matrix(rngs, 3 * c.width, hidden, sharded=(shard_outputs(*[c.segment] * 3),))
        self.q_norm, self.k_norm = (None if c.qk_eps is None else RMSNorm(c.head_size, c.qk_eps) for _ in range(2))
        # A parameter: layers with different rates share a trace, and shards have their heads' rates.
        self.rate = parameter(jnp.ones((c.heads,), jnp.float32), heads)
        self.gate = matrix(rngs, c.width, hidden, sharded=(inner,))
        self.norm = parameter(jnp.ones((c.width,), jnp.float32), inner)
        self.out_proj = matrix(rngs, hidden, c.width, sharded=(shard_inputs(c.segment),))

    def state_arrays(self) -> ConvRecurrentState:
        c = self.config
        heads = (Segment(c.heads, c.heads),)
        recurrent = state_array(jnp.float32, value_head=heads, value=c.head_size, key=c.head_size)
        return ConvRecurrentState(None, recurrent)

    def project_in(self, x: Activations) -> tuple[Channels, Inner]:
        mixed, gate = (linear(x, weight[...], self.config.devices) for weight in (self.in_proj, self.gate))
        return silu(mixed) if self.config.activated else mixed, gate

    def recur(
        self, tokens: Channels, info: LaneInfo, state: ConvRecurrentState
    ) -> tuple[HeadOutputs, ConvRecurrentState]:
        c = self.config
        lanes, length, _ = tokens.shape
        q, k, v = (x.reshape((lanes, length, c.heads, c.head_size)) for x in jnp.split(tokens, 3, axis=-1))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if c.rope is not None:
            indices = info.token_positions
            q, k = c.rope(q, indices), c.rope(k, indices)
        decay = jnp.broadcast_to(-self.rate[...][None, None], (lanes, length, c.heads))
        inputs = RecurrenceInputs(
            q * c.scale, k, v, decay, state.recurrent, info.valid, info.fresh, devices=c.devices, slots=info.slots
        )
        out, recurrent = ssd(inputs, keep_state=info.verifying)
        return out, ConvRecurrentState(None, recurrent)

    def gated(self, mixed: HeadOutputs, gate: Inner) -> Inner:
        """Norm the outputs of each group of heads, and gate them."""
        c = self.config
        normed = grouped_rms_norm(
            mixed.reshape(gate.shape), self.norm[...], c.groups, c.eps, c.devices, c.group_devices
        )
        return normed * jax.nn.sigmoid(gate)
