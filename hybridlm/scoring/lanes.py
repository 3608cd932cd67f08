"""Lanes of the scorer: admission of texts, and the next step."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from hybridlm.engine.engine import Engine
from hybridlm.engine.probing import StepReads
from hybridlm.rows.pool import RowPool
from hybridlm.scoring.text import QueuedText

T = TypeVar("T", bound=QueuedText)


class TextPart(NamedTuple, Generic[T]):
    """Part of a text in one step.

    Attributes:
        lane, text: where, and which.
        first, count: tokens that are predicted: `count` from token `first` on, the one after the first prefilled one.
        reads: values that it reads inside the model; None for none.
        last: whether the text ends with it.
    """

    lane: int
    text: T
    first: int
    count: int
    reads: StepReads | None
    last: bool


def widest_step(lanes: Sequence[T | None], widths: tuple[int, ...]) -> tuple[int, list[T | None]]:
    """Return the width of the widest next step, and its texts by lane; the other lanes are idle.

    Args:
        lanes: texts by lane, at least one.
        widths: of all steps, the widest first.
    """
    width = max(text.width(widths) for text in lanes if text is not None)
    return width, [None if text is None or text.width(widths) < width else text for text in lanes]


def may_begin(lanes: Sequence[QueuedText | None], widths: tuple[int, ...]) -> bool:
    """Return True if texts may take the free lanes: all texts take widest steps.

    A text that begins has the widest steps ahead, and lanes at narrower ones would be idle meanwhile.
    """
    return all(text is None or text.width(widths) == widths[0] for text in lanes)


def enter(engine: Engine, pool: RowPool, text: QueuedText) -> int:
    """Give a row to a text, restore its state, and return its lane."""
    text.slot = pool.acquire()
    if text.start is not None:
        text.consumed = engine.moves.restore(text.start, pool, text.slot, text.tokens, owner=text)
    return pool.lanes([text.slot])[0]


def leave(engine: Engine, pool: RowPool, text: QueuedText) -> None:
    """Release the row of a finished text; keep the state after a shared prefix."""
    if text.slot is None:
        return
    if text.index is None:
        known = () if text.start is None else text.start.spans
        text.snapshot = engine.moves.take(pool, text.slot, text.tokens[:-1], owner=text, known=known)
        # Each restore adds the whole prefix to the statistic, but it was computed once.
        engine.stats["prefix_tokens_saved"] -= text.consumed
    pool.owner.release(text.slot)
    text.slot = None
    engine.runner.forget(text)
