"""Size of the KV cache that the sequences of a run share: `load(cache=)` in pages."""

from typing import Any

from hybridlm.prefix_cache.budget import to_bytes
from models import KV_BLOCK


def check_cache(cache: Any) -> None:
    """Check `cache` without a model.

    Raises:
        TypeError, ValueError: it is neither a size in bytes nor a number of positions.
    """
    if _positions(cache) is None:
        to_bytes(cache, "cache")


def _positions(cache: Any) -> int | None:
    """Return `cache` as positions; None if it has a unit of bytes."""
    text = str(cache).strip()
    if isinstance(cache, bool) or not isinstance(cache, int | str):
        expected = 'a number of positions, or bytes such as "8GB"'
        raise TypeError(f"cache: expected {expected}, got {cache!r}")
    if not text.removeprefix("-").isdecimal():
        return None
    if int(text) < 1:
        raise ValueError(f"cache: expected at least 1 position, got {cache}")
    return int(text)


def page_limit(cache: str | int | None, page_bytes: int, devices: int) -> int | None:
    """Return the pages of a pool on each device by `load(cache=)`, without the null page.

    Args:
        page_bytes: on each device; 0 without a KV cache.

    Raises:
        ValueError: `cache` holds not one page on each device.
    """
    if cache is None or not page_bytes:
        return None
    positions = _positions(cache)
    if positions is None:
        pages = to_bytes(cache, "cache") // page_bytes - 1  # the null page counts
        smallest = f"{2 * page_bytes:,} B on each device, for one page of {KV_BLOCK} positions and a null page"
    else:
        pages = -(-positions // (KV_BLOCK * devices))
        smallest = f"{KV_BLOCK * devices} positions"
    if pages < 1:
        raise ValueError(f"cache: expected at least {smallest}, got {cache!r}")
    return pages


def pool_pages(rows: int, blocks: int, limit: int | None) -> int:
    """Return a device's pages, with the null page; 0 without a KV cache.

    Args:
        blocks: pages of a whole context.
    """
    if not blocks:
        return 0
    return 1 + (rows * blocks if limit is None else min(rows * blocks, limit))
