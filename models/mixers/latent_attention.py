"""Multi-head latent attention (MLA, arXiv:2405.04434): one compressed KV row per token."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float, Float32

from models.layers.activations import scaled
from models.layers.initial import matrix
from models.layers.norms import NormConfig
from models.layers.rope import Rope
from models.mixers.kv_cache import KVCache, append_and_attend, widened
from models.ops.linear import linear
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.sharding.shard_sizes import shard_config
from models.sharding.sharded_dim import Segment, shard_inputs, shard_outputs
from models.state.shapes import Activations, LaneInfo
from models.state.state import Stateful, name_dims, state_array, stored_size


@dataclass(frozen=True)
class LatentAttentionConfig:
    """Sizes of a latent attention layer.

    Attributes:
        heads: `num_attention_heads`.
        rank: `kv_lora_rank`, compressed entries of a row.
        shared_size: `qk_rope_head_dim`, uncompressed key entries of all heads in the row.
        key_size: `qk_nope_head_dim`, a head's key entries from the compressed entries.
        value_size: `v_head_dim`.
        rope: of shared entries; None without positions.
        head_gate, output_gate: multiply outputs by the sigmoid of a projection, with a gate per head, or per output.
        norm: of compressed entries and query.
        row_factor: on the normed compressed entries.
        score_factor: on scores, besides the inverse square root of the query size.
        query_rank: `q_lora_rank`, compressed query; None for a direct projection.
    """

    heads: int
    rank: int
    shared_size: int
    key_size: int
    value_size: int
    rope: Rope | None = None
    head_gate: bool = False
    norm: NormConfig = NormConfig(1e-6)
    score_factor: float = 1.0
    query_rank: int | None = None
    output_gate: bool = False
    row_factor: float = 1.0
    devices: Devices = SINGLE_DEVICE

    @property
    def query_size(self) -> int:
        """Query size, without and with position."""
        return self.key_size + self.shared_size

    @property
    def row_size(self) -> int:
        """Numbers of a token in the cache, without padding (`stored_size`)."""
        return self.rank + self.shared_size

    def shard(self, devices: Devices) -> "LatentAttentionConfig":
        return shard_config(self, devices, "heads")

    def build(self, hidden: int, rngs: nnx.Rngs) -> "LatentAttention":
        return LatentAttention(self, hidden, rngs)


def head_dot(
    x: Float32[Array, "lane token head in"], weight: Float[Array, "head out in"]
) -> Float32[Array, "lane token head out"]:
    """Multiply each head, rounded to the weight's dtype, by its matrix in float32."""
    lanes, tokens, heads, size = x.shape
    rows = jnp.moveaxis(x.reshape((lanes * tokens, heads, size)), 1, 0).astype(weight.dtype)
    y = lax.dot_general(
        rows,
        weight,
        (((2,), (2,)), ((0,), (0,))),
        precision=lax.Precision.HIGHEST if weight.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
    return jnp.moveaxis(y, 0, 1).reshape((lanes, tokens, heads, weight.shape[1]))


class LatentAttention(Stateful):
    """Attention over compressed rows, with absorbed up-projections.

    A head's key is `[key_up c | shared]` and its value `value_up c` of the row `[c | shared]`. Since `q . (key_up c) =
    (key_up^T q) . c`, all heads attend to the same rows, with the first `rank` entries as values.
    """

    def __init__(self, config: LatentAttentionConfig, hidden: int, rngs: nnx.Rngs):
        c = config
        self.config = config
        heads = (shard_outputs(Segment(c.heads, c.heads)),)
        queries, values = (Segment(c.heads * size, c.heads) for size in (c.query_size, c.value_size))
        self.query_down = matrix(rngs, c.query_rank, hidden) if c.query_rank is not None else None
        self.query_norm = c.norm.build(c.query_rank, rngs, c.devices) if c.query_rank is not None else None
        self.q_proj = matrix(rngs, queries.size, c.query_rank or hidden, sharded=(shard_outputs(queries),))
        self.row_proj = matrix(rngs, c.row_size, hidden)
        self.row_norm = c.norm.build(c.rank, rngs, c.devices)
        self.key_up = matrix(rngs, c.heads, c.rank, c.key_size, sharded=heads)
        self.value_up = matrix(rngs, c.heads, c.value_size, c.rank, sharded=heads)
        gates = values if c.output_gate else Segment(c.heads, c.heads)
        gated = c.head_gate or c.output_gate
        self.gate = matrix(rngs, gates.size, hidden, sharded=(shard_outputs(gates),)) if gated else None
        self.o_proj = matrix(rngs, hidden, values.size, sharded=(shard_inputs(values),))

    def state_arrays(self) -> KVCache:
        row = self.config.row_size
        size = stored_size(row, self.config.devices.platform)
        return KVCache(state_array(kv_head=1, context=None, key=size, unused=size - row), None)

    def sites(self) -> dict[str, int]:
        return {"attention": self.config.heads}

    def commit(self, pending: KVCache, info: LaneInfo, state: KVCache) -> KVCache:
        return pending

    def __call__(self, x: Activations, info: LaneInfo, state: KVCache) -> tuple[Activations, KVCache]:
        c = self.config
        lanes, tokens, _ = x.shape
        indices = info.token_positions
        query_input = x
        if self.query_down is not None and self.query_norm is not None:
            query_input = self.query_norm(linear(x, self.query_down[...], c.devices))
        q = linear(query_input, self.q_proj[...], c.devices).reshape((lanes, tokens, c.heads, c.query_size))
        q, q_shared = q[..., : c.key_size], q[..., c.key_size :]
        row = linear(x, self.row_proj[...], c.devices)
        latent, shared = scaled(self.row_norm(row[..., : c.rank]), c.row_factor), row[:, :, None, c.rank :]
        if c.rope is not None:
            q_shared, shared = c.rope(q_shared, indices), c.rope(shared, indices)
        row = widened(jnp.concatenate([latent[:, :, None], shared], axis=-1), state.key.shape[3])
        row = name_dims(row, None, None, None, "key")
        query = jnp.concatenate([head_dot(q, self.key_up[...]), q_shared], axis=-1)
        query = query * (c.score_factor * c.query_size**-0.5)
        latents, state = append_and_attend(query, row, None, state, info, c.rank, c.devices)
        out = head_dot(latents, self.value_up[...])
        if self.gate is not None:
            gates = jax.nn.sigmoid(linear(x, self.gate[...], c.devices))
            out = out * gates.reshape((lanes, tokens, c.heads, -1))
        out = info.hooked_heads(out, "attention")
        return linear(out.reshape((lanes, tokens, c.heads * c.value_size)), self.o_proj[...], c.devices), state
