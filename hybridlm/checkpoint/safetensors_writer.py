"""Writes a safetensors file array by array, so that its bytes exist once."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import BinaryIO, NamedTuple

import numpy as np

NAMES: Mapping[str, str] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int32": "I32"}
"""The format's name of a dtype."""


class Entry(NamedTuple):
    """An array that will be written."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def write_safetensors(
    file: BinaryIO, entries: Iterable[Entry], arrays: Iterable[np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Write a header and the arrays behind it.

    Args:
        file: written from where it is.
        entries: what the arrays are, in order; dtypes are those of `NAMES`.
        arrays: one for each entry.
        metadata: free-form strings.

    Raises:
        ValueError: an array is not what its entry says.
    """
    entries, end = list(entries), 0
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    for entry in entries:
        begin, end = end, end + math.prod(entry.shape) * np.dtype(entry.dtype).itemsize
        header[entry.name] = {"dtype": NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for entry, array in zip(entries, arrays, strict=True):
        if (array.shape, array.dtype.name) != (entry.shape, entry.dtype):
            raise ValueError(f"{entry}: got {array.dtype.name}{list(array.shape)}")
        file.write(array.tobytes())
