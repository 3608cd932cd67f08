"""Memory for weights in huge pages of 2 MB, for faster reads.

A step reads each weight from end to end. With small pages a core looks up an address every 4 KB, and neither its
prefetchers nor the requests of our kernels go on where the address of a page is not at hand (docs/cpu-kernels.md).
"""

import contextlib
import mmap
import threading
import weakref

import numpy as np

ALIGNMENT = 64
"""XLA's CPU client takes over an array of this alignment without a copy."""
PAGE = 2 << 20
BLOCK = 64 << 20
"""Addresses that weights share, one behind the other, so that small ones fill a page, too. Unwritten pages take no
memory."""


class HugePages:
    """Memory in blocks; a block lives as long as an array in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._block: weakref.ref[mmap.mmap] | None = None
        self._used = 0

    def empty(self, size: int) -> np.ndarray:
        """Allocate uninitialised, aligned bytes; their memory is freed with their last view.

        A system without huge pages uses its own.
        """
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
    """Free the small pages inside an array; the other pages of the block stay."""
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        block.madvise(mmap.MADV_DONTNEED, first, end - first)
