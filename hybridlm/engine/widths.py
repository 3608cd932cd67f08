"""Widths of prefill and scoring steps: tokens of a lane per step."""

from collections.abc import Iterator, Sequence
from functools import cache

MIN_WIDTH = {"cpu": 8}
"""Narrowest step by platform: narrower ones read the weights for too few tokens."""
MIN_DEVICE_WIDTH = 64
"""Narrowest step of the other platforms: their products need more tokens to be bound by arithmetic."""
STEP_COST = {"cpu": 48}
"""Cost of a step in token places by platform: the weights are read once for any number of tokens."""
DEVICE_STEP_COST = 256
"""Cost of a step of the other platforms, which read weights more slowly than they multiply them."""
WIDTH_RATIO = 4
"""Ratio of neighbouring widths. Each width is a compiled program."""


def step_widths(chunk: int, platform: str) -> tuple[int, ...]:
    """Return the widths of prefill and scoring steps in tokens, the widest first.

    Args:
        chunk: the widest, at least 1.
        platform: platform of the devices.
    """
    width = MIN_WIDTH.get(platform, MIN_DEVICE_WIDTH)
    widths = list[int]()
    while width < chunk:
        widths.append(width)
        width *= WIDTH_RATIO
    return (chunk, *reversed(widths))


def next_width(count: int, widths: tuple[int, ...]) -> int:
    """Return the width of the next step for a number of remaining tokens.

    `count` is rounded up to a multiple of the narrowest width; the result is the widest step that this fills. So the
    widths of a text never grow, and a beginning of whole steps has the same widths as a separate text.

    Args:
        count: remaining tokens, at least 1.
        widths: widths of all steps, the widest first.
    """
    rounded = -(-count // widths[-1]) * widths[-1]
    return next(width for width in widths if width <= rounded)


def text_widths(count: int, widths: tuple[int, ...]) -> Iterator[int]:
    """Yield the widths of all steps of `count` tokens; the last step may be wider."""
    while count > 0:
        yield (width := next_width(count, widths))
        count -= width


def cheapest_width(counts: Sequence[int], rows: int, widths: tuple[int, ...], platform: str) -> int:
    """Return the width of the next prefill step with the least total cost.

    The cost of a step is its places plus `STEP_COST`. Tokens that a step leaves over share later steps with the other
    rows.

    Args:
        counts: remaining tokens of each sequence of the pool, each at least 1.
        rows: rows of the pool, real and idle, at least `len(counts)`.
        widths: widths of all steps, the widest first.
        platform: platform of the devices.
    """
    share, step_cost = rows / len(counts), STEP_COST.get(platform, DEVICE_STEP_COST)
    step_share = step_cost / len(counts)

    def cost(width: int) -> float:
        return rows * width + step_cost + sum(_least_cost(count - width, widths, share, step_share) for count in counts)

    return min(widths, key=cost)


@cache
def _least_cost(count: int, widths: tuple[int, ...], place_cost: float, step_cost: float) -> float:
    """Return the least cost of steps for `count` tokens; 0 below 1 token."""
    if count < 1:
        return 0.0
    return min(
        width * place_cost + step_cost + _least_cost(count - width, widths, place_cost, step_cost) for width in widths
    )
