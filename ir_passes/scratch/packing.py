"""Assign offsets to buffers: buffers live at the same time share no byte.

The largest buffer is placed first. Each buffer takes the smallest gap that is large enough (greedy by size, best fit).
"""

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes: XLA's alignment on CPUs, and the size of a cache line."""


@dataclass(frozen=True)
class Buffer:
    """A buffer in use from time `start` to time `end`, both included."""

    size: int
    start: int
    end: int


def pack(buffers: Sequence[Buffer]) -> list[int]:
    """Return an offset for each buffer, a multiple of `ALIGNMENT`."""
    offsets: dict[int, int] = {}
    for i in sorted(range(len(buffers)), key=lambda i: (-buffers[i].size, buffers[i].start)):
        size, start, end = buffers[i].size, buffers[i].start, buffers[i].end
        neighbours = (j for j in offsets if buffers[j].start <= end and start <= buffers[j].end)
        offsets[i] = _smallest_gap(size, sorted((offsets[j], offsets[j] + buffers[j].size) for j in neighbours))
    return [offsets[i] for i in range(len(buffers))]


def height(buffers: Sequence[Buffer], offsets: Sequence[int]) -> int:
    """Return the bytes of the arena: the largest end of a buffer."""
    return max((offset + buffer.size for buffer, offset in zip(buffers, offsets, strict=True)), default=0)


def aligned(offset: int) -> int:
    """Round up to a multiple of `ALIGNMENT`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _smallest_gap(size: int, ranges: Sequence[tuple[int, int]]) -> int:
    """Return the offset of the smallest gap of at least `size` bytes.

    Without such a gap, the aligned end of the last range.

    Args:
        size: bytes of the buffer.
        ranges: sorted byte ranges in use.
    """
    top, best, smallest = 0, -1, 0
    for low, high in ranges:
        start = aligned(top)
        if low - start >= size and (best < 0 or low - top < smallest):
            best, smallest = start, low - top
        top = max(top, high)
    return aligned(top) if best < 0 else best
