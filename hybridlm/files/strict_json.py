"""JSON files of a checkpoint: bounded, UTF-8, without duplicate keys."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridlm.errors import CheckpointError

MEGABYTE = 1_000_000


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """`object_pairs_hook` that refuses what JSON readers disagree about: a key that is there twice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = sorted({key for key, _ in pairs if key in seen or seen.add(key)})
        raise ValueError(f"duplicate keys {twice[:5]}")
    return result


def read_object(
    path: Path,
    limit: int,
    pairs_hook: Callable[[list[tuple[str, Any]]], Any] = unique_keys,
) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: a file, or a link to one.
        limit: the most bytes it may have.
        pairs_hook: makes the value of each JSON object from its key and value pairs.

    Raises:
        CheckpointError: not a regular file, longer than `limit`, not UTF-8, not JSON, or not an object.
    """
    if not path.is_file():
        raise CheckpointError(path, "expected a file, found none" if not path.exists() else "expected a regular file")
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise CheckpointError(path, f"expected at most {limit:,} bytes, found {path.stat().st_size:,}")
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=pairs_hook)
    except (ValueError, RecursionError) as error:
        # RecursionError: nesting; ValueError covers syntax, UTF-8, duplicate keys and numbers of thousands of digits.
        raise CheckpointError(path, f"expected a JSON object, but it cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(path, f"expected a JSON object, found {type(value).__name__}")
    return value
