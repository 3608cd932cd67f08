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


def cache_budget(given: Any, device_only: bool = False) -> CacheBudget:
    """Parse `prefix_cache`: one size for the device and as much on the host, or a size for each.

    Args:
        given: a size, or {"device": size, "host": size}, "host" optional; a `CacheBudget` is returned unchanged.
        device_only: use no host memory, because no host has all of a state.

    Raises:
        TypeError, ValueError: it is neither; the message says what was expected.
    """
    if isinstance(given, CacheBudget):
        return given
    if not isinstance(given, Mapping):
        size = to_bytes(given, "prefix_cache")
        return CacheBudget(size, 0 if device_only else size)
    if "device" not in given or not set(given) <= {"device", "host"}:
        raise ValueError(
            f'prefix_cache: expected a size, or a dict of "device" and, if it is to have another size, "host"; got '
            f"{dict(given)!r}"
        )
    device = to_bytes(given["device"], "prefix_cache['device']")
    host = to_bytes(given.get("host", 0 if device_only else device), "prefix_cache['host']")
    if device_only and host:
        raise ValueError("prefix_cache['host']: where a model lies over several processes, no host has all of a state")
    return CacheBudget(device, host)


def to_bytes(given: Any, name: str) -> int:
    """Parse a size in bytes.

    Raises:
        TypeError, ValueError: not a size; the message has the name and what was expected.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 0:
            raise ValueError(f"{name}: expected {_EXPECTED}, got {given}")
        return given
    if not isinstance(given, str):
        raise TypeError(f"{name}: expected {_EXPECTED}, got {given!r}")
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", given)
    if found is None or found[2].lower() not in _UNITS:
        raise ValueError(f"{name}: expected {_EXPECTED}, got {given!r}")
    return int(float(found[1]) * _UNITS[found[2].lower()])
