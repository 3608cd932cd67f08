"""Final residual streams at places of texts; embeddings and classes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hybridlm.checkpoint.classifier import Classifier
from hybridlm.engine.engine import Engine
from hybridlm.engine.reading import QueuedText, Reading
from hybridlm.scoring.scorer import prefilled, step_lanes
from hybridlm.steps.operands import StepInputs

BEHIND = 0
"""Token after every text: the last token is not prefilled."""


@dataclass(frozen=True)
class Places:
    """Places of all texts of a call.

    Attributes:
        texts: per text, indices of tokens with stored vectors.
        summed: also sum the vectors of all tokens.
    """

    texts: Sequence[tuple[int, ...]]
    size: int
    summed: bool = False

    def key(self, text: int, begin: int, end: int) -> tuple[int, ...]:
        """Return a text's places among the tokens that predict tokens `begin` to `end`."""
        return tuple(token for token in self.texts[text] if begin - 1 <= token < end - 1)


@dataclass(eq=False)
class ReadText(QueuedText):
    """A text with reads of its residual stream; `BEHIND` follows its tokens.

    Attributes:
        vectors: float32 [place, hidden].
        total: float64 [hidden], sum over all tokens if `summed`.
    """

    question: Places = field(kw_only=True)
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
                # The sum goes on where the shared prefix ends.
                self.total, self._own_total_begun = self.parent.total.copy(), True
            for row in hidden:  # independent of the chunks
                self.total = self.total + row

    def results(self) -> dict[str, np.ndarray]:
        return {"vectors": self.vectors, "total": self.total}

    def finish(self) -> None:
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
    """Return texts in order, with the residual stream after the final norm at `places`.

    A text has the same vectors alone, in steps of this shape.

    Args:
        texts: at least one token, within the context.
        places: per text, ascending indices of tokens.
    """
    if not texts:
        return []
    question = Places(list(map(tuple, places)), size, summed)
    lanes = step_lanes([engine], len(texts), full_lanes)
    reading: Reading[ReadText] = Reading([engine], lanes, lambda batch, lanes, feeds: StepInputs(batch))
    padded = {i: (*text, BEHIND) for i, text in enumerate(texts)}
    sent = {"texts": list(texts), "places": list(places), "size": size, "summed": summed, "full_lanes": full_lanes}
    with engine.command("read", **sent):
        read = list(prefilled(reading, padded, ReadText, question=question))
    return sorted(read, key=lambda text: text.index or 0)


Pooling = Literal["last", "mean", "first"]
POOLINGS: tuple[Pooling, ...] = ("last", "mean", "first")


@dataclass(frozen=True)
class Classification:
    """Classes of texts by a sequence-classification or reward head.

    Attributes:
        logits: float32 [texts, labels]; rewards of a reward model, with one label.
        labels: from `id2label` of config.json.
    """

    logits: np.ndarray
    labels: tuple[str, ...]

    @property
    def probabilities(self) -> np.ndarray:
        """Softmax of the logits over the labels, float64 [texts, labels].

        Raises:
            ValueError: one label, which is a reward.
        """
        if len(self.labels) < 2:
            raise ValueError("probabilities: expected at least two labels, this head has one; use logits")
        wide = self.logits.astype(np.float64)
        powers = np.exp(wide - wide.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)


def pooled(
    engine: Engine,
    texts: Sequence[tuple[int, ...]],
    size: int,
    pooling: Pooling,
    normalised: bool,
    full_lanes: bool = False,
) -> tuple[np.ndarray, dict[int, int]]:
    """Return pooled residual streams after the final norm, float32 [texts, hidden].

    Also return, by text, the first token with numbers that are not finite. A text has the same vector alone, in steps
    of this shape.
    """
    mean = pooling == "mean"
    places = [() if mean else (0 if pooling == "first" else len(text) - 1,) for text in texts]
    read = read_hidden(engine, texts, places, size, summed=mean, full_lanes=full_lanes)
    vectors = np.zeros((len(texts), size), np.float32)
    for i, text in enumerate(read):
        vector = text.total / len(texts[i]) if mean else text.vectors[0].astype(np.float64)
        # A vector of zeros has no direction.
        length = max(float(np.sqrt((vector * vector).sum())), 1e-12) if normalised else 1.0
        vectors[i] = vector / length
    return vectors, {i: text.first_wrong for i, text in enumerate(read) if text.first_wrong is not None}


def check_pooling(pooling: object, normalised: object) -> None:
    if not isinstance(normalised, bool):
        raise TypeError(f"normalised: expected True or False, got {normalised!r}")
    if pooling not in POOLINGS:
        raise ValueError(f"pooling: expected one of {', '.join(POOLINGS)}, got {pooling!r}")


def classes(
    engine: Engine, texts: Sequence[tuple[int, ...]], head: Classifier, full_lanes: bool = False
) -> tuple[Classification, dict[int, int]]:
    """Classify texts by their last tokens; also return the wrong tokens of `pooled`."""
    vectors, wrong = pooled(engine, texts, head.weight.shape[1], "last", False, full_lanes)
    logits = class_logits(head.weight, vectors)
    overflown = np.flatnonzero(~np.isfinite(logits).all(axis=1)).tolist()
    return Classification(logits, head.labels), {i: len(texts[i]) - 1 for i in overflown} | wrong


def class_logits(weight: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return logits, float32 [texts, labels], summed in float64."""
    wide = weight.astype(np.float64)
    logits = np.zeros((len(vectors), len(weight)), np.float32)
    with np.errstate(all="ignore"):
        for row, vector in zip(logits, vectors.astype(np.float64), strict=True):
            row[:] = (wide * vector).sum(axis=1)  # equal bits in any batch
    return logits
