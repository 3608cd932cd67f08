"""Strict JSON: refuse everything that JSON readers treat differently."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

PairsHook = Callable[[list[tuple[str, Any]]], Any]


def parse_json(text: str | bytes, pairs_hook: PairsHook | None = None, constants: bool = False) -> Any:
    """Parse a JSON text.

    Args:
        text: bytes are UTF-8 without a byte-order mark.
        pairs_hook: pairs -> object; by default `unique_keys`.
        constants: accept NaN, Infinity and -Infinity, which Python writes.

    Raises:
        ValueError: not UTF-8, not JSON, a duplicate key, a constant, a number of thousands of digits, or deep nesting.
    """
    text = text.decode() if isinstance(text, bytes) else text
    try:
        return json.loads(
            text,
            object_pairs_hook=unique_keys if pairs_hook is None else pairs_hook,
            parse_constant=None if constants else _refuse_constant,
        )
    except RecursionError as error:
        raise ValueError(f"nested too deeply: {error}") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of pairs; raises ValueError for a repeated key."""
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        duplicates = sorted(key for key, count in counts.items() if count > 1)
        raise ValueError(f"duplicate keys {duplicates[:5]}")
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
