"""Pages of KV caches.

A cache is a pool of pages of `KV_BLOCK` positions. Block b of a lane is entry b of its row of the page table: the page
of positions from b * KV_BLOCK on. Page 0 is the null page: entries after a lane's last page name it, and no token is
written to it.
"""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int32, Shaped

KV_BLOCK = 128
"""Positions of a page of a KV cache."""

Pages = Int32[Array, "lane block"]


def kv_blocks(positions: int) -> int:
    """Return the number of pages for positions."""
    return -(-positions // KV_BLOCK)


def context_pages(context: int) -> int:
    """Return the pages of a sequence of `context` tokens, two at least.

    ops/layout, one block: a cache with one entry in its page table would be copied.
    """
    return max(kv_blocks(context), 2)


def cache_positions(context: int) -> int:
    return context_pages(context) * KV_BLOCK


def own_page_count(lanes: int, context: int) -> int:
    """Return the pages of all lanes' contexts, and the null page."""
    return 1 + lanes * context_pages(context)


def own_pages(lanes: int, pages: int) -> Pages:
    """Return the page table with consecutive pages for each lane, after the null page."""
    each = (pages - 1) // lanes
    return 1 + jnp.arange(lanes * each, dtype=jnp.int32).reshape((lanes, each))


def window_pages(
    table: Pages, positions: Int32[Array, "lane token"], window: int
) -> tuple[Int32[Array, "lane visible"], Int32[Array, "lane token"]]:
    """Return each lane's pages within its tokens' window, and the tokens' positions in them.

    Tokens are consecutive.
    """
    tokens = positions.shape[1]
    blocks = max(kv_blocks(window + tokens - 2) + 1, 2)  # two for `context_pages`
    if blocks >= table.shape[1]:
        return table, positions
    visible = lax.div(positions[:, :1] - jnp.int32(window - 1), jnp.int32(KV_BLOCK))
    first = jnp.clip(visible, 0, table.shape[1] - blocks)
    entries = first + jnp.arange(blocks, dtype=jnp.int32)[None]
    return jnp.take_along_axis(table, entries, axis=1, mode="promise_in_bounds"), positions - first * KV_BLOCK


def token_places(
    table: Pages, positions: Int32[Array, "lane token"], valid: Bool[Array, "lane token"], pages: int
) -> tuple[Int32[Array, "lane token"], Int32[Array, "lane token"]]:
    """Return page and place within the page of each token.

    Padding and tokens without a page get distinct pages past the end of the pool, which a scatter drops.
    """
    block = lax.div(positions, jnp.int32(KV_BLOCK))
    page = jnp.take_along_axis(table, block, axis=1, mode="clip")
    padding = pages + jnp.arange(positions.size, dtype=jnp.int32).reshape(positions.shape)
    written = valid & (positions >= 0) & (block < table.shape[1]) & (page > 0)
    return jnp.where(written, page, padding), lax.rem(positions, jnp.int32(KV_BLOCK))


def put_tokens(
    pool: Shaped[Array, "page head place size"],
    places: tuple[Int32[Array, "lane token"], Int32[Array, "lane token"]],
    new: Shaped[Array, "lane token head size"],
) -> Shaped[Array, "page head place size"]:
    """Write keys or values of tokens to their places, page and position in it; drop the others."""
    page, place = places
    return pool.at[page, :, place].set(new, mode="drop", unique_indices=True, wrap_negative_indices=False)


def take_pages(
    pool: Shaped[Array, "page head place size"], pages: Int32[Array, "lane block"]
) -> Shaped[Array, "lane head position size"]:
    """Gather the pages of each lane, in order."""
    lanes, count = pages.shape
    _, heads, places, size = pool.shape
    dims = lax.GatherDimensionNumbers(offset_dims=(1, 3, 4), collapsed_slice_dims=(0,), start_index_map=(0,))
    sizes, mode = (1, heads, places, size), lax.GatherScatterMode.PROMISE_IN_BOUNDS
    blocks = lax.gather(pool, pages[:, :, None], dims, sizes, mode=mode)
    return blocks.reshape((lanes, heads, count * places, size))
