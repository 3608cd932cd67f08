"""Causal attention over a KV cache, with grouped queries (GQA); QK norm, RoPE and output gate are optional."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from models.layers.initial import matrix
from models.layers.norms import RMSNorm
from models.layers.rope import Rope
from models.ops.decode_attention import KERNEL, decode_attention
from models.ops.float32 import full_einsum
from models.ops.layout import materialize, materialized_transpose
from models.ops.linear import linear
from models.ops.summed_attention import MAX_SUMMED_QUERIES, summed_block
from models.sharding.devices import SINGLE_DEVICE, Devices
from models.sharding.shard_sizes import shard_config
from models.sharding.sharded_dim import Segment, shard_inputs, shard_outputs
from models.sharding.varying import varying_like
from models.state.shapes import Activations, KeyCache, LaneInfo, ValueCache
from models.state.state import KV_BLOCK, Stateful, name_dims, state_array, stored_size, turn_blocks

MAX_KEYS_FIRST_QUERIES = 64
"""Query rows per key/value head up to which the keys are the left operand of the scores (ops/layout: operands): that
takes 0.6 to 1.1 of the time; with 256 rows and more, 1.0 to 1.2."""


class KVCache(NamedTuple):
    """KV cache of one attention layer for N lanes: cache dtype, a whole number of blocks of positions.

    `value` is None where the values are the first entries of the keys (latent attention). Keys and values that are
    stored in more numbers than they have (`stored_size`) end in zeros.
    """

    key: KeyCache
    value: ValueCache | None


@dataclass(frozen=True)
class QkNorm:
    """RMS norm of the queries and of the keys.

    Attributes:
        eps: `rms_norm_eps`.
        offset: 1 where the weights are stored minus one.
        all_heads: one norm over the concatenated heads instead of one for each head.
    """

    eps: float
    offset: float = 0.0
    all_heads: bool = False

    def size(self, heads: int, head_dim: int) -> int:
        """Number of values that one norm covers."""
        return heads * head_dim if self.all_heads else head_dim

    def build(self, heads: Segment, head_dim: int, devices: Devices) -> RMSNorm:
        sharded = (shard_outputs(heads),) if self.all_heads else ()
        return RMSNorm(self.size(heads.units, head_dim), self.eps, self.offset, sharded, devices)


@dataclass(frozen=True)
class AttentionConfig:
    """Sizes of an attention layer.

    Attributes:
        heads, kv_heads: `num_attention_heads`, `num_key_value_heads` (a divisor of the former: GQA, arXiv:2305.13245).
        head_dim: size of a head.
        rope: rotary embedding, None for attention without positions.
        qk_norm: norm of queries and keys before RoPE, None where there is none.
        output_gate: the output is multiplied by the sigmoid of a second half of each head of the query projection.
        scale: factor on the scores, None for the inverse square root of `head_dim`.
        devices: that shard the layer; the heads are the local ones.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None = None
    qk_norm: QkNorm | None = None
    output_gate: bool = False
    scale: float | None = None
    devices: Devices = SINGLE_DEVICE

    def shard(self, devices: Devices) -> "AttentionConfig":
        """Return the config of one device; with fewer key/value heads than devices it has the one of its queries."""
        return shard_config(self, devices, "heads", repeated=("kv_heads",))

    def build(self, hidden: int, rngs: nnx.Rngs) -> "Attention":
        return Attention(self, hidden, rngs)


def normed(norm: RMSNorm, x: Float32[Array, "lane token head key"]) -> Float32[Array, "lane token head key"]:
    """Norm each head, or the concatenated heads, in runs of as many values as the norm has weights."""
    return norm(x.reshape((*x.shape[:2], -1, norm.weight.shape[0]))).reshape(x.shape)


def widened(x: Float32[Array, "lane token head size"], stored: int) -> Float32[Array, "lane token head stored"]:
    """Return vectors of heads with zeros up to the size in which a cache stores them."""
    more = stored - x.shape[-1]
    return jnp.pad(x, ((0, 0),) * 3 + ((0, more),)) if more else x


def write_places(
    positions: Int32[Array, "lane token"], valid: Bool[Array, "lane token"], held: int
) -> Int32[Array, "lane token"]:
    """Return the place of each token in a cache of `held` positions, of a padding token one of its own past the end."""
    past = held + jnp.arange(positions.shape[1], dtype=positions.dtype)
    return jnp.where(valid, positions, past[None])


def append(
    cache: KVCache, key: Array, value: Array | None, positions: Int32[Array, "lane token"], valid: Array
) -> KVCache:
    """Write the keys and values `[lane, token, kv_head, size]` of real tokens into the KV cache at their positions.

    The scatter drops padding tokens, and no two tokens of a lane have the same place. No real token is dropped: the
    host admits no sequence that is longer than the context.
    """
    where = write_places(positions, valid, cache.key.shape[2])

    def lane(row: Array, where: Array, new: Array) -> Array:
        return row.at[:, where].set(
            jnp.moveaxis(new, 0, 1).astype(row.dtype), mode="drop", wrap_negative_indices=False, unique_indices=True
        )

    write = jax.vmap(lane)
    kept = None if value is None or cache.value is None else write(cache.value, where, value)
    return KVCache(write(cache.key, where, key), kept)


def attend(
    query: Float32[Array, "lane token head key"],
    cache: KVCache,
    positions: Int32[Array, "lane token"],
    valid: Array,
    blocks: Int32[Array, ""] | int,
    value_size: int | None = None,
    platform: str = "cpu",
    kernels: str = "off",
) -> Float32[Array, "lane token head value"]:
    """Compute softmax attention of scaled queries over the first `blocks` blocks of the KV cache.

    A query at position p attends to positions 0..p of its own lane; later entries of the cache (stale or NaN) have no
    influence. The softmax is accumulated block by block (online softmax, arXiv:1805.02867), so visiting more blocks
    than a lane needs changes none of its bits.

    Args:
        query: scaled queries.
        cache: keys and values.
        positions: of the queries.
        valid: mask of the real tokens.
        blocks: blocks to visit.
        value_size: leading entries that are a value, of stored values or else of keys; None for all of them.
        platform: that the step is for.
        kernels: one of `kernels.MODES`.

    Returns:
        Attention output, zero at padding tokens.
    """
    query = widened(query, cache.key.shape[3])
    lanes, tokens, heads, size = query.shape
    kv_heads, groups = cache.key.shape[1], query.shape[2] // cache.key.shape[1]
    held = cache.key if cache.value is None else cache.value
    value_size = held.shape[3] if value_size is None else value_size
    q = jnp.moveaxis(query, 1, 2).reshape((lanes, kv_heads, groups * tokens, size))
    limit = jnp.tile(jnp.where(valid, positions, -1), (1, groups))
    if KERNEL.chosen(kernels, platform, query, cache.key, cache.value, value_size):
        interpret = kernels == "interpret"
        out = decode_attention(q, limit, cache.key, cache.value, value_size, interpret=interpret)
        return jnp.moveaxis(out.reshape((lanes, heads, tokens, value_size)), 1, 2)
    limit = limit[:, None, :, None]
    last = jnp.max(limit, axis=2, keepdims=True)
    summed = platform == "gpu" and q.shape[2] <= MAX_SUMMED_QUERIES
    # parted in front of the loop, or XLA would do so in each turn
    each = lax.optimization_barrier([q[:, :, i] for i in range(q.shape[2])]) if summed else []
    width = turn_blocks(cache.key.shape[2] // KV_BLOCK, platform)
    span = width * KV_BLOCK

    def read(rows: Array, start: Array) -> Array:
        own = lax.dynamic_slice_in_dim(rows, start, span, axis=2)
        # XLA:GPU would turn all rows for the products, in front of the loop, and not these alone.
        return own.astype(jnp.float32) if platform == "cpu" else materialize(own)

    def block(index: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        top, total, out = carry
        start = index * span
        k = read(cache.key, start)
        v = k if cache.value is None else read(cache.value, start)
        v = v if v.shape[3] == value_size else v[..., :value_size]
        at = start + jnp.arange(span, dtype=jnp.int32)
        if summed:
            seen = [(at[None, None] <= limit[:, :, i])[..., None] for i in range(tokens)]
            return summed_block(each, k, v, seen, carry)
        seen = at[None, None, :, None] <= last
        scores = _scores(q, k.astype(jnp.float32), platform)
        scores = jnp.where(at[None, None, None, :] <= limit, scores, -jnp.inf)
        new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
        keep = jnp.exp(top - new_top)
        p = jnp.exp(scores - new_top)
        out = out * keep + full_einsum("nhqk,nhkd->nhqd", p, jnp.where(seen, v, 0.0).astype(jnp.float32))
        return new_top, total * keep + jnp.sum(p, axis=-1, keepdims=True), out

    shape = (lanes, kv_heads, groups * tokens)
    start = (jnp.full((*shape, 1), -1e30), jnp.zeros((*shape, 1)), jnp.zeros((*shape, value_size)))
    turns = blocks if width == 1 else -(-blocks // width)
    _, total, out = lax.fori_loop(0, turns, block, varying_like(start, q, cache, limit))
    out = jnp.where(limit >= 0, out / jnp.where(limit >= 0, total, 1.0), 0.0)
    return jnp.moveaxis(out.reshape((lanes, heads, tokens, value_size)), 1, 2)


def _scores(
    query: Float32[Array, "lane kv_head query key"], key: Float32[Array, "lane kv_head position key"], platform: str
) -> Float32[Array, "lane kv_head query position"]:
    """Return the scores of each query with each key; on a CPU the smaller operand is the right one.

    See ops/layout: operands.
    """
    if platform != "cpu" or query.shape[2] > MAX_KEYS_FIRST_QUERIES:
        return full_einsum("nhqd,nhkd->nhqk", query, key)
    return materialized_transpose(full_einsum("nhkd,nhqd->nhkq", key, query))


class Attention(Stateful):
    """Attention layer: projections, KV cache and attention, with the options of `AttentionConfig`."""

    def __init__(self, config: AttentionConfig, hidden: int, rngs: nnx.Rngs):
        c = config
        self.config = config
        queries = Segment(c.heads * c.head_dim, c.heads)
        keys = Segment(c.kv_heads * c.head_dim, c.kv_heads, replicable=True)
        gated = Segment(2 * queries.size, c.heads) if c.output_gate else queries
        self.q_proj = matrix(rngs, gated.size, hidden, sharded=(shard_outputs(gated),))
        self.k_proj = matrix(rngs, keys.size, hidden, sharded=(shard_outputs(keys),))
        self.v_proj = matrix(rngs, keys.size, hidden, sharded=(shard_outputs(keys),))
        self.o_proj = matrix(rngs, hidden, queries.size, sharded=(shard_inputs(queries),))
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

    def __call__(self, x: Activations, info: LaneInfo, state: KVCache) -> tuple[Activations, KVCache]:
        """Append the keys and values of real tokens to the KV cache and attend from each to its lane up to itself."""
        c = self.config
        lanes, tokens, _ = x.shape
        at = info.positions[:, None] + jnp.arange(tokens, dtype=jnp.int32)[None]
        q, gate = linear(x, self.q_proj[...], c.devices).reshape((lanes, tokens, c.heads, -1)), None
        if c.output_gate:
            q, gate = jnp.split(q, 2, axis=-1)
        k = linear(x, self.k_proj[...], c.devices).reshape((lanes, tokens, c.kv_heads, c.head_dim))
        v = linear(x, self.v_proj[...], c.devices).reshape((lanes, tokens, c.kv_heads, c.head_dim))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = normed(self.q_norm, q), normed(self.k_norm, k)
        if c.rope is not None:
            q, k = c.rope(q, at), c.rope(k, at)
        k, v = (widened(x, state.key.shape[3]) for x in (k, v))
        k, v = name_dims(k, None, None, "kv_head", "key"), name_dims(v, None, None, "kv_head", "value")
        state = append(state, k, v, at, info.valid)
        scale = c.head_dim**-0.5 if c.scale is None else c.scale
        blocks, platform, kernels = info.kv_blocks, c.devices.platform, c.devices.kernels
        out = attend(q * scale, state, at, info.valid, blocks, c.head_dim, platform, kernels)
        if gate is not None:
            out = out * jax.nn.sigmoid(gate)
        out = info.hooked_heads(out, "attention")
        return linear(out.reshape((lanes, tokens, c.heads * c.head_dim)), self.o_proj[...], c.devices), state
