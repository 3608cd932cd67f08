"""Causal attention (GQA) over a KV cache, with optional QK norm, RoPE and output gate."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float32, Int32

from models.layers.initial import matrix
from models.layers.norms import RMSNorm
from models.layers.rope import Rope
from models.mixers.kv_cache import KVCache, append_and_attend, widened
from models.ops.linear import linear
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.sharding.shard_sizes import shard_config
from models.sharding.sharded_dim import Segment, shard_inputs, shard_outputs
from models.state.shapes import LaneInfo
from models.state.state import Stateful, name_dims, state_array, stored_size


@dataclass(frozen=True)
class QkNorm:
    """RMS norm of the queries and of the keys.

    Attributes:
        offset: 1 if the weights are stored minus one.
        all_heads: one norm over all heads instead of one each.
    """

    eps: float
    offset: float = 0.0
    all_heads: bool = False

    def size(self, heads: int, head_dim: int) -> int:
        """Values of one norm."""
        return heads * head_dim if self.all_heads else head_dim

    def build(self, heads: Segment, head_dim: int, devices: Devices) -> RMSNorm:
        sharded = (shard_outputs(heads),) if self.all_heads else ()
        return RMSNorm(self.size(heads.units, head_dim), self.eps, self.offset, sharded, devices)


@dataclass(frozen=True)
class AttentionConfig:
    """Sizes of an attention layer.

    Attributes:
        heads, kv_heads: `num_attention_heads`, `num_key_value_heads` (a divisor of the former: GQA, arXiv:2305.13245).
        rope: None for attention without positions.
        qk_norm: before RoPE, or None.
        output_gate: sigmoid of a second half of each query head.
        scale: of scores; None for the inverse square root of `head_dim`.
        window: number of positions that a token sees, its own included (`sliding_window`); None for all.
        head_gate: sigmoid of a learned projection of the token.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None = None
    qk_norm: QkNorm | None = None
    output_gate: bool = False
    scale: float | None = None
    window: int | None = None
    head_gate: bool = False
    devices: Devices = SINGLE_DEVICE

    def shard(self, devices: Devices) -> "AttentionConfig":
        """Return one device's config; fewer key/value heads than devices are replicated."""
        return shard_config(self, devices, "heads", repeated=("kv_heads",))

    def build(self, hidden: int, rngs: nnx.Rngs) -> "Attention":
        return Attention(self, hidden, rngs)


def normed(norm: RMSNorm, x: Float32[Array, "lane token head key"]) -> Float32[Array, "lane token head key"]:
    """Norm each head, or all together, by the number of weights."""
    return norm(x.reshape((*x.shape[:2], -1, norm.weight.shape[0]))).reshape(x.shape)


class Attention(Stateful):
    """Projections, KV cache and attention, with the options of `AttentionConfig`.

    Args:
        outputs: width of the outputs; None for the width of the inputs.
    """

    def __init__(self, config: AttentionConfig, hidden: int, rngs: nnx.Rngs, outputs: int | None = None):
        c = config
        self.config = config
        queries = Segment(c.heads * c.head_dim, c.heads)
        keys = Segment(c.kv_heads * c.head_dim, c.kv_heads, replicable=True)
        gated = Segment(2 * queries.size, c.heads) if c.output_gate else queries
        self.q_proj = matrix(rngs, gated.size, hidden, sharded=(shard_outputs(gated),))
        self.k_proj = matrix(rngs, keys.size, hidden, sharded=(shard_outputs(keys),))
        self.v_proj = matrix(rngs, keys.size, hidden, sharded=(shard_outputs(keys),))
        self.o_proj = matrix(
            rngs, hidden if outputs is None else outputs, queries.size, sharded=(shard_inputs(queries),)
        )
        heads = Segment(c.heads, c.heads)
        self.gate = matrix(rngs, c.heads, hidden, sharded=(shard_outputs(heads),)) if c.head_gate else None
        self.q_norm = c.qk_norm.build(queries, c.head_dim, c.devices) if c.qk_norm else None
        self.k_norm = c.qk_norm.build(keys, c.head_dim, c.devices) if c.qk_norm else None

    def state_arrays(self) -> KVCache:
        c = self.config
        size = stored_size(c.head_dim, c.devices.platform)
        heads, unused = (Segment(c.kv_heads, c.kv_heads, replicable=True),), size - c.head_dim
        key = state_array(kv_head=heads, context=None, key=size, unused=unused)
        return KVCache(key, state_array(kv_head=heads, context=None, value=size, unused=unused))

    def sites(self) -> dict[str, int]:
        return {"attention": self.config.heads}

    def commit(self, pending: Any, info: LaneInfo, state: Any) -> Any:
        """Return the cache; rejected tokens are overwritten before a read."""
        return pending

    def __call__(
        self, x: Float32[Array, "lane token in"], info: LaneInfo, state: Any
    ) -> tuple[Float32[Array, "lane token out"], Any]:
        c = self.config
        lanes, tokens, _ = x.shape
        indices = info.token_positions
        q, gate = linear(x, self.q_proj[...], c.devices).reshape((lanes, tokens, c.heads, -1)), None
        if c.output_gate:
            q, gate = jnp.split(q, 2, axis=-1)
        k = linear(x, self.k_proj[...], c.devices).reshape((lanes, tokens, c.kv_heads, c.head_dim))
        v = linear(x, self.v_proj[...], c.devices).reshape((lanes, tokens, c.kv_heads, c.head_dim))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = normed(self.q_norm, q), normed(self.k_norm, k)
        if c.rope is not None:
            q, k = c.rope(q, indices), c.rope(k, indices)
        k, v = (widened(x, state.key.shape[3]) for x in (k, v))
        k, v = name_dims(k, None, None, "kv_head", "key"), name_dims(v, None, None, "kv_head", "value")
        scale = c.head_dim**-0.5 if c.scale is None else c.scale
        out, state = self.attend_heads(x, (q * scale, k, v), indices, info, state)
        if gate is not None:
            out = out * jax.nn.sigmoid(gate)
        if self.gate is not None:
            out = out * jax.nn.sigmoid(linear(x, self.gate[...], c.devices))[..., None]
        out = info.hooked_heads(out, "attention")
        return linear(out.reshape((lanes, tokens, c.heads * c.head_dim)), self.o_proj[...], c.devices), state

    def attend_heads(
        self,
        x: Float32[Array, "lane token in"],
        heads: tuple[Array, Array, Array],
        positions: Int32[Array, "lane token"],
        info: LaneInfo,
        state: Any,
    ) -> tuple[Float32[Array, "lane token head value"], Any]:
        """Append keys and values, and attend; return outputs of heads, and the cache."""
        c = self.config
        return append_and_attend(*heads, state, info, c.head_dim, c.devices, c.window)
