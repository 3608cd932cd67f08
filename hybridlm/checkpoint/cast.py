"""Conversion of arrays to another dtype by blocks, into huge pages.

With small pages a core looks up an address every 4 KB, where prefetches stop (docs/cpu-kernels.md).
"""

import contextlib
import math
import mmap
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import EllipsisType

import numpy as np

from hybridlm.checkpoint.safetensors import READABLE
from hybridlm.errors import CheckpointError

ALIGNMENT = 64
"""XLA's CPU client uses an array of this alignment without a copy."""
PAGE = 2 << 20
BLOCK = 64 << 20
"""Address space shared by small weights, to fill a page; unwritten pages take no memory."""


class HugePages:
    """Memory in blocks; a block lives as long as an array in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._block: weakref.ref[mmap.mmap] | None = None
        self._used = 0

    def empty(self, size: int) -> np.ndarray:
        """Allocate uninitialised, aligned bytes, freed with their last view."""
        if size == 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
            buffer = np.empty(size + ALIGNMENT, np.uint8)
            start = -buffer.ctypes.data % ALIGNMENT
            return buffer[start : start + size]
        with self._lock:
            block = None if self._block is None else self._block()
            if block is None or self._used + size > len(block):
                block = _new_block(max(BLOCK, size) + PAGE)
                self._block, self._used = weakref.ref(block), -np.frombuffer(block, np.uint8).ctypes.data % PAGE
            start = self._used
            self._used = -(-(start + size) // ALIGNMENT) * ALIGNMENT
        view = np.frombuffer(block, np.uint8, size, start)
        weakref.finalize(view, _free, block, start, size).atexit = False
        return view


def _new_block(size: int) -> mmap.mmap:
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _free(block: mmap.mmap, start: int, size: int) -> None:
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        block.madvise(mmap.MADV_DONTNEED, first, end - first)


DTYPES: Mapping[str, np.dtype] = {kind.name: kind for kind in READABLE.values()}

# Elements per conversion; bounds its memory.
_BLOCK = 1 << 22
_MEMORY = HugePages()


def convert(array: np.ndarray, result: np.ndarray, path: Path, names: Iterable[str]) -> None:
    """Copy an array into one of another dtype.

    Raises:
        CheckpointError: a finite value would become infinite.
    """
    kind = result.dtype
    narrowing = kind != array.dtype and kind != np.float32
    # Overflow (above 65504 in float16) is found below, with its tensor.
    with np.errstate(over="ignore"):
        for block in _blocks(array.shape):
            np.copyto(result[block], array[block], casting="unsafe")
            if narrowing and np.isinf(result[block]).sum() != np.isinf(array[block]).sum():
                raise CheckpointError(
                    path,
                    f"{', '.join(list(names)[:3])}: holds {array.dtype} values beyond the range of {kind}",
                    'Load with dtype="float32", or "bfloat16" if the checkpoint says so.',
                )


def finite_tensor(path: Path, name: str, tensor: np.ndarray) -> np.ndarray:
    """Return a float32 copy of a small tensor; see `require_finite_tensor`."""
    wide = np.asarray(tensor).astype(np.float32)
    require_finite_tensor(path, name, wide)
    return wide


def require_finite_tensor(path: Path, name: str, tensor: np.ndarray) -> None:
    """Raise CheckpointError for NaN or infinity."""
    finite = np.isfinite(tensor)
    if not finite.all():
        first = [int(index) for index in np.argwhere(~finite)[0]]
        raise CheckpointError(
            path,
            f"{name}: expected finite numbers, found NaN or infinity in {int((~finite).sum()):,} of {finite.size:,} "
            f"places, the first at {first}",
            "The file is damaged, or its training diverged: get another copy, or an earlier one.",
        )


def aligned_empty(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """Allocate an uninitialised array that XLA's CPU client uses without a copy."""
    return _MEMORY.empty(math.prod(shape) * kind.itemsize).view(kind).reshape(shape)


def _blocks(shape: tuple[int, ...]) -> Iterator[slice | EllipsisType]:
    if not shape:
        yield ...
        return
    step = max(1, _BLOCK // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        yield slice(start, start + step)
