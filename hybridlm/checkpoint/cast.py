"""Copies of arrays in another dtype, made block by block, whose values must fit."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import EllipsisType

import numpy as np

from hybridlm.errors import CheckpointError

# Elements that are converted at once: what a conversion needs beside its result stays small.
_BLOCK = 1 << 22
# XLA's CPU client takes an array over without a copy if it is aligned like this.
_ALIGNMENT = 64


def converted(array: np.ndarray, kind: np.dtype, path: Path, names: Iterable[str]) -> np.ndarray:
    """A contiguous, aligned copy in another dtype; as `convert`."""
    result = aligned_empty(array.shape, kind)
    convert(array, result, path, names)
    return result


def convert(array: np.ndarray, result: np.ndarray, path: Path, names: Iterable[str]) -> None:
    """Copy an array into one of another dtype; values beyond its range are an error instead of infinity."""
    kind = result.dtype
    narrowing = kind != array.dtype and kind != np.float32
    # A float16 above 65504 or a float32 above the largest bfloat16 is found below, with its tensor's name.
    with np.errstate(over="ignore"):
        for block in _blocks(array.shape):
            np.copyto(result[block], array[block], casting="unsafe")
            if narrowing and np.isinf(result[block]).sum() != np.isinf(array[block]).sum():
                raise CheckpointError(
                    path,
                    f"{', '.join(list(names)[:3])}: holds {array.dtype} values beyond the range of {kind}",
                    'Load with dtype="float32", or "bfloat16" if the checkpoint says so.',
                )


def aligned_empty(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """An array of no content yet, where XLA's CPU client takes it over without a copy."""
    size = math.prod(shape) * kind.itemsize
    buffer = np.empty(size + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + size].view(kind).reshape(shape)


def _blocks(shape: tuple[int, ...]) -> Iterator[slice | EllipsisType]:
    if not shape:
        yield ...
        return
    step = max(1, _BLOCK // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        yield slice(start, start + step)
