"""Scoring: log-probabilities of whole texts, a chunk of each at a time in the rows of the staging pool."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from hybridlm._batch import Batch, Feed
from hybridlm._engine import Engine
from hybridlm._errors import NumericalError
from hybridlm._programs import Shape
from hybridlm._results import Score
from hybridlm._rows import RowPool
from hybridlm._steps import Scored


@dataclass(eq=False)
class Scoring:
    """A text that owns a lane while it is scored.

    Attributes:
        index: number of the text in its call.
        tokens: its token ids.
        consumed: tokens that the lane's state has seen once the dispatched steps have run.
        logprobs: float32 [T], entry 0 is nan.
        greedy: bool [T], entry 0 is False.
        top_logprobs: per token, the most likely tokens and their log-probabilities; the first entry is empty.
    """

    index: int
    tokens: tuple[int, ...]
    consumed: int = 0
    logprobs: np.ndarray = field(init=False)
    greedy: np.ndarray = field(init=False)
    top_logprobs: list[dict[int, float]] = field(init=False)

    def __post_init__(self) -> None:
        self.logprobs = np.full(len(self.tokens), np.nan, np.float32)
        self.greedy = np.zeros(len(self.tokens), bool)
        self.top_logprobs = [{} for _ in self.tokens]

    @property
    def done(self) -> bool:
        """Whether every token that predicts another one has been consumed."""
        return self.consumed >= len(self.tokens) - 1

    def feed(self, limit: int) -> Feed:
        """The next tokens to consume; the last token of a text predicts nothing and is not consumed."""
        return Feed(self.tokens[:-1][self.consumed : self.consumed + limit], self.consumed)

    def take(self, scored: Scored, lane: int, first: int, count: int) -> None:
        """Keep a step's results, NumPy arrays, for the `count` tokens from `first` on."""
        last = first + count
        self.logprobs[first:last] = scored.logprob[lane, :count]
        self.greedy[first:last] = scored.greedy[lane, :count]
        if scored.top_tokens is not None and scored.top_logprobs is not None:
            for i in range(count):
                ids, values = scored.top_tokens[lane, i].tolist(), scored.top_logprobs[lane, i].tolist()
                self.top_logprobs[first + i] = dict(zip(ids, values, strict=True))


def scores(engine: Engine, texts: Sequence[tuple[int, ...]], top: int = 0) -> list[Score]:
    """Scores of all texts, in their order; log-probabilities may be NaN. Arguments as for `score`."""
    found: dict[int, Score] = {}
    for one in score(engine, texts, top):
        found[one.index] = Score(list(one.tokens), one.logprobs, one.greedy, one.top_logprobs if top else None)
    return [found[index] for index in range(len(texts))]


def checked(scores: list[Score]) -> list[Score]:
    """The same scores.

    Raises:
        NumericalError: one holds a log-probability that is not a number.
    """
    for i, one in enumerate(scores):
        if one.first_nan is not None:
            raise NumericalError(f"texts[{i}]", one.first_nan)
    return scores


def score(engine: Engine, texts: Sequence[tuple[int, ...]], top: int = 0) -> Iterator[Scoring]:
    """Score every token of every text, longest first; yields each text when it is done.

    Args:
        engine: runs the steps.
        texts: token ids, each at most as many as the context holds.
        top: how many of the most likely tokens to report for each position.
    """
    longest_first = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    waiting = deque(Scoring(index, texts[index]) for index in longest_first)
    while waiting and waiting[-1].done:
        yield waiting.pop()  # a single token is predicted by nothing
    if not waiting:
        return
    pool = engine.borrow("staging", engine.rung(len(waiting), engine.staging))
    try:
        yield from _score(engine, pool, waiting, top)
    finally:
        engine.give_back("staging", pool)


def _score(engine: Engine, pool: RowPool, waiting: deque[Scoring], top: int) -> Iterator[Scoring]:
    shape = Shape("score", pool.size, engine.chunk, top)
    lanes: list[Scoring | None] = [None] * pool.size
    flights: deque[tuple[Scored, list[tuple[int, Scoring, int, int]]]] = deque()
    while flights or waiting or any(lanes):
        for lane, text in enumerate(lanes):
            if text is None and waiting:
                lanes[lane] = waiting.popleft()
        if any(lanes):
            flights.append(_dispatch(engine, pool, shape, lanes))
        if len(flights) > 1 or not any(lanes):
            outputs, parts = flights.popleft()
            scored = jax.device_get(outputs)
            for lane, text, first, count in parts:
                text.take(scored, lane, first, count)
                engine.stats["scored_tokens"] += count
                if first + count == len(text.tokens):
                    yield text


def _dispatch(
    engine: Engine, pool: RowPool, shape: Shape, lanes: list[Scoring | None]
) -> tuple[Scored, list[tuple[int, Scoring, int, int]]]:
    """One step: its outputs, and what of them belongs to which text: (lane, text, first token, number of tokens)."""
    feeds = [None if text is None else text.feed(shape.tokens) for text in lanes]
    targets = np.zeros((pool.size, shape.tokens), np.int32)
    parts: list[tuple[int, Scoring, int, int]] = []
    for lane, (text, feed) in enumerate(zip(lanes, feeds, strict=True)):
        if text is not None and feed is not None:
            count = len(feed.tokens)
            targets[lane, :count] = text.tokens[feed.position + 1 : feed.position + 1 + count]
            parts.append((lane, text, feed.position + 1, count))
    outputs = engine.run(shape, pool, Batch.of(feeds, shape.tokens), targets, owners=lanes)
    for lane, text, _, count in parts:
        text.consumed += count
        if text.done:
            lanes[lane] = None
            engine.forget(text)
    return outputs, parts
