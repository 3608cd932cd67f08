"""Memory for weights in huge pages of 2 MB, which a processor reads faster than pages of 4 KB.

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
    """Memory in blocks, each of which is there as long as an array in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._block: weakref.ref[mmap.mmap] | None = None
        self._used = 0

    def empty(self, size: int) -> np.ndarray:
        """Allocate bytes, uninitialized and aligned, whose memory is given back when the last view of them is gone.

        Where the system has no such pages, memory is in those that it has.
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
        taken = np.frombuffer(block, np.uint8, size, start)
        weakref.finalize(taken, _give_back, block, start, size).atexit = False
        return taken


def _new_block(size: int) -> mmap.mmap:
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel that was built without
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _give_back(block: mmap.mmap, start: int, size: int) -> None:
    """Give back the small pages that hold nothing else; the others in the block stay."""
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        block.madvise(mmap.MADV_DONTNEED, first, end - first)
