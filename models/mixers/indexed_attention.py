"""Attention to the best blocks of earlier positions (QSA, as in Qwen4-Exp).

An indexer, a small attention without values, scores blocks. The layer attends to the best complete ones and to the
positions after the last.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from models.layers.initial import matrix
from models.layers.norms import RMSNorm
from models.mixers.attention import Attention, AttentionConfig
from models.mixers.kv_cache import KVCache, append, attend, widened
from models.ops.float32 import full_einsum
from models.ops.linear import linear
from models.sharding.devices import Devices, varying_like
from models.state.pages import KV_BLOCK, Pages, own_pages, put_tokens, take_pages, token_places
from models.state.shapes import KeyCache, LaneInfo, ValueCache
from models.state.state import name_dims, state_array, stored_size


@dataclass(frozen=True)
class IndexedAttentionConfig:
    """Sizes of an attention layer with an indexer.

    Attributes:
        attention: config without a window; its RoPE also rotates index queries and keys.
        index_heads: query heads of the indexer, which has one key head.
        index_size: width of its queries and keys.
        block: positions of a block (`indexer_compress_ratio`), a divisor of `KV_BLOCK`; its index key is their mean.
        chosen: maximum complete blocks that a token attends to.
        eps: epsilon of the norms of index queries and keys; stored weights are minus one.
    """

    attention: AttentionConfig
    index_heads: int
    index_size: int
    block: int
    chosen: int
    eps: float

    def shard(self, devices: Devices) -> "IndexedAttentionConfig":
        """Return one device's config: its heads, all of the indexer."""
        return replace(self, attention=self.attention.shard(devices))

    def build(self, hidden: int, rngs: nnx.Rngs) -> "IndexedAttention":
        return IndexedAttention(self, hidden, rngs)


class IndexedCache(NamedTuple):
    """Pools of pages of keys, values and index keys, in the dtype of caches.

    Index keys are stored as projected: the norm and RoPE follow the mean over a block.
    """

    key: KeyCache
    value: ValueCache
    index: KeyCache


def best_blocks(
    scores: Float32[Array, "lane token run"], complete: Int32[Array, "lane token"], count: int
) -> Bool[Array, "lane token run"]:
    """Return the mask of the `count` best complete blocks; ties go to the first."""
    number = jnp.arange(scores.shape[2], dtype=jnp.int32)[None, None]
    mask = number < complete[:, :, None]
    if scores.shape[2] <= count:
        return mask
    scores = jnp.where(mask, lax.stop_gradient(scores), -jnp.inf)
    threshold = lax.top_k(scores, count)[0][:, :, -1:]
    better, equal = scores > threshold, scores == threshold
    free = count - jnp.sum(better, axis=-1, keepdims=True, dtype=jnp.int32)
    first = jnp.cumsum(equal, axis=-1, dtype=jnp.int32) <= free
    return mask & (better | (equal & first))


class IndexedAttention(Attention):
    """Attention of `IndexedAttentionConfig`."""

    def __init__(self, config: IndexedAttentionConfig, hidden: int, rngs: nnx.Rngs):
        super().__init__(config.attention, hidden, rngs)
        self.indexer = c = config
        self.index_proj = matrix(rngs, (c.index_heads + 1) * c.index_size, hidden)
        self.index_q_norm = RMSNorm(c.index_size, c.eps, 1.0)
        self.index_k_norm = RMSNorm(c.index_size, c.eps, 1.0)

    def state_arrays(self) -> Any:
        c, cache = self.indexer, super().state_arrays()
        assert cache.value is not None, "attention without latents"
        size = stored_size(c.index_size, c.attention.devices.platform)
        index = state_array(kv_head=1, context=None, key=size, unused=size - c.index_size)
        return IndexedCache(cache.key, cache.value, index)

    def attend_heads(
        self,
        x: Float32[Array, "lane token in"],
        heads: tuple[Array, Array, Array],
        positions: Int32[Array, "lane token"],
        info: LaneInfo,
        state: IndexedCache,
    ) -> tuple[Float32[Array, "lane token head value"], IndexedCache]:
        c, devices = self.indexer, self.config.devices
        query, key, value = heads
        pages = own_pages(len(x), len(state.key)) if info.pages is None else info.pages
        cache = append(KVCache(state.key, state.value), key, value, positions, info.valid, pages, devices.platform)
        assert cache.value is not None
        projected = linear(x, self.index_proj[...], devices).reshape((*x.shape[:2], c.index_heads + 1, c.index_size))
        index_query, index_key = projected[:, :, :-1], widened(projected[:, :, -1:], state.index.shape[3])
        index_key = name_dims(index_key, None, None, None, "key").astype(state.index.dtype)
        places = token_places(pages, positions, info.valid, len(state.index))
        state = IndexedCache(cache.key, cache.value, put_tokens(state.index, places, index_key))
        index_query = self._turned(self.index_q_norm(index_query), positions)
        scores = self._scores(index_query, state.index, info.kv_blocks, pages)
        complete = lax.div(jnp.where(info.valid, positions, -1) + 1, jnp.int32(c.block))
        block = jnp.arange(scores.shape[2], dtype=jnp.int32)[None, None]
        selected = best_blocks(scores, complete, c.chosen) | (block == complete[:, :, None])
        operands = query, cache, positions, info.valid, info.kv_blocks, self.config.head_dim, devices
        return attend(*operands, pages=pages, selected=selected), state

    def _turned(self, x: Float32[Array, "lane n head key"], positions: Int32[Array, "lane n"]) -> Array:
        return x if self.config.rope is None else self.config.rope(x, positions)

    def _scores(
        self,
        query: Float32[Array, "lane token head index"],
        pool: KeyCache,
        blocks: Int32[Array, ""] | int,
        pages: Pages,
    ) -> Float32[Array, "lane token run"]:
        """Return the scores of complete blocks in the first `blocks` pages; others are arbitrary."""
        c = self.indexer
        lanes, tokens, runs = *query.shape[:2], KV_BLOCK // c.block

        def page(number: Array, scores: Array) -> Array:
            table = lax.dynamic_slice_in_dim(pages, number, 1, axis=1)
            keys = take_pages(pool, table)[:, 0, :, : c.index_size].astype(jnp.float32)
            means = jnp.mean(keys.reshape((lanes, runs, c.block, c.index_size)), axis=2)
            first = number * KV_BLOCK + c.block * jnp.arange(runs, dtype=jnp.int32)[None]
            first = jnp.broadcast_to(first, (lanes, runs))
            means = self._turned(self.index_k_norm(means)[:, :, None], first)[:, :, 0]
            products = full_einsum("nthd,nbd->nthb", query, means)
            sums = jnp.sum(jnp.maximum(products, 0.0), axis=2) * c.index_size**-0.5
            return lax.dynamic_update_slice_in_dim(scores, sums, number * runs, axis=2)

        start = jnp.zeros((lanes, tokens, pages.shape[1] * runs), jnp.float32)
        return lax.fori_loop(0, blocks, page, varying_like(start, query, pool, pages))
