"""Scoring: log-probabilities of whole texts, a chunk of each at a time in the rows of the staging pool."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from hybridlm._batch import Batch, Feed
from hybridlm._engine import Engine
from hybridlm._errors import NumericalError
from hybridlm._prefix import Prefix
from hybridlm._programs import Shape
from hybridlm._results import Score
from hybridlm._rows import RowPool
from hybridlm._steps import Scored
from ir_passes import Slot


@dataclass(eq=False)
class Scoring:
    """A text that owns a lane while it is scored.

    Attributes:
        index: number of the text in its call.
        tokens: its token ids, those of its prefix included.
        prefix: what it continues; the results are those of the tokens behind it.
        consumed: tokens that the lane's state has seen once the dispatched steps have run.
        slot: its row while it has one.
        logprobs: float32 [T]; nan for the first token of a text without a prefix.
        greedy: bool [T], False for that token.
        top_logprobs: per token, the most likely tokens and their log-probabilities; none for that token.
    """

    index: int
    tokens: tuple[int, ...]
    prefix: Prefix | None = None
    consumed: int = 0
    slot: Slot | None = None
    logprobs: np.ndarray = field(init=False)
    greedy: np.ndarray = field(init=False)
    top_logprobs: list[dict[int, float]] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.tokens) - self.before
        self.logprobs = np.full(count, np.nan, np.float32)
        self.greedy = np.zeros(count, bool)
        self.top_logprobs = [{} for _ in range(count)]

    @property
    def before(self) -> int:
        """Tokens of the prefix."""
        return 0 if self.prefix is None else len(self.prefix)

    @property
    def done(self) -> bool:
        """Whether every token that predicts another one has been consumed."""
        return self.consumed >= len(self.tokens) - 1

    def feed(self, limit: int) -> Feed:
        """The next tokens to consume; the last token of a text predicts nothing and is not consumed."""
        return Feed(self.tokens[:-1][self.consumed : self.consumed + limit], self.consumed)

    def take(self, scored: Scored, lane: int, first: int, count: int) -> None:
        """Keep a step's results, NumPy arrays, for the `count` tokens from `first` on."""
        first -= self.before
        last = first + count
        self.logprobs[first:last] = scored.logprob[lane, :count]
        self.greedy[first:last] = scored.greedy[lane, :count]
        if scored.top_tokens is not None and scored.top_logprobs is not None:
            for i in range(count):
                ids, values = scored.top_tokens[lane, i].tolist(), scored.top_logprobs[lane, i].tolist()
                self.top_logprobs[first + i] = dict(zip(ids, values, strict=True))


def scores(engine: Engine, texts: Sequence[tuple[int, ...]], top: int = 0, prefix: Prefix | None = None) -> list[Score]:
    """Scores of all texts, in their order; log-probabilities may be NaN. Arguments as for `score`."""
    found: dict[int, Score] = {}
    for one in score(engine, texts, top, prefix):
        tops = one.top_logprobs if top else None
        found[one.index] = Score(list(one.tokens[one.before :]), one.logprobs, one.greedy, tops, one.before)
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


def score(
    engine: Engine, texts: Sequence[tuple[int, ...]], top: int = 0, prefix: Prefix | None = None
) -> Iterator[Scoring]:
    """Score every token of every text, longest first; yields each text when it is done.

    Args:
        engine: runs the steps.
        texts: token ids, each at most as many as the context holds.
        top: how many of the most likely tokens to report for each position.
        prefix: what every text begins with.
    """
    longest_first = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    waiting = deque(Scoring(index, texts[index], prefix) for index in longest_first)
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
        while waiting and pool.owner.free:
            _join(engine, pool, lanes, waiting.popleft())
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


def _join(engine: Engine, pool: RowPool, lanes: list[Scoring | None], text: Scoring) -> None:
    """Give a row to a text, with the state of its prefix."""
    text.slot = pool.acquire()
    lanes[pool.lanes([text.slot])[0]] = text
    if text.prefix is not None:
        text.consumed = engine.restore(text.prefix.snapshot, pool, text.slot, text.tokens, owner=text)


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
    batch = Batch.of(feeds, shape.tokens)
    outputs = engine.run(shape, pool, batch, targets, owners=lanes, counts=np.asarray(batch.lengths))
    for lane, text, _, count in parts:
        text.consumed += count
        if text.done and text.slot is not None:
            lanes[lane] = None
            pool.owner.release(text.slot)
            text.slot = None
            engine.forget(text)
    return outputs, parts
