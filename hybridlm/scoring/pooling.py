"""Embeddings and classes of texts from their final residual streams."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybridlm.checkpoint.classifier import Classifier
from hybridlm.engine.engine import Engine
from hybridlm.scoring.hidden import read_hidden

Pooling = Literal["last", "mean", "first"]
POOLINGS: tuple[Pooling, ...] = ("last", "mean", "first")


@dataclass(frozen=True)
class Classification:
    """Classes of texts by a sequence-classification or reward head.

    Attributes:
        logits: float32 [texts, labels]; of a reward model the rewards, with one label.
        labels: name of each label, from `id2label` of config.json.
    """

    logits: np.ndarray
    labels: tuple[str, ...]

    @property
    def probabilities(self) -> np.ndarray:
        """Softmax of the logits over the labels, float64 [texts, labels].

        Raises:
            ValueError: one label: its logit is a reward or a value, not a probability.
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
    """Return a vector for each text: its residual stream after the final norm, pooled.

    The vectors are float32 [texts, hidden]. Also return the index of the first token with numbers that are not finite,
    by the number of its text. A text has the same vector alone, in steps of this shape.

    Args:
        engine: runs the steps.
        texts: token ids, which fit the context.
        size: width of the residual stream.
        pooling: "last" or "first" for the vector of that token, "mean" for the mean over all tokens.
        normalised: divide each vector by its length.
        full_lanes: use all lanes for any number of texts.
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


def check_pooling(pooling: object) -> None:
    """Raise ValueError if a pooling does not exist."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling: expected one of {', '.join(POOLINGS)}, got {pooling!r}")


def classes(
    engine: Engine, texts: Sequence[tuple[int, ...]], head: Classifier, full_lanes: bool = False
) -> tuple[Classification, dict[int, int]]:
    """Classify texts by their last tokens; also return the wrong tokens of `pooled`.

    Args:
        engine: runs the steps.
        texts: token ids, which fit the context.
        head: head of the checkpoint.
        full_lanes: use all lanes for any number of texts.
    """
    vectors, wrong = pooled(engine, texts, head.weight.shape[1], "last", False, full_lanes)
    logits = class_logits(head.weight, vectors)
    overflown = np.flatnonzero(~np.isfinite(logits).all(axis=1)).tolist()
    return Classification(logits, head.labels), {i: len(texts[i]) - 1 for i in overflown} | wrong


def class_logits(weight: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the logits of texts, float32 [texts, labels], summed in float64.

    Args:
        weight: float32 [labels, hidden].
        vectors: float32 [texts, hidden].
    """
    wide = weight.astype(np.float64)
    logits = np.zeros((len(vectors), len(weight)), np.float32)
    with np.errstate(all="ignore"):  # the caller checks the logits
        for row, vector in zip(logits, vectors.astype(np.float64), strict=True):
            row[:] = (wide * vector).sum(axis=1)  # one text at a time: equal bits in any batch
    return logits
