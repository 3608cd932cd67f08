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
    """Return the positions that `cache` gives; None if it has a unit of bytes."""
    text = str(cache).strip()
    if isinstance(cache, bool) or not isinstance(cache, int | str):
        expected = 'a number of positions, or bytes such as "8GB"'
        raise TypeError(f"cache: expected {expected}, got {cache!r}")
    if not text.removeprefix("-").isdecimal():
        return None
    if int(text) < 1:
        raise ValueError(f"cache: expected at least 1 position, got {cache}")
    return int(text)


def cache_pages(cache: str | int | None, rows: int, width: int, page_bytes: int, devices: int) -> int:
    """Return the pages of the KV cache on each device, without its null page; 0 for a model without one.

    Args:
        cache: option of `load`.
        rows: rows of the pool of a run, on all devices.
        width: pages of a whole context.
        page_bytes: bytes of a page on each device.
        devices: devices that rows and pages are split over.

    Raises:
        ValueError: `cache` holds not one page on each device.
    """
    most = rows // devices * width
    if not page_bytes or cache is None:
        return most if page_bytes else 0
    positions = _positions(cache)
    if positions is None:
        pages = to_bytes(cache, "cache") // page_bytes - 1  # the null page counts
        smallest = f"{2 * page_bytes:,} B on each device, for one page of {KV_BLOCK} positions and a null page"
    else:
        pages = -(-positions // (KV_BLOCK * devices))
        smallest = f"{KV_BLOCK * devices} positions"
    if pages < 1:
        raise ValueError(f"cache: expected at least {smallest}, got {cache!r}")
    return min(pages, most)
