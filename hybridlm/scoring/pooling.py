"""Embeddings and classes of texts: the final residual stream of each text, pooled to one vector."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.errors import NumericalError
from hybridlm.programs.shapes import Shape
from hybridlm.rows.pool import RowPool
from hybridlm.steps.operands import Batch, Feed
from ir_passes.host.slot_owner import Slot

Pooling = Literal["last", "mean", "first"]
POOLINGS: tuple[Pooling, ...] = ("last", "mean", "first")


@dataclass(frozen=True)
class Classification:
    """Classes of texts, as a sequence-classification or reward head gives them.

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
            ValueError: there is one label: its logit is a reward, or a value, and no probability.
        """
        if len(self.labels) < 2:
            raise ValueError("probabilities: expected at least two labels, this head has one; use logits")
        wide = self.logits.astype(np.float64)
        powers = np.exp(wide - wide.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)


class Pooled(NamedTuple):
    """Vectors of texts.

    Attributes:
        vectors: float32 [texts, hidden].
        wrong: for each text with NaN, the index of its first token that has one.
    """

    vectors: np.ndarray
    wrong: dict[int, int]

    def checked(self) -> np.ndarray:
        """Return the vectors; raises NumericalError if a text has NaN."""
        for i, token in sorted(self.wrong.items()):
            raise NumericalError(f"texts[{i}]", token)
        return self.vectors


@dataclass(eq=False)
class PooledText:
    """A text while it is pooled.

    Attributes:
        index: number of the text.
        tokens: its token ids.
        consumed: tokens that the lane's state has seen once the dispatched steps have run.
        slot: its row, if it has one.
        total: float64 [hidden], what has been read of the vector: the token's, or the sum over tokens.
        wrong: index of the first token with NaN.
    """

    index: int
    tokens: tuple[int, ...]
    consumed: int = 0
    slot: Slot | None = None
    total: np.ndarray = field(default_factory=lambda: np.zeros(1))
    wrong: int | None = None

    def take(self, hidden: np.ndarray, first: int, pooling: Pooling) -> None:
        """Read the residual stream, float32 [count, hidden], of the tokens from `first` on."""
        nan = np.flatnonzero(np.isnan(hidden).any(axis=1))
        if nan.size and self.wrong is None:
            self.wrong = first + int(nan[0])
        if pooling == "mean":
            for row in hidden:  # one after the other, however the text is cut into chunks
                self.total = self.total + row
        elif pooling == "last" or first == 0:
            self.total = hidden[0 if pooling == "first" else -1].astype(np.float64)


def pooled(engine: Engine, texts: Sequence[tuple[int, ...]], size: int, pooling: Pooling, normalised: bool) -> Pooled:
    """Return a vector for each text: its residual stream after the final norm, pooled.

    Every vector is the one that the text has alone in steps of this shape.

    Args:
        engine: runs the steps.
        texts: token ids, which fit the context.
        size: width of the residual stream.
        pooling: "last" or "first" for the vector of that token, "mean" for the mean over all tokens.
        normalised: divide each vector by its length.

    Raises:
        ValueError: the engine runs in several processes.
    """
    if engine.placement.several_processes:
        raise ValueError("embed, classify: expected one process, this model runs in several")
    wrong: dict[int, int] = {}
    found = np.zeros((len(texts), size), np.float32)
    if not texts:
        return Pooled(found, wrong)
    waiting = deque(sorted((PooledText(i, text) for i, text in enumerate(texts)), key=lambda one: -len(one.tokens)))
    pool = engine.borrow("prefill", engine.bucket(len(texts), engine.prefill_rows))
    lanes: list[PooledText | None] = [None] * pool.size
    flights: deque[tuple[Any, list[tuple[int, PooledText, int, int]]]] = deque()
    try:
        while flights or waiting or any(lanes):
            while waiting and pool.owner.free:
                text = waiting.popleft()
                text.slot = pool.acquire()
                lanes[pool.lanes([text.slot])[0]] = text
            if any(lanes):
                flights.append(_dispatch(engine, pool, lanes))
            if len(flights) > 1 or not any(lanes):
                outputs, parts = flights.popleft()
                hidden = engine.runner.read(outputs)
                for lane, text, first, count in parts:
                    text.take(hidden[lane, :count], first, pooling)
                    if first + count == len(text.tokens):
                        vector = text.total / len(text.tokens) if pooling == "mean" else text.total
                        # A vector of zeros has no direction.
                        length = max(float(np.sqrt((vector * vector).sum())), 1e-12) if normalised else 1.0
                        found[text.index] = vector / length
                        if text.wrong is not None:
                            wrong[text.index] = text.wrong
    finally:
        engine.give_back("prefill", pool)
    return Pooled(found, wrong)


def _dispatch(
    engine: Engine, pool: RowPool, lanes: list[PooledText | None]
) -> tuple[jax.Array, list[tuple[int, PooledText, int, int]]]:
    """Dispatch one step; return its residual stream, and for each text in it (lane, text, first token, count)."""
    feeds = [
        None if one is None else Feed(one.tokens[one.consumed : one.consumed + engine.chunk], one.consumed)
        for one in lanes
    ]
    batch = Batch.of(feeds, engine.chunk)
    shape = Shape("hidden", pool.size, engine.chunk)
    outputs = engine.run(shape, pool, batch, owners=lanes, counts=np.asarray(batch.lengths))
    parts: list[tuple[int, PooledText, int, int]] = []
    for lane, (text, feed) in enumerate(zip(list(lanes), feeds, strict=True)):
        if text is None or feed is None:
            continue
        parts.append((lane, text, feed.position, len(feed.tokens)))
        text.consumed += len(feed.tokens)
        if text.consumed == len(text.tokens) and text.slot is not None:
            lanes[lane] = None
            pool.owner.release(text.slot)
            engine.forget(text)
    return outputs, parts


def check_pooling(pooling: object) -> None:
    """Raise ValueError if a pooling does not exist."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling: expected one of {', '.join(POOLINGS)}, got {pooling!r}")


def class_logits(weight: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the logits of texts, float32 [texts, labels], summed in float64.

    Args:
        weight: float32 [labels, hidden].
        vectors: float32 [texts, hidden].
    """
    wide = weight.astype(np.float64)
    found = np.zeros((len(vectors), len(weight)), np.float32)
    for row, vector in zip(found, vectors.astype(np.float64), strict=True):
        row[:] = (wide * vector).sum(axis=1)  # for each text by itself, so that none depends on the others
    return found
