"""KV caches as pages and by lane, for steps without page tables: consecutive pages behind the null page."""

from collections.abc import Callable
from typing import Any

import numpy as np

from models import KV_BLOCK


def in_pages(cache: Any) -> np.ndarray:
    """Return the positions of each lane [lane, kv_head, position, size] as pages behind a null page of NaN."""
    lanes, heads, context, size = cache.shape
    blocks = np.asarray(cache).reshape(lanes, heads, context // KV_BLOCK, KV_BLOCK, size).swapaxes(1, 2)
    pages = blocks.reshape(-1, heads, KV_BLOCK, size)
    return np.concatenate([np.full_like(pages[:1], np.nan), pages])


def by_lane(array: Any, lanes: int) -> np.ndarray:
    """Return pages as the positions of each lane; another array of `lanes` rows as it is."""
    array = np.asarray(array)
    if len(array) == lanes:
        return array
    _, heads, places, size = array.shape
    return array[1:].reshape(lanes, -1, heads, places, size).swapaxes(1, 2).reshape(lanes, heads, -1, size)


def of_lanes(array: Any, lanes: int, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return pages, or another array of `lanes` rows, after a change of the array by lane; new null page."""
    array = np.asarray(array)
    changed = change(by_lane(array, lanes))
    return changed if len(array) == lanes else in_pages(changed)


def like(array: np.ndarray, pool: Any) -> np.ndarray:
    """Return rows by lane in the form of a pool: pages, or as they are."""
    return array if array.shape == pool.shape else in_pages(array)
