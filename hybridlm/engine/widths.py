"""Widths of prefill and scoring steps: tokens of a lane per step."""

from collections.abc import Iterator

MIN_WIDTH = {"cpu": 8}
"""Narrowest step by platform: narrower ones read the weights for too few tokens."""
MIN_DEVICE_WIDTH = 64
"""Narrowest step of the other platforms, whose products need more tokens to be bound by arithmetic."""
WIDTH_RATIO = 4
"""Ratio of neighbouring widths. Each width is a compiled program."""


def step_widths(chunk: int, platform: str) -> tuple[int, ...]:
    """Return the widths of prefill and scoring steps in tokens, the widest first.

    Args:
        chunk: the widest, at least 1.
        platform: of the devices.
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
    widths of a text never grow, and a beginning of whole steps has the same widths as a text of its own.

    Args:
        count: remaining tokens, at least 1.
        widths: of all steps, the widest first.
    """
    rounded = -(-count // widths[-1]) * widths[-1]
    return next(width for width in widths if width <= rounded)


def text_widths(count: int, widths: tuple[int, ...]) -> Iterator[int]:
    """Yield the widths of all steps of `count` tokens; the last step may be wider."""
    while count > 0:
        yield (width := next_width(count, widths))
        count -= width


def width_of(count: int, widths: tuple[int, ...]) -> int:
    """Return the narrowest step with room for `count` tokens, at most the widest.

    Args:
        count: tokens, at least 1, at most the widest.
        widths: of all steps, the widest first.
    """
    return min(width for width in widths if width >= count)
