"""Scoring: log-probabilities of texts, prefilled chunk by chunk in the rows of the prefill pool."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.prefix import Prefix
from hybridlm.errors import NumericalError
from hybridlm.programs.shapes import Shape
from hybridlm.requests.results import Score
from hybridlm.rows.pool import RowPool
from hybridlm.scoring.distributions import Question
from hybridlm.scoring.found import Found
from hybridlm.scoring.queue import ScoringQueue
from hybridlm.scoring.text import ScoredText
from hybridlm.steps.operands import Batch
from hybridlm.steps.score import Chosen, Scored


def scores(
    engine: Engine,
    texts: Sequence[tuple[int, ...]],
    top: int = 0,
    prefix: Prefix | None = None,
    question: Question | None = None,
) -> list[Score]:
    """Return the scores of all texts, in order; log-probabilities may be NaN. Arguments as for `score`."""
    found: dict[int, Score] = {}
    if question is not None and engine.placement.several_processes:
        raise ValueError("score: token_ids, top, start, temperature and entropy are not asked of several processes yet")
    with engine.decisions.command("score", texts=list(texts), top=top, prefix=prefix):
        for one in score(engine, texts, top, prefix, question):
            assert one.index is not None
            tops = one.top_logprobs if top else None
            scored = Score(list(one.tokens[one.before :]), one.logprobs, one.greedy, tops, one.before)
            found[one.index] = scored if one.found is None else _with_distributions(scored, one.found, one.before)
    return [found[index] for index in range(len(texts))]


def _with_distributions(scored: Score, found: Found, before: int) -> Score:
    entropy = found.entropy[before:] if found.question.entropy else None
    return replace(
        scored, ranks=found.ranks[before:], entropy=entropy, top=found.top(before), chosen=found.chosen(before)
    )


def checked(scores: list[Score]) -> list[Score]:
    """Return the same scores.

    Raises:
        NumericalError: a log-probability is NaN.
    """
    for i, one in enumerate(scores):
        if one.first_nan is not None:
            raise NumericalError(f"texts[{i}]", one.first_nan)
    return scores


def score(
    engine: Engine,
    texts: Sequence[tuple[int, ...]],
    top: int = 0,
    prefix: Prefix | None = None,
    question: Question | None = None,
) -> Generator[ScoredText, None, None]:
    """Score every token of every text, longest first; yield each text when it is done.

    A common prefix of several texts is prefilled once, as far as it is whole chunks. Every number is the one that the
    text has alone in steps of this shape.

    Args:
        engine: runs the steps.
        texts: token ids, at most as many as the context holds.
        top: number of most likely tokens to report for each position.
        prefix: common beginning of all texts.
        question: what is asked about the distributions of the texts; None for nothing. `top` is 0 with it.
    """
    predicted = [i for i, text in enumerate(texts) if len(text) > 1]
    for i in set(range(len(texts))).difference(predicted):
        # Nothing predicts a single token.
        yield ScoredText(i, texts[i], prefix, question=question, asked=None if question is None else question.texts[i])
    if not predicted:
        return
    size = engine.bucket(len(predicted), engine.prefill_rows)
    waiting = ScoringQueue({i: texts[i] for i in predicted}, prefix, engine.chunk, _max_held(engine, size), question)
    if waiting.shares:
        engine.give_up("decode")
    pool = engine.borrow("prefill", size)
    try:
        yield from _score(engine, pool, waiting, top, question)
    finally:
        engine.give_back("prefill", pool)


def _max_held(engine: Engine, lanes: int) -> int:
    """Return how many states of shared prefixes to hold at a time: one for each lane, and one for a nested prefix.

    At least two, and at most the rows in which a device decodes: their memory was reserved when the model was loaded
    and is free during scoring. The memory that is free at the moment does not count, so that the texts and settings
    alone decide which texts share a step.
    """
    return max(2, min(lanes + 1, engine.lanes // engine.placement.data))


def _score(
    engine: Engine, pool: RowPool, waiting: ScoringQueue, top: int, question: Question | None
) -> Iterator[ScoredText]:
    shape = Shape("score", pool.size, engine.chunk, top)
    if question is not None:
        shape = replace(shape, top=question.top, chosen=question.width)
    lanes: list[ScoredText | None] = [None] * pool.size
    flights: deque[tuple[Scored, list[tuple[int, ScoredText, int, int]]]] = deque()
    while flights or waiting or any(lanes):
        while pool.owner.free and (text := waiting.take()) is not None:
            _join(engine, pool, lanes, text)
            waiting.begun(text)
        if any(lanes):
            engine.decisions.checkpoint()
            flights.append(_dispatch(engine, pool, shape, lanes, waiting, question))
        if len(flights) > 1 or not any(lanes):
            outputs, parts = flights.popleft()
            scored = engine.runner.read(outputs)
            for lane, text, first, count in parts:
                text.take(scored, lane, first, count)
                engine.stats["scored_tokens"] += count
                if first + count == len(text.tokens):
                    text.finish()
                    if text.index is not None:
                        yield text


def _join(engine: Engine, pool: RowPool, lanes: list[ScoredText | None], text: ScoredText) -> None:
    """Give a row to a text, with the state that it continues."""
    text.slot = pool.acquire()
    lanes[pool.lanes([text.slot])[0]] = text
    if text.start is not None:
        text.consumed = engine.moves.restore(text.start, pool, text.slot, text.tokens, owner=text)


def _dispatch(
    engine: Engine,
    pool: RowPool,
    shape: Shape,
    lanes: list[ScoredText | None],
    waiting: ScoringQueue,
    question: Question | None,
) -> tuple[Scored, list[tuple[int, ScoredText, int, int]]]:
    """Dispatch one step; return its outputs, and for each text in it (lane, text, first token, number of tokens)."""
    feeds = [None if text is None else text.feed(shape.tokens) for text in lanes]
    targets = np.zeros((pool.size, shape.tokens), np.int32)
    chosen = np.zeros((pool.size, shape.tokens, shape.chosen or 0), np.int32)
    parts: list[tuple[int, ScoredText, int, int]] = []
    for lane, (text, feed) in enumerate(zip(lanes, feeds, strict=True)):
        if text is not None and feed is not None:
            count = len(feed.tokens)
            targets[lane, :count] = text.tokens[feed.position + 1 : feed.position + 1 + count]
            if text.asked is not None:
                text.asked.fill(chosen[lane, :count], feed.position + 1)
            parts.append((lane, text, feed.position + 1, count))
    batch = Batch.of(feeds, shape.tokens)
    operands: tuple[Any, ...] = (targets,)
    if question is not None:
        host: Any = (chosen, np.full(pool.size, question.temperature, np.float32))
        operands += (Chosen(*host),)
    outputs = engine.run(shape, pool, batch, *operands, owners=lanes, counts=np.asarray(batch.lengths))
    for lane, text, _, count in parts:
        text.consumed += count
        if text.done and text.slot is not None:
            lanes[lane] = None
            if text.index is None:
                known = () if text.start is None else text.start.spans
                text.snapshot = engine.moves.take(pool, text.slot, text.tokens[:-1], owner=text, known=known)
                # Each restore adds the whole prefix to the statistic, but it was computed once.
                engine.stats["prefix_tokens_saved"] -= text.consumed
                waiting.prefilled(text)
            pool.owner.release(text.slot)
            text.slot = None
            engine.forget(text)
    return outputs, parts
