"""KV cache of an attention layer, a pool of pages (`models.state.pages`), and softmax attention."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from models.ops.decode_attention_cpu import KERNEL as CPU_KERNEL
from models.ops.decode_attention_cpu import AttentionInputs, attention_of
from models.ops.decode_attention_gpu import KERNEL, decode_attention
from models.ops.float32 import full_einsum
from models.ops.layout import materialize, materialized_transpose
from models.ops.summed_attention import MAX_SUMMED_QUERIES, summed_block
from models.sharding.devices import SINGLE_DEVICE, Devices, varying_like
from models.state.pages import KV_BLOCK, Pages, own_pages, put_tokens, take_pages, token_places, window_pages
from models.state.shapes import KeyCache, LaneInfo, ValueCache
from models.state.state import turn_blocks

_LAST = np.iinfo(np.int32).max
"""Greatest position."""
MAX_KEYS_FIRST_QUERIES = 64
"""Query rows per key/value head with keys as the left operand (ops/layout: operands): 0.6 to 1.1 of the time."""


class KVCache(NamedTuple):
    """Pools of pages of keys and values, in the dtype of caches.

    `value` None: the first entries of the keys (latent attention). Both end in zeros up to `stored_size`.
    """

    key: KeyCache
    value: ValueCache | None


def widened(x: Float32[Array, "lane token head size"], stored: int) -> Float32[Array, "lane token head stored"]:
    """Pad heads with zeros to a cache's stored size."""
    padding = stored - x.shape[-1]
    return jnp.pad(x, ((0, 0),) * 3 + ((0, padding),)) if padding else x


def append(
    cache: KVCache,
    key: Array,
    value: Array | None,
    positions: Int32[Array, "lane token"],
    valid: Array,
    pages: Pages,
    platform: str = "cpu",
) -> KVCache:
    """Write keys and values `[lane, token, kv_head, size]` of real tokens to their pages."""
    if platform == "gpu" and valid.size == 1:
        # For one token XLA has four operations, for a token and padding two.
        key, value, positions, valid = jax.tree.map(_with_padding, (key, value, positions, valid))
    places = token_places(pages, positions, valid, cache.key.shape[0])
    values = None if value is None or cache.value is None else put_tokens(cache.value, places, _as(cache.value, value))
    return KVCache(put_tokens(cache.key, places, _as(cache.key, key)), values)


def _with_padding(x: Array) -> Array:
    return jnp.pad(x, [(0, 0), (0, 1), *[(0, 0)] * (x.ndim - 2)])


def _as(pool: Array, new: Array) -> Array:
    return new.astype(pool.dtype)


def attend(
    query: Float32[Array, "lane token head key"],
    cache: KVCache,
    positions: Int32[Array, "lane token"],
    valid: Array,
    blocks: Int32[Array, ""] | int,
    value_size: int | None = None,
    devices: Devices = SINGLE_DEVICE,
    *,
    pages: Pages,
    window: int | None = None,
    selected: Bool[Array, "lane token run"] | None = None,
) -> Float32[Array, "lane token head value"]:
    """Compute softmax attention of scaled queries over each lane's first `blocks` pages.

    A query at position p attends to positions 0..p, or to the last `window` of these; other entries (stale or NaN) have
    no influence. By online softmax (arXiv:1805.02867), additional blocks do not change a lane's bits.

    Args:
        positions: with a window consecutive; pages before the first token's window are not read.
        value_size: leading entries of stored values or keys; None for all.
        window: as for `AttentionConfig`.
        selected: runs of equally many positions that each token attends to, as many as in `pages`; None for all.

    Returns:
        Zero at padding.
    """
    query = widened(query, cache.key.shape[3])
    lanes, tokens, heads, size = query.shape
    kv_heads, groups = cache.key.shape[1], query.shape[2] // cache.key.shape[1]
    values = cache.key if cache.value is None else cache.value
    value_size = values.shape[3] if value_size is None else value_size
    q = jnp.moveaxis(query, 1, 2).reshape((lanes, kv_heads, groups * tokens, size))
    if window is not None:
        pages, positions = window_pages(pages, positions, window)
        blocks = min(blocks, pages.shape[1]) if isinstance(blocks, int) else jnp.minimum(blocks, pages.shape[1])
    limit = jnp.tile(jnp.where(valid, positions, -1), (1, groups))
    if selected is None and KERNEL.chosen(devices, query, cache.key, cache.value, value_size):
        caches = cache.key, cache.value
        out = decode_attention(q, limit, *caches, value_size, pages, window=window, interpret=devices.interpret)
        return jnp.moveaxis(out.reshape((lanes, heads, tokens, value_size)), 1, 2)
    limit = limit[:, None, :, None]
    last = jnp.max(limit, axis=2, keepdims=True)
    # The position before the window of a row; before the windows of all rows.
    below = None if window is None else limit - window
    first = None if window is None else jnp.min(jnp.where(limit >= 0, limit, _LAST), axis=2, keepdims=True) - window
    summed = devices.platform == "gpu" and q.shape[2] <= MAX_SUMMED_QUERIES and selected is None
    # XLA would split them in each iteration.
    queries = lax.optimization_barrier([q[:, :, i] for i in range(q.shape[2])]) if summed else []
    width = turn_blocks(pages.shape[1], devices.platform, lanes * kv_heads)
    span = width * KV_BLOCK
    # The last turn may begin earlier; it skips positions of the previous turn.
    divided = pages.shape[1] % width == 0

    def read(pool: Array, pages: Pages) -> Array:
        entries = take_pages(pool, pages)
        # Otherwise XLA:GPU would transpose the rows of all blocks for the products, before the loop.
        return entries.astype(jnp.float32) if devices.platform == "cpu" else materialize(entries)

    def turn(index: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        top, total, out = carry
        begin = index * span
        page = index * width if divided else jnp.minimum(index * width, pages.shape[1] - width)
        turn_pages, start = lax.dynamic_slice_in_dim(pages, page, width, axis=1), page * KV_BLOCK
        k = read(cache.key, turn_pages)
        v = k if cache.value is None else read(cache.value, turn_pages)
        v = v if v.shape[3] == value_size else v[..., :value_size]
        position = start + jnp.arange(span, dtype=jnp.int32)

        def visible(position: Array, limit: Array, below: Array | None) -> Array:
            mask = position <= limit if divided else (position <= limit) & (position >= begin)
            return mask if below is None else mask & (position > below)

        if summed:
            edges = [(limit[:, :, i], None if below is None else below[:, :, i]) for i in range(tokens)]
            masks = [visible(position[None, None], *edge)[..., None] for edge in edges]
            return summed_block(queries, k, v, masks, carry)
        mask = visible(position[None, None, :, None], last, first)
        scores = _scores(q, k.astype(jnp.float32), devices.platform)
        allowed = visible(position[None, None, None, :], limit, below)
        if selected is not None:
            runs = selected.shape[2] // pages.shape[1]
            chosen = lax.dynamic_slice_in_dim(selected, page * runs, width * runs, axis=2)
            chosen = jnp.repeat(jnp.tile(chosen, (1, groups, 1)), KV_BLOCK // runs, axis=2)
            allowed = allowed & chosen[:, None]
        scores = jnp.where(allowed, scores, -jnp.inf)
        new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
        keep = jnp.exp(top - new_top)
        p = jnp.exp(scores - new_top)
        out = out * keep + full_einsum("nhqk,nhkd->nhqd", p, jnp.where(mask, v, 0.0).astype(jnp.float32))
        return new_top, total * keep + jnp.sum(p, axis=-1, keepdims=True), out

    shape = (lanes, kv_heads, groups * tokens)
    zeros = jnp.zeros((*shape, 1), jnp.float32), jnp.zeros((*shape, value_size), jnp.float32)
    start = (jnp.full((*shape, 1), -1e30, jnp.float32), *zeros)
    turns = blocks if width == 1 else -(-blocks // width)
    _, total, out = lax.fori_loop(0, turns, turn, varying_like(start, q, cache, limit, pages))
    out = jnp.where(limit >= 0, out / jnp.where(limit >= 0, total, 1.0), 0.0)
    return jnp.moveaxis(out.reshape((lanes, heads, tokens, value_size)), 1, 2)


def _scores(
    query: Float32[Array, "lane kv_head query key"], key: Float32[Array, "lane kv_head position key"], platform: str
) -> Float32[Array, "lane kv_head query position"]:
    if platform != "cpu" or query.shape[2] > MAX_KEYS_FIRST_QUERIES:
        return full_einsum("nhqd,nhkd->nhqk", query, key)
    return materialized_transpose(full_einsum("nhkd,nhqd->nhkq", key, query))


def append_and_attend(
    query: Float32[Array, "lane token head query"],
    key: Float32[Array, "lane token kv_head key"],
    value: Float32[Array, "lane token kv_head value"] | None,
    cache: KVCache,
    info: LaneInfo,
    value_size: int,
    devices: Devices,
    window: int | None = None,
) -> tuple[Float32[Array, "lane token head size"], KVCache]:
    """Append keys and values and attend causally; a CPU kernel does both at once."""
    pages = own_pages(query.shape[0], cache.key.shape[0]) if info.pages is None else info.pages
    inputs = AttentionInputs(query, key, value, cache, info.lengths, info.positions, pages)
    if not CPU_KERNEL.chosen(devices, inputs, value_size):
        return _append_and_attend(value_size, window, devices, info.kv_blocks, inputs)
    # A loop with an operand as its number of iterations has no reverse-mode derivative.
    blocks = info.kv_blocks if isinstance(info.kv_blocks, int) else pages.shape[1]
    plain = partial(_append_and_attend, value_size, window, devices, blocks)
    return attention_of(plain, value_size, window, inputs)


def _append_and_attend(
    value_size: int, window: int | None, devices: Devices, blocks: Int32[Array, ""] | int, inputs: AttentionInputs
) -> tuple[Float32[Array, "lane token head size"], KVCache]:
    token = jnp.arange(inputs.query.shape[1], dtype=jnp.int32)[None]
    positions, valid = inputs.positions[:, None] + token, token < inputs.lengths[:, None]
    cache = append(KVCache(*inputs.caches), inputs.key, inputs.value, positions, valid, inputs.pages, devices.platform)
    operands = inputs.query, cache, positions, valid, blocks
    return attend(*operands, value_size, devices, pages=inputs.pages, window=window), cache
