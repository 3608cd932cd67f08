"""Packings by search: fullest times first, bottom-up construction of varied orders, and branch and bound.

A model's layers need the same scratch one after the other: thousands of buffers, and each layer has a time at which
most is live. What is live there is placed first, and what is live at emptier times around it.

Bottom-up construction lets every unplaced buffer fall onto what lies below it and places one that falls lowest; among
those the order decides. Some order gives an optimal packing (a packing in which every buffer rests on another can be
rebuilt in order of rising offset: Moffitt, MiniMalloc, ASPLOS 2023), so it is enough to search orders.
"""

import math
import time
from collections.abc import Iterator, Sequence

import numpy as np

from ir_passes.packing import Buffer, Packing, aligned, by_size, conflicts, into_gaps, live_bytes, packing_of

POPULATION = 9  # orders kept; also how many mixtures of size and duration the search begins with
LARGEST = 200  # buffers of an exact search, whose recursion is as deep
FINAL = np.iinfo(np.int64).max


def search(buffers: Sequence[Buffer], work: int = 20_000, seconds: float | None = None, seed: int = 0) -> Packing:
    """Best fit, also by load, then bottom-up packings, until one is known to be optimal or the budget is spent.

    Args:
        buffers: what to pack.
        work: how many buffers to place from the bottom up, over all attempts. The result depends on it and on `seed`,
            not on the machine.
        seconds: spend time instead of `work`; then the result does depend on the machine.
        seed: of the variation.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    neighbours = conflicts(buffers)
    best = into_gaps(buffers, by_size(buffers), neighbours)
    if best.optimal:
        return best
    for order in _by_load(buffers):
        best = min(best, into_gaps(buffers, order, neighbours), key=lambda packing: packing.height)
        if best.optimal:
            return best
    bottom = _BottomUp(buffers, neighbours)
    placed = 0
    for offsets, count in bottom.attempts(np.random.default_rng(seed)):
        placed += count
        if offsets is not None:
            best = min(best, packing_of(buffers, offsets), key=lambda packing: packing.height)
        spent = placed >= work if deadline is None else time.monotonic() >= deadline
        if best.optimal or spent:
            break
    return best


class _BottomUp:
    def __init__(self, buffers: Sequence[Buffer], neighbours: Sequence[Sequence[int]]) -> None:
        pitch = math.lcm(*(b.alignment for b in buffers))  # one for all: offsets are multiples of every alignment
        self.tall = [aligned(b.size, pitch) for b in buffers]
        self.sizes = np.array(self.tall, np.int64)
        self.neighbours = [np.array(n, np.int64) for n in neighbours]
        durations = np.array([b.end - b.start + 1 for b in buffers], np.float64)
        self.features = (_scaled(np.log(self.sizes + 1.0)), _scaled(np.log(durations)))

    def attempts(self, random: np.random.Generator) -> Iterator[tuple[list[int] | None, int]]:
        """Packings without end, each with the number of buffers placed for it; new orders vary the best so far.

        None stands for an attempt that was given up because it became higher than all of those.
        """
        size, duration = self.features
        population: list[tuple[int, int, np.ndarray, np.ndarray]] = []
        for share in np.linspace(0, 1, POPULATION):
            order = share * size + (1 - share) * duration
            offsets, height, placed = self.place(order, FINAL)
            population.append((height, len(population), order, offsets))
            yield offsets.tolist(), placed
        count = POPULATION
        while True:
            population.sort(key=lambda member: member[:2])
            height, _, order, offsets = population[random.integers(0, 6, 2).min()]
            worst = population[-1][0]
            order = self.vary(order, offsets, height, random)
            offsets, height, placed = self.place(order, worst)
            count += 1
            if height <= worst:
                population[-1] = (height, count, order, offsets)
            yield (offsets.tolist() if height <= worst else None), placed

    def vary(self, order: np.ndarray, offsets: np.ndarray, height: int, random: np.random.Generator) -> np.ndarray:
        """Noise on every buffer, or an earlier turn for those that ended up at the top."""
        if random.random() < 0.4:
            return order + random.normal(0, random.choice([0.01, 0.03, 0.1]), len(order))
        order = order.copy()
        top = offsets + self.sizes >= height * (1 - random.choice([0.0, 0.02, 0.1, 0.2]))
        top &= random.random(len(order)) < 0.7
        order[top] += np.abs(random.normal(0, 0.2, int(top.sum())))
        some = random.integers(0, len(order), random.choice([1, 3, 10]))
        order[some] += random.normal(0, 0.2, len(some))
        return order

    def place(self, order: np.ndarray, limit: int) -> tuple[np.ndarray, int, int]:
        """Offsets, height and buffers placed of the bottom-up packing that prefers a high value in `order`.

        It is given up, half done, when it cannot stay at or below `limit`; then the height says by how much it fails.
        """
        count = len(order)
        rank = np.empty(count, np.int64)
        rank[np.argsort(-order, kind="stable")] = np.arange(count)
        key = rank.copy()  # landing * count + rank: the lowest landing first, then by order; FINAL once placed
        offsets = np.zeros(count, np.int64)
        height = 0
        for placed in range(1, count + 1):
            chosen = int(key.argmin())
            offset = int(key[chosen]) // count
            top = offset + self.tall[chosen]
            offsets[chosen] = offset
            key[chosen] = FINAL
            near = self.neighbours[chosen]
            key[near] = np.maximum(key[near], rank[near] + top * count)
            if top > height:
                height = top
                if height > limit:
                    return offsets, height, placed
        return offsets, height, count


def exact(buffers: Sequence[Buffer], work: int = 100_000, seconds: float | None = None) -> Packing:
    """Branch and bound over bottom-up orders; the best packing found where a limit is reached.

    More than `LARGEST` buffers are packed by `search`: this is for small graphs.

    Args:
        buffers: what to pack.
        work: how many buffers to place, over all branches.
        seconds: spend time instead of `work`.
    """
    best = search(buffers, work=min(work, 20 * len(buffers)))
    if best.optimal or len(buffers) > LARGEST:
        return best
    branch = _Branch(buffers, best, work, seconds)
    branch.extend(0)
    height = branch.best.height
    return Packing(branch.best.offsets, height, not branch.spent or branch.best.optimal)


class _Branch:
    """Depth-first search over the next buffer to place, whose offset may not be lower than the last one's."""

    def __init__(self, buffers: Sequence[Buffer], best: Packing, work: int, seconds: float | None) -> None:
        self.buffers, self.best, self.work = buffers, best, work
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.neighbours = conflicts(buffers)
        self.landing = [0] * len(buffers)
        self.offsets: dict[int, int] = {i: 0 for i, b in enumerate(buffers) if b.size == 0}
        self.spent = False

    def extend(self, floor: int) -> None:
        """Try every buffer that may come next above `floor`."""
        if len(self.offsets) == len(self.buffers):
            self.best = packing_of(self.buffers, [self.offsets[i] for i in range(len(self.buffers))])
            return
        open_ = [i for i in range(len(self.buffers)) if i not in self.offsets]
        if any(self._end(i, floor) >= self.best.height for i in open_):
            return
        # A buffer that starts above the end of another that it leaves room for is better placed after that one.
        limit = min(self._end(i, floor) for i in open_)
        open_ = [i for i in open_ if self._start(i, floor) < limit]
        for i in sorted(open_, key=lambda i: (self._start(i, floor), -self.buffers[i].size)):
            self.work -= 1
            if self.work < 0 or (self.deadline is not None and time.monotonic() >= self.deadline):
                self.spent = True
            if self.spent or self.best.optimal:
                return
            self._place(i, floor)

    def _place(self, i: int, floor: int) -> None:
        start = self._start(i, floor)
        top = start + self.buffers[i].size
        before = [(j, self.landing[j]) for j in self.neighbours[i] if self.landing[j] < top]
        for j, _ in before:
            self.landing[j] = top
        self.offsets[i] = start
        self.extend(start)
        del self.offsets[i]
        for j, landing in before:
            self.landing[j] = landing

    def _start(self, i: int, floor: int) -> int:
        return aligned(max(self.landing[i], floor), self.buffers[i].alignment)

    def _end(self, i: int, floor: int) -> int:
        return self._start(i, floor) + self.buffers[i].size


def _by_load(buffers: Sequence[Buffer]) -> Iterator[list[int]]:
    """Two orders of the buffers, by the fullest time at which each is live; of the same time the longest first.

    Of equally full times the earliest comes first in one order and the latest in the other.
    """
    loads = live_bytes(buffers)
    times, live = np.array(list(loads), np.int64), np.array(list(loads.values()), np.int64)
    first = np.searchsorted(times, [b.start for b in buffers]).tolist()
    stop = np.searchsorted(times, [b.end + 1 for b in buffers]).tolist()
    fullest = [low + int(live[low:high].argmax()) for low, high in zip(first, stop, strict=True)]
    for turn in (1, -1):
        keys = [
            (-int(live[time]), turn * time, b.start - b.end, -b.size, i)
            for i, (b, time) in enumerate(zip(buffers, fullest, strict=True))
        ]
        yield [key[-1] for key in sorted(keys)]


def _scaled(values: np.ndarray) -> np.ndarray:
    low, high = (values.min(), values.max()) if len(values) else (0.0, 0.0)
    return (values - low) / (high - low if high > low else 1.0)
