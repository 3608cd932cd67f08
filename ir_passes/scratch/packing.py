"""Offsets for buffers with live ranges: pure functions that know sizes and times, not programs.

Buffers that are live at the same time share no byte. The packer is greedy: it takes the buffers in the order of the
fullest time at which each is live and puts each into the smallest gap that holds it. A model's layers need the same
scratch one after the other, and each has a time at which most is live: what is live there is placed first, and what is
live at emptier times around it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

ALIGNMENT = 64  # XLA's on CPU, and a cache line


@dataclass(frozen=True)
class Buffer:
    """Bytes that are needed from time `start` to time `end`, both included.

    Attributes:
        size: bytes; 0 is allowed and conflicts with nothing.
        start, end: times of the first and of the last use.
    """

    size: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.size < 0 or self.end < self.start:
            raise ValueError(f"expected size >= 0, end >= start, got {self}")


def pack(buffers: Sequence[Buffer]) -> list[int]:
    """Assign an offset to each buffer, a multiple of `ALIGNMENT`."""
    neighbours, offsets = _conflicts(buffers), dict[int, int]()
    for i in _fullest_first(buffers):
        taken = sorted((offsets[j], offsets[j] + buffers[j].size) for j in neighbours[i] if j in offsets)
        offsets[i] = _smallest_gap(buffers[i].size, taken)
    return [offsets[i] for i in range(len(buffers))]


def height(buffers: Sequence[Buffer], offsets: Sequence[int]) -> int:
    """Bytes of the arena: the highest end of a buffer."""
    return max((offset + buffer.size for buffer, offset in zip(buffers, offsets, strict=True)), default=0)


def live_bytes(buffers: Sequence[Buffer]) -> dict[int, int]:
    """Bytes that are live from each time at which that changes, in the order of time, each buffer up to a multiple of
    `ALIGNMENT`: no packing is lower than the most of them."""
    steps: dict[int, int] = {}
    for buffer in buffers:
        size = aligned(buffer.size)
        steps[buffer.start] = steps.get(buffer.start, 0) + size
        steps[buffer.end + 1] = steps.get(buffer.end + 1, 0) - size
    times = sorted(steps)
    return dict(zip(times, accumulate(steps[time] for time in times), strict=True))


def aligned(offset: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _conflicts(buffers: Sequence[Buffer]) -> list[list[int]]:
    """Return for each buffer the others that are live at the same time; sharing one end point is enough."""
    neighbours: list[list[int]] = [[] for _ in buffers]
    live: list[int] = []
    for i in sorted(range(len(buffers)), key=lambda i: buffers[i].start):
        if buffers[i].size == 0:
            continue
        live = [j for j in live if buffers[j].end >= buffers[i].start]
        for j in live:
            neighbours[i].append(j)
            neighbours[j].append(i)
        live.append(i)
    return neighbours


def _fullest_first(buffers: Sequence[Buffer]) -> list[int]:
    """The buffers by the fullest time at which each is live, the earliest of equally full ones; then the longest."""
    loads = live_bytes(buffers)
    times, live = np.array(list(loads), np.int64), np.array(list(loads.values()), np.int64)
    first = np.searchsorted(times, [b.start for b in buffers]).tolist()
    stop = np.searchsorted(times, [b.end + 1 for b in buffers]).tolist()
    fullest = [low + int(live[low:high].argmax()) for low, high in zip(first, stop, strict=True)]
    keys = [
        (-int(live[time]), time, b.start - b.end, -b.size, i)
        for i, (b, time) in enumerate(zip(buffers, fullest, strict=True))
    ]
    return [key[-1] for key in sorted(keys)]


def _smallest_gap(size: int, taken: Sequence[tuple[int, int]]) -> int:
    """The offset of the smallest gap between sorted byte ranges that holds so many bytes, else the end of them all."""
    top, best, smallest = 0, -1, 0
    for low, high in taken:
        start = aligned(top)
        if low - start >= size and (best < 0 or low - top < smallest):
            best, smallest = start, low - top
        top = max(top, high)
    return aligned(top) if best < 0 else best
