"""Lanes of the scorer: admission of texts, and the next step."""

from collections.abc import Sequence
from typing import Generic, NamedTuple

from hybridlm.engine.engine import Engine
from hybridlm.engine.probing import StepReads
from hybridlm.rows.pool import RowPool
from hybridlm.scoring.text import QueuedText, T

Models = Sequence[tuple[Engine, RowPool]]
"""Models in lockstep, each with its rows."""


class TextPart(NamedTuple, Generic[T]):
    """Part of a text in one step.

    Attributes:
        lane, text: the lane and its text.
        first, count: `count` predicted tokens from token `first` on; the step begins with the token before `first`.
        reads: reads inside the model; None without reads.
        last: whether the text ends with this part.
    """

    lane: int
    text: T
    first: int
    count: int
    reads: StepReads | None
    last: bool


def widest_step(lanes: Sequence[T | None], widths: tuple[int, ...]) -> tuple[int, list[T | None]]:
    """Return the width of the widest next step and its texts by lane.

    Args:
        lanes: texts by lane, at least one text.
        widths: widths of all steps, the widest first.
    """
    width = max(text.width(widths) for text in lanes if text is not None)
    return width, [None if text is None or text.width(widths) < width else text for text in lanes]


def may_begin(lanes: Sequence[QueuedText | None], widths: tuple[int, ...]) -> bool:
    """Return True if texts may take the free lanes: all texts take widest steps.

    A text that begins has the widest steps ahead, and lanes at narrower ones would be idle meanwhile.
    """
    return all(text is None or text.width(widths) == widths[0] for text in lanes)


def enter(models: Models, text: QueuedText) -> int:
    """Acquire a text's row of each model, restore its state, and return its lane."""
    lanes = set[int]()
    for (engine, pool), copy in zip(models, text.copies, strict=True):
        copy.slot = pool.acquire()
        if copy.start is not None:
            copy.consumed = engine.moves.restore(copy.start, pool, copy.slot, copy.tokens, owner=copy)
        lanes.update(pool.rows_of([copy.slot]))
    (lane,) = lanes  # a lane has the row of its number; rows of all pools are taken and released in the same order
    return lane


def leave(models: Models, text: QueuedText) -> None:
    """Release the rows of a finished text; keep the states after a shared prefix."""
    for (engine, pool), copy in zip(models, text.copies, strict=True):
        if copy.slot is None:
            continue
        if copy.index is None:
            spans = () if copy.start is None else copy.start.spans
            copy.snapshot = engine.moves.take(pool, copy.slot, copy.tokens[:-1], owner=copy, cached=spans)
            # Each restore adds the whole prefix to the statistic, but it was computed once.
            engine.stats["prefix_tokens_saved"] -= copy.consumed
        pool.owner.release(copy.slot)
        copy.slot = None
        engine.runner.forget(copy)
