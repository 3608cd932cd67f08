"""Widths of prefill and scoring steps: tokens of a lane per step."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

MIN_WIDTH = {"cpu": 8}
"""Narrowest step by platform: narrower ones read the weights for too few tokens."""
MIN_DEVICE_WIDTH = 64
"""Narrowest step of other platforms, to be bound by arithmetic."""
STEP_COST = {"cpu": 48}
"""Cost of a step in token places by platform: the weights are read once for any number of tokens."""
DEVICE_STEP_COST = 256
"""Cost on other platforms."""
WIDTH_RATIO = 4
"""Ratio of neighbouring widths, each with a compiled program."""


def step_widths(chunk: int, platform: str) -> tuple[int, ...]:
    """Return the widths of prefill and scoring steps in tokens, the widest first."""
    width = MIN_WIDTH.get(platform, MIN_DEVICE_WIDTH)
    widths = list[int]()
    while width < chunk:
        widths.append(width)
        width *= WIDTH_RATIO
    return (chunk, *reversed(widths))


def next_width(count: int, widths: tuple[int, ...]) -> int:
    """Return the width of the next step for a number of remaining tokens.

    The widest that `count`, rounded up to a multiple of the narrowest, fills. So the widths of a text never grow.
    """
    rounded = -(-count // widths[-1]) * widths[-1]
    return next(width for width in widths if width <= rounded)


def text_widths(count: int, widths: tuple[int, ...]) -> Iterator[int]:
    """Yield the widths of all steps of `count` tokens; the last may be wider."""
    while count > 0:
        yield (width := next_width(count, widths))
        count -= width


def cheapest_step(
    counts: Sequence[int],
    devices: Sequence[int],
    sizes: Sequence[int],
    widths: tuple[int, ...],
    platform: str,
    preferred: int = 0,
    parts: int = 1,
) -> tuple[list[int], int, int]:
    """Return the next prefill step with the least total cost: places plus `STEP_COST` per step.

    Later steps are counted as full, with as many sequences as the largest. The first sequence is in every step, so
    nobody waits forever; the others have the most tokens.

    Args:
        counts: remaining tokens of each sequence, in the order of arrival.
        devices: device of each sequence.
        sizes: possible numbers of lanes, on all devices.
        preferred: so many of the first sequences come before the others.
        parts: number of devices, with equal parts of the lanes.

    Returns:
        Indices of the step's sequences, ascending; its lanes; tokens per lane.
    """
    step_cost = STEP_COST.get(platform, DEVICE_STEP_COST)
    step_share = step_cost / min(len(counts), max(sizes))
    best: tuple[float, list[int], int, int] | None = None
    for lanes, width in product(sizes, widths):
        rest = sorted(range(1, len(counts)), key=lambda index: (index >= preferred, -min(counts[index], width)))
        free, chosen = [lanes // parts] * parts, list[int]()
        for index in (0, *rest):
            if free[devices[index]]:
                free[devices[index]] -= 1
                chosen.append(index)
        remainders = [count - width * (index in chosen) for index, count in enumerate(counts)]
        cost = lanes * width + step_cost + sum(_least_cost(count, widths, step_share) for count in remainders)
        if best is None or cost < best[0]:
            best = cost, sorted(chosen), lanes, width
    assert best is not None
    return best[1:]


@cache
def _least_cost(count: int, widths: tuple[int, ...], step_cost: float) -> float:
    """Return the least cost of one-lane steps for `count` tokens; 0 below 1 token."""
    if count < 1:
        return 0.0
    return min(width + step_cost + _least_cost(count - width, widths, step_cost) for width in widths)
