"""Offsets for buffers with live ranges: pure functions that know sizes and times, not programs.

A packing gives every buffer an offset such that buffers that are live at the same time share no byte. Packings are
made by planners, registered by name:

    naive      no two buffers share a byte; the baseline
    best-fit   in order of falling size, each into the smallest gap that holds it
    search     best-fit, also with the fullest times first; then many orders from the bottom up, the best ones varied
    exact      all orders from the bottom up, within a limit of work

The last two are in packing_search.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

ALIGNMENT = 64  # XLA's on CPU, and a cache line


@dataclass(frozen=True)
class Buffer:
    """Bytes that are needed from time `start` to time `end`, both included.

    Attributes:
        size: bytes; 0 is allowed and conflicts with nothing.
        start, end: times of the first and of the last use.
        alignment: its offset must be a multiple of this.
    """

    size: int
    start: int
    end: int
    alignment: int = ALIGNMENT

    def __post_init__(self) -> None:
        if self.size < 0 or self.end < self.start or self.alignment < 1:
            raise ValueError(f"expected size >= 0, end >= start, alignment >= 1, got {self}")


@dataclass(frozen=True)
class Packing:
    """Where the buffers are.

    Attributes:
        offsets: one for each buffer, in the order in which they were given.
        height: bytes of the arena: the highest end of a buffer.
        optimal: no packing is lower, counted in multiples of the alignment. False says that this is not known.
    """

    offsets: tuple[int, ...]
    height: int
    optimal: bool


Planner = Callable[[Sequence[Buffer]], Packing]
PLANNERS: dict[str, Planner] = {}
P = TypeVar("P", bound=Callable[..., Packing])


def register(name: str) -> Callable[[P], P]:
    """Make a planner known by a name; raises ValueError if the name is taken."""

    def add(planner: P) -> P:
        if name in PLANNERS:
            raise ValueError(f"a planner named {name!r} is registered already: {PLANNERS[name]}")
        PLANNERS[name] = planner
        return planner

    return add


def planner_of(name: str) -> Planner:
    """The planner of that name; raises ValueError with the list of them if there is none."""
    if name not in PLANNERS:
        raise ValueError(f"no planner is named {name!r}; registered: {', '.join(sorted(PLANNERS))}")
    return PLANNERS[name]


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are live at one time, each buffer up to the next aligned offset: no packing is lower."""
    return max(live_bytes(buffers).values(), default=0)


def live_bytes(buffers: Sequence[Buffer]) -> dict[int, int]:
    """Bytes that are live from each time at which that changes, in the order of time, counted as in `lower_bound`."""
    pitch = _pitch(buffers)
    steps: dict[int, int] = {}
    for buffer in buffers:
        size = aligned(buffer.size, pitch)
        steps[buffer.start] = steps.get(buffer.start, 0) + size
        steps[buffer.end + 1] = steps.get(buffer.end + 1, 0) - size
    times = sorted(steps)
    return dict(zip(times, accumulate(steps[time] for time in times), strict=True))


def packing_of(buffers: Sequence[Buffer], offsets: Sequence[int]) -> Packing:
    """The packing with these offsets, which are not checked."""
    height = max((offset + b.size for b, offset in zip(buffers, offsets, strict=True)), default=0)
    return Packing(tuple(offsets), height, aligned(height, _pitch(buffers)) == lower_bound(buffers))


def _pitch(buffers: Sequence[Buffer]) -> int:
    """What every offset is a multiple of."""
    return math.gcd(*(buffer.alignment for buffer in buffers)) or 1


def conflicts(buffers: Sequence[Buffer]) -> list[list[int]]:
    """For each buffer the others that are live at the same time; sharing one end point is enough."""
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


def aligned(offset: int, alignment: int) -> int:
    """The next multiple of `alignment`."""
    return -(-offset // alignment) * alignment


@register("naive")
def naive(buffers: Sequence[Buffer]) -> Packing:
    """One after the other, nothing shared."""
    offsets: list[int] = []
    top = 0
    for buffer in buffers:
        offsets.append(aligned(top, buffer.alignment))
        top = offsets[-1] + buffer.size
    return packing_of(buffers, offsets)


@register("best-fit")
def best_fit(buffers: Sequence[Buffer]) -> Packing:
    """As `by_size` has them, each into the smallest gap that holds it."""
    return into_gaps(buffers, by_size(buffers), conflicts(buffers))


def by_size(buffers: Sequence[Buffer]) -> list[int]:
    """The buffers in order of falling size, then of falling duration."""
    return sorted(range(len(buffers)), key=lambda i: (-buffers[i].size, buffers[i].start - buffers[i].end, i))


def into_gaps(buffers: Sequence[Buffer], order: Sequence[int], neighbours: Sequence[Sequence[int]]) -> Packing:
    """One after the other in this order, each into the smallest gap; `neighbours` as `conflicts` gives them."""
    offsets: dict[int, int] = {}
    for i in order:
        taken = sorted((offsets[j], offsets[j] + buffers[j].size) for j in neighbours[i] if j in offsets)
        offsets[i] = smallest_gap(buffers[i], taken)
    return packing_of(buffers, [offsets[i] for i in range(len(buffers))])


def smallest_gap(buffer: Buffer, taken: Sequence[tuple[int, int]]) -> int:
    """The offset of the smallest gap between sorted byte ranges that holds a buffer, else the end of them all."""
    top, best, smallest = 0, -1, 0
    for low, high in taken:
        start = aligned(top, buffer.alignment)
        if low - start >= buffer.size and (best < 0 or low - top < smallest):
            best, smallest = start, low - top
        top = max(top, high)
    return aligned(top, buffer.alignment) if best < 0 else best
