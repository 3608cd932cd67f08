"""Final residual streams at some places of texts; common beginnings are prefilled once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.scoring.scorer import TextStep, prefilled
from hybridlm.scoring.text import QueuedText
from hybridlm.steps.operands import StepInputs

BEHIND = 0
"""Token behind every text: a queue prefills all tokens but the last, and here every token has to be prefilled."""


@dataclass(frozen=True)
class Reading:
    """Places of all texts of a call.

    Attributes:
        texts: for each text, indices of the tokens that keep their vectors, in order.
        size: width of the residual stream.
        summed: also add up the vectors of all tokens.
    """

    texts: Sequence[tuple[int, ...]]
    size: int
    summed: bool = False

    def key(self, text: int, begin: int, end: int) -> tuple[int, ...]:
        """Return the places of a text among the tokens that predict tokens `begin` to `end`."""
        return tuple(token for token in self.texts[text] if begin - 1 <= token < end - 1)


@dataclass(eq=False)
class ReadText(QueuedText):
    """A text with reads of its residual stream; `BEHIND` follows its tokens.

    Attributes:
        question, query: places of all texts, and of this text.
        vectors: float32 [place, hidden], at the places among its tokens.
        total: float64 [hidden], the sum over all tokens if `summed`.
    """

    question: Reading = field(kw_only=True)
    query: tuple[int, ...] = field(kw_only=True)
    vectors: np.ndarray = field(init=False)
    total: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self._places = [token for token in self.query if token < len(self.tokens) - 1]
        self.vectors = np.zeros((len(self._places), self.question.size), np.float32)
        self.total = np.zeros(self.question.size)
        self._own_total_begun = False

    def take(self, outputs: Any, lane: int, first: int, count: int) -> None:
        """Store float32 [lane, token, hidden] of `count` tokens from `first - 1` on."""
        hidden, begin = outputs[lane, :count], first - 1
        self.check([hidden], begin)
        for i, token in enumerate(self._places):
            if begin <= token < begin + count:
                self.vectors[i] = hidden[token - begin]
        if self.question.summed:
            if self.parent is not None and not self._own_total_begun:
                # Its steps have been read: the sum goes on where the shared prefix ends.
                self.total, self._own_total_begun = self.parent.total.copy(), True
            for row in hidden:  # in order, independent of the chunks
                self.total = self.total + row

    def results(self) -> dict[str, np.ndarray]:
        """Return the arrays of results by name."""
        return {"vectors": self.vectors, "total": self.total}

    def finish(self) -> None:
        """Copy the vectors of the shared prefix, after all steps."""
        super().finish()
        if self.parent is not None:
            self.vectors[: len(self.parent.vectors)] = self.parent.vectors


def read_hidden(
    engine: Engine,
    texts: Sequence[tuple[int, ...]],
    places: Sequence[tuple[int, ...]],
    size: int,
    summed: bool = False,
    full_lanes: bool = False,
) -> list[ReadText]:
    """Return texts in order, with the residual stream after the final norm at some places.

    A text has the same vectors alone, in steps of this shape.

    Args:
        engine: runs the steps.
        texts: token ids, at least one and as many as fit the context.
        places: for each text, indices of the tokens with stored vectors, in order.
        size: width of the residual stream.
        summed: also add up the vectors of all tokens.
        full_lanes: use all lanes for any number of texts.
    """
    if not texts:
        return []
    question = Reading(list(map(tuple, places)), size, summed)
    step: TextStep[ReadText] = TextStep(lambda batch, lanes, feeds: StepInputs(batch))
    padded = {i: (*text, BEHIND) for i, text in enumerate(texts)}
    sent = {"texts": list(texts), "places": list(places), "size": size, "summed": summed, "full_lanes": full_lanes}
    with engine.decisions.command("read", **sent):
        read = list(prefilled([engine], padded, step, ReadText, question=question, full_lanes=full_lanes))
    return sorted(read, key=lambda text: text.index or 0)
