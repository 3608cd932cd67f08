"""KV caches as pages and by lane: consecutive pages after the null page."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridlm.families import KVCache
from models import KV_BLOCK
from models.state.state import stored_size


def consecutive_pages(lanes: int, pages: int) -> jax.Array:
    """Return the page table [lane, block] of lanes that share all pages after the null page."""
    return jnp.arange(1, pages, dtype=jnp.int32).reshape((lanes, -1))


def as_stored(array: Any, platform: str) -> jax.Array:
    """Pad the last dimension as a platform stores keys and values."""
    size = array.shape[-1]
    return jnp.pad(array, ((0, 0),) * (array.ndim - 1) + ((0, stored_size(size, platform) - size),))


def filled_cache(
    lanes: int, blocks: int, kv_heads: int, sizes: tuple[int, int], fill: float, platform: str = "cpu"
) -> tuple[KVCache, jax.Array]:
    """Return pages of one value for each lane, after a null page, and their table."""
    pages = 1 + lanes * blocks
    parts = [np.full((pages, kv_heads, KV_BLOCK, stored_size(size, platform)), fill, np.float32) for size in sizes]
    return KVCache(*map(jnp.asarray, parts)), consecutive_pages(lanes, pages)


def in_pages(cache: Any) -> np.ndarray:
    """Return caches [lane, kv_head, position, size] as pages after a null page of NaN."""
    lanes, heads, context, size = cache.shape
    blocks = np.asarray(cache).reshape(lanes, heads, context // KV_BLOCK, KV_BLOCK, size).swapaxes(1, 2)
    pages = blocks.reshape(-1, heads, KV_BLOCK, size)
    return np.concatenate([np.full_like(pages[:1], np.nan), pages])


def by_lane(array: Any, lanes: int) -> np.ndarray:
    """Return pages as positions of each lane; return other arrays unchanged."""
    array = np.asarray(array)
    if len(array) == lanes:
        return array
    _, heads, places, size = array.shape
    return array[1:].reshape(lanes, -1, heads, places, size).swapaxes(1, 2).reshape(lanes, heads, -1, size)


def of_lanes(array: Any, lanes: int, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply a change by lane to pages or rows; the null page is new."""
    array = np.asarray(array)
    changed = change(by_lane(array, lanes))
    return changed if len(array) == lanes else in_pages(changed)


def like(array: np.ndarray, pool: Any) -> np.ndarray:
    """Return rows in a pool's form: pages, or unchanged."""
    return array if array.shape == pool.shape else in_pages(array)
