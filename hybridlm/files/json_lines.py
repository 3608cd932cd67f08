"""JSON lines: strict reading, portable writing."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from ir_passes.files.strict_json import parse_json

Id = str | int | None

MAX_WINDOW_BYTES = 16_000_000
"""Bytes of a window of requests."""


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line.

    Raises:
        ValueError: not UTF-8, not JSON (NaN and Infinity are not), a duplicate key, or no object.
    """
    if not line.strip():
        raise ValueError("expected a JSON object, the line is blank")
    try:
        value = parse_json(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        # Its "line 1" is not the file's.
        raise ValueError(f"expected a JSON object, but {error.msg} at column {error.colno}") from error
    except ValueError as error:
        raise ValueError(f"expected a JSON object, but it cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value


def read_id(value: Mapping[str, Any]) -> Id:
    """Return an object's "id"; raises ValueError for neither string nor integer."""
    id = value.get("id")
    if id is not None and (isinstance(id, bool) or not isinstance(id, str | int)):
        raise ValueError(f"id: expected a string or a whole number, got {id!r}")
    return id


def write_in_order(parts: Sequence[Callable[[], bytes]], order: np.ndarray, file: BinaryIO) -> None:
    """Write lines of parts to their places; one part and line lengths are in memory.

    Args:
        parts: return whole lines; read twice.
        order: int64, place of each line, from 0.
    """
    lengths = np.concatenate([np.diff(_line_ends(part()), prepend=0) for part in parts])
    begin, sizes = file.tell(), np.empty_like(lengths)
    sizes[order] = lengths
    offsets = begin + np.cumsum(sizes) - sizes
    place = 0
    for part in parts:
        content, first = part(), 0
        for end in _line_ends(content).tolist():
            file.seek(int(offsets[order[place]]))
            file.write(content[first:end])
            first, place = end, place + 1
    file.seek(begin + int(lengths.sum()))


def _line_ends(part: bytes) -> np.ndarray:
    return 1 + np.flatnonzero(np.frombuffer(part, np.uint8) == ord("\n"))


def finite(value: float | None) -> float | None:
    """Return the number, or None for NaN and infinity."""
    return float(value) if value is not None and math.isfinite(value) else None


_ENCODER = json.JSONEncoder(allow_nan=False)


def dump(value: Any) -> str:
    """Return a value as one ASCII line, safe for lone surrogates and all locales.

    Raises:
        ValueError: a number that is not finite; use `finite`.
    """
    return _ENCODER.encode(value)
