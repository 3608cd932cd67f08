"""Scoring: log-probabilities of texts (prompt logprobs).

A pool has a row for each lane. The number of a text's tokens determines its step widths. Lanes with the widest next
step run first, so that all lanes of a step are in use.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.prefix import Prefix
from hybridlm.engine.probing import TextProbing
from hybridlm.programs.shapes import Shape
from hybridlm.requests.finite import require_finite
from hybridlm.requests.results import Score
from hybridlm.rows.pool import LaneMap, RowPool
from hybridlm.scoring.distributions import Question
from hybridlm.scoring.queue import (
    Models,
    Questions,
    ScoringQueue,
    TextPart,
    devices_for,
    enter,
    leave,
    max_held,
    may_begin,
    widest_step,
)
from hybridlm.scoring.text import ScoredText, T, keep, restored
from hybridlm.steps.operands import Batch, Chosen, Feed, StepInputs


def scores(
    engine: Engine,
    texts: Sequence[tuple[int, ...]],
    top: int = 0,
    prefix: Prefix | None = None,
    question: Question | None = None,
    probing: TextProbing | None = None,
    full_lanes: bool = False,
) -> list[Score]:
    """Score every token of every text; return the scores in order, unchecked.

    The longest texts begin. Common prefixes are prefilled once, in whole steps. A text has the same numbers alone, in
    steps of this shape.

    Args:
        texts: token ids within the context.
        top: most likely tokens to report at each position.
        prefix: of all texts.
        question: about distributions, with `top` 0.
        probing: probed texts share no beginnings.
        full_lanes: use all lanes, so that bits do not depend on the number of texts.
    """

    def has_steps(i: int) -> bool:
        probe = None if probing is None else probing.probes[i]
        return len(texts[i]) > 1 or (probe is not None and probe.reads(0))

    predicted = {i: text for i, text in enumerate(texts) if has_steps(i)}
    queries = [None] * len(texts) if question is None else question.texts
    results: dict[int | None, Score] = {}
    for i, text in enumerate(texts):
        if i not in predicted:  # nothing predicts a single token
            results[i] = _score_of(ScoredText(i, text, prefix, question=question, query=queries[i]), top > 0)
    arguments = {"texts": list(texts), "top": top, "prefix": prefix, "question": question, "full_lanes": full_lanes}
    with engine.decisions.command("score", **arguments):
        if predicted:
            step = TextStep(
                lambda batch, lanes, feeds: _scoring_inputs(batch, lanes, feeds, question),
                top if question is None else question.top,
            )
            for text in prefilled([engine], predicted, step, ScoredText, prefix, question, probing, full_lanes):
                results[text.index] = _score_of(text, top > 0)
    return [results[index] for index in range(len(texts))]


def _score_of(text: ScoredText, with_top: bool) -> Score:
    begin, distributions = text.before, text.distributions
    result = Score(
        list(text.tokens[begin:]),
        text.logprobs,
        text.greedy,
        text.top_logprobs if with_top else None,
        begin,
        captured=None if text.recorder is None or text.first_wrong is not None else text.recorder.finish(),
        first_wrong=text.first_wrong,
    )
    if distributions is None:
        return result
    return replace(
        result,
        ranks=distributions.ranks[begin:],
        entropy=distributions.entropy[begin:] if distributions.question.entropy else None,
        top=distributions.top(begin),
        chosen=distributions.chosen(begin),
    )


def checked(scores: list[Score], item: Callable[[int], str] = "texts[{}]".format) -> list[Score]:
    """Return the same scores.

    Args:
        scores: scores of several texts.
        item: number of a score -> name of its text in messages.

    Raises:
        NumericalError: a number of a score is not finite.
    """
    wrong = {i: score.first_wrong for i, score in enumerate(scores) if score.first_wrong is not None}
    require_finite(wrong, item)
    return scores


class TextStep(NamedTuple, Generic[T]):
    """A step over texts.

    Attributes:
        inputs: (batch, texts in lanes, feeds) -> inputs.
        top: most likely tokens to report, or None.
        combine: outputs of each model -> outputs; None with one model.
    """

    inputs: Callable[[Batch, Sequence[T | None], Sequence[Feed | None]], StepInputs]
    top: int | None = None
    combine: Callable[[Sequence[Any]], Any] | None = None


def prefilled(
    engines: Sequence[Engine],
    texts: Mapping[int, tuple[int, ...]],
    step: TextStep[T],
    make: Callable[..., T],
    prefix: Prefix | None = None,
    question: Questions | None = None,
    probing: TextProbing | None = None,
    full_lanes: bool = False,
) -> Generator[T, None, None]:
    """Prefill all tokens but the last; yield each text after its last step.

    Args:
        engines: run models in lockstep; the first has widths and statistics.
        texts: at least two tokens, by number.
    """
    first = engines[0]
    finished = None if probing is not None else first.finished
    call = 0 if finished is None else finished.begin_call()
    if finished is not None:

        def empty(i: int) -> T:
            return make(i, texts[i], prefix, question=question, query=None if question is None else question.texts[i])

        stored = restored(finished, call, texts, empty)
        yield from stored.values()
        texts = {i: tokens for i, tokens in texts.items() if i not in stored}
        if not texts:
            return
    limit = min(engine.prefill_lanes for engine in engines)
    size = max(engine.bucket(limit if full_lanes else len(texts), limit) for engine in engines)
    states = 0 if probing is not None else min(max_held(engine, size) for engine in engines)
    waiting = ScoringQueue(
        texts, prefix, first.widths, states, question, make, None if probing is None else probing.probes
    )
    models: list[tuple[Engine, RowPool]] = []
    try:
        for engine in engines:
            models.append((engine, engine.borrow(size)))
        for text in _prefill(models, waiting, step, probing):
            if finished is not None:
                keep(finished, call, text)
            yield text
    finally:
        for engine, pool in models:
            engine.give_back(pool)


def _prefill(models: Models, waiting: ScoringQueue[T], step: TextStep[T], probing: TextProbing | None) -> Iterator[T]:
    """Dispatch steps, one ahead of the read outputs, until every text is done."""
    engine, pool = models[0]
    widths = (1,) if probing is not None and probing.one_by_one else engine.widths
    lanes: list[T | None] = [None] * pool.size
    _, lane_map = pool.arrange((), pool.size)  # a row for each lane
    flights: deque[tuple[Any, list[TextPart[T]]]] = deque()
    while flights or waiting or any(lanes):
        begins = may_begin(lanes, widths)
        while begins and pool.owner.free and (text := waiting.take(partial(devices_for, models))) is not None:
            if probing is not None and text.probe is not None and text.index is not None:
                capacity = len(text.probe.read_in(0, len(text.tokens)))
                text.recorder = probing.recorder(text.probe, text.index, capacity)
            lanes[enter(models, text)] = text
            waiting.begun(text)
        if any(lanes):
            engine.decisions.checkpoint()
            width, wide = widest_step(lanes, widths)
            # Texts without probes have the bits of the plain step: probed texts have separate steps.
            for probed in sorted({text.probe is not None for text in wide if text is not None}):
                active = [None if text is None or (text.probe is not None) != probed else text for text in wide]
                outputs, parts = _dispatch(models, step, width, active, lane_map, probing if probed else None)
                flights.append((outputs, parts))
                for part in parts:
                    if part.last and part.text.slot is not None:
                        lanes[part.lane] = None
                        leave(models, part.text)
                        if part.text.index is None:
                            waiting.prefilled(part.text)
        while len(flights) > 1 or (flights and not any(lanes)):
            outputs, parts = flights.popleft()
            results = engine.runner.read(outputs)
            for lane, text, first, count, reads, last in parts:
                text.take(results, lane, first, count)
                if probing is not None:
                    text.mark_wrong(probing.take(text, reads, results.hidden_states, lane))
                engine.stats["scored_tokens"] += count
                if last:
                    text.finish()
                    if text.index is not None:
                        yield text


def _dispatch(
    models: Models,
    step: TextStep[T],
    width: int,
    active: Sequence[T | None],
    lane_map: LaneMap,
    probing: TextProbing | None,
) -> tuple[Any, list[TextPart[T]]]:
    feeds = [None if text is None else text.feed(width) for text in active]
    batch = Batch.of(feeds, width, lane_map.slots, None)
    inputs = step.inputs(batch, active, feeds)
    if probing is not None:
        inputs = inputs._replace(probes=probing.text_inputs(active, feeds, width))
    counts, outputs = np.asarray(batch.lengths), []
    used = {lane for lane, text in enumerate(active) if text is not None}  # a row for each lane
    for i, (engine, pool) in enumerate(models):
        inputs = inputs._replace(batch=batch._replace(pages=pool.table(range(len(active)), used)))
        shape = Shape.of(inputs, len(active), pool.pages, step.top)
        owners = [None if text is None else text.copies[i] for text in active]
        outputs.append(engine.run(shape, pool, lane_map.rows, inputs, owners=owners, counts=counts))
    stepped = [
        (lane, text, feed)
        for lane, (text, feed) in enumerate(zip(active, feeds, strict=True))
        if text is not None and feed is not None
    ]
    for _, text, feed in stepped:
        for copy in text.copies:
            copy.consumed += len(feed.tokens)
    reads = {}
    if probing is not None:
        reads = probing.after_step(
            models[0][1], lane_map, [(lane, text, len(feed.tokens)) for lane, text, feed in stepped]
        )
    parts: list[TextPart[T]] = []
    for lane, text, feed in stepped:
        count = min(len(feed.tokens), len(text.tokens) - 1 - feed.position)
        parts.append(TextPart(lane, text, feed.position + 1, count, reads.get(lane), text.done))
    return outputs[0] if step.combine is None else step.combine(outputs), parts


def _scoring_inputs(
    batch: Batch, lanes: Sequence[ScoredText | None], feeds: Sequence[Feed | None], question: Question | None
) -> StepInputs:
    targets = np.zeros(batch.tokens.shape, np.int32)
    chosen = np.zeros((*targets.shape, 0 if question is None else question.width), np.int32)
    for lane, (text, feed) in enumerate(zip(lanes, feeds, strict=True)):
        if text is not None and feed is not None:
            count = min(len(feed.tokens), len(text.tokens) - 1 - feed.position)
            targets[lane, :count] = text.tokens[feed.position + 1 : feed.position + 1 + count]
            if text.query is not None:
                text.query.fill(chosen[lane, :count], feed.position + 1)
    if question is None:
        return StepInputs(batch, targets=targets)
    temperature = np.full(len(lanes), question.temperature, np.float32)
    return StepInputs(batch, targets=targets, chosen=Chosen(chosen, temperature))
