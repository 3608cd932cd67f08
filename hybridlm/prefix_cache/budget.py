"""Memory limit of the prefix cache: parse user input into bytes."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_UNITS = {name.lower(): factor for name, factor in UNITS.items()}
_EXPECTED = f'bytes as a whole number, or a string like "512MB" (units {", ".join(UNITS)})'


class CacheBudget(NamedTuple):
    """Maximum bytes of cached states on the device and in host memory."""

    device: int
    host: int

    def __str__(self) -> str:
        return f"{self.device}, {self.host} bytes"


def cache_budget(budget: Any, device_only: bool = False) -> CacheBudget:
    """Parse `prefix_cache`: one size for both device and host, or a size each.

    Args:
        budget: a size, {"device": size, "host": optional size}, or a `CacheBudget`.
        device_only: no host has a complete state.

    Raises:
        TypeError, ValueError: neither; with the expected form.
    """
    if isinstance(budget, CacheBudget):
        return budget
    if not isinstance(budget, Mapping):
        size = to_bytes(budget, "prefix_cache")
        return CacheBudget(size, 0 if device_only else size)
    if "device" not in budget or not set(budget) <= {"device", "host"}:
        raise ValueError(
            f'prefix_cache: expected a size, or a dict of "device" and, if it is to have another size, "host"; got '
            f"{dict(budget)!r}"
        )
    device = to_bytes(budget["device"], "prefix_cache['device']")
    host = to_bytes(budget.get("host", 0 if device_only else device), "prefix_cache['host']")
    if device_only and host:
        raise ValueError(
            "prefix_cache['host']: a model over several processes has no host with a complete state; give 0"
        )
    return CacheBudget(device, host)


def to_bytes(size: Any, name: str) -> int:
    """Parse a size in bytes; raises TypeError or ValueError."""
    if isinstance(size, int) and not isinstance(size, bool):
        if size < 0:
            raise ValueError(f"{name}: expected {_EXPECTED}, got {size}")
        return size
    if not isinstance(size, str):
        raise TypeError(f"{name}: expected {_EXPECTED}, got {size!r}")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", size)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{name}: expected {_EXPECTED}, got {size!r}")
    return int(float(match[1]) * _UNITS[match[2].lower()])
