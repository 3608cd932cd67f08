"""JSON and text files of a checkpoint: bounded, UTF-8, strict."""

import math
from pathlib import Path
from typing import Any

from hybridlm.errors import CheckpointError
from ir_passes.files.strict_json import PairsHook, parse_json

MEGABYTE = 1_000_000


def read_text(path: Path, limit: int) -> str:
    """Return the text of a file without a byte-order mark.

    Raises:
        CheckpointError: no regular file, more than `limit` bytes, or not UTF-8.
    """
    if not path.is_file():
        raise CheckpointError(path, "expected a file, found none" if not path.exists() else "expected a regular file")
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise CheckpointError(path, f"expected at most {limit:,} bytes, found {path.stat().st_size:,}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(path, f"expected UTF-8, but it cannot be read: {error}") from error


def read_object(path: Path, limit: int, pairs_hook: PairsHook | None = None) -> dict[str, Any]:
    """Return the JSON object in a file; NaN and Infinity are numbers.

    Args:
        pairs_hook: key and value pairs -> object.

    Raises:
        CheckpointError: as `read_text`; or not JSON, a duplicate key, or no object.
    """
    text = read_text(path, limit)
    try:
        value = parse_json(text, pairs_hook, constants=True)
    except ValueError as error:
        raise CheckpointError(path, f"expected a JSON object, but it cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(path, f"expected a JSON object, found {type(value).__name__}")
    return value


def is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
