"""Scoring: log-probabilities of texts (prompt logprobs), prefilled in the rows of the prefill pool.

The widths of a text's steps follow from its own number of tokens. Texts of about the same length share the lanes; the
lanes with the widest next step run first, so that all lanes of a step are in use.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.prefix import Prefix
from hybridlm.engine.probing import TextProbing
from hybridlm.programs.shapes import Shape
from hybridlm.requests.finite import require_finite
from hybridlm.requests.results import Score
from hybridlm.rows.pool import RowPool
from hybridlm.scoring.distributions import Question
from hybridlm.scoring.finished import KeptTexts
from hybridlm.scoring.lanes import TextPart, enter, leave, may_begin, widest_step
from hybridlm.scoring.queue import Asked, ScoringQueue, T
from hybridlm.scoring.text import ScoredText
from hybridlm.scoring.text_distributions import TextDistributions
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
    """Return the scores of all texts in order, unchecked; arguments as for `score`."""
    found: dict[int, Score] = {}
    arguments = {"texts": list(texts), "top": top, "prefix": prefix, "question": question, "full_lanes": full_lanes}
    with engine.decisions.command("score", **arguments):
        for one in score(engine, texts, top, prefix, question, probing, full_lanes):
            assert one.index is not None
            tops = one.top_logprobs if top else None
            captured = None if one.recorder is None or one.first_wrong is not None else one.recorder.finish()
            scored = Score(
                list(one.tokens[one.before :]),
                one.logprobs,
                one.greedy,
                tops,
                one.before,
                captured=captured,
                first_wrong=one.first_wrong,
            )
            found[one.index] = scored if one.found is None else _with_distributions(scored, one.found, one.before)
    return [found[index] for index in range(len(texts))]


def _with_distributions(scored: Score, found: TextDistributions, before: int) -> Score:
    entropy = found.entropy[before:] if found.question.entropy else None
    return replace(
        scored, ranks=found.ranks[before:], entropy=entropy, top=found.top(before), chosen=found.chosen(before)
    )


def checked(scores: list[Score], item: Callable[[int], str] = "texts[{}]".format) -> list[Score]:
    """Return the same scores.

    Args:
        scores: of several texts.
        item: number of a score -> name of its text in messages.

    Raises:
        NumericalError: a number of a score is not finite.
    """
    wrong = {i: score.first_wrong for i, score in enumerate(scores) if score.first_wrong is not None}
    require_finite(wrong, item)
    return scores


def score(
    engine: Engine,
    texts: Sequence[tuple[int, ...]],
    top: int = 0,
    prefix: Prefix | None = None,
    question: Question | None = None,
    probing: TextProbing | None = None,
    full_lanes: bool = False,
) -> Generator[ScoredText, None, None]:
    """Score every token of every text, longest first; yield each text when it is done.

    A common prefix of several texts is prefilled once, as far as it is whole steps. Every number is the one that the
    text has alone in steps of this shape.

    Args:
        engine: runs the steps.
        texts: token ids, at most as many as the context holds.
        top: number of most likely tokens to report for each position.
        prefix: common beginning of all texts.
        question: what is asked about the distributions of the texts; None for nothing. `top` is 0 with it.
        probing: what is read and changed inside the model; None for nothing. Texts share nothing with it.
        full_lanes: use all lanes for any number of texts, so that the bits of a text do not depend on that number.
    """

    def has_steps(i: int) -> bool:
        probe = None if probing is None else probing.probes[i]
        return len(texts[i]) > 1 or (probe is not None and probe.reads(0))

    predicted = [i for i in range(len(texts)) if has_steps(i)]
    for i in set(range(len(texts))).difference(predicted):
        # Nothing predicts a single token.
        yield ScoredText(i, texts[i], prefix, question=question, asked=None if question is None else question.texts[i])
    if not predicted:
        return

    def inputs(batch: Batch, lanes: Sequence[ScoredText | None], feeds: Sequence[Feed | None]) -> StepInputs:
        return _scoring_inputs(batch, lanes, feeds, question)

    step = TextStep(inputs, top if question is None else question.top)
    several = {i: texts[i] for i in predicted}
    yield from prefilled(engine, several, step, ScoredText, prefix, question, probing, full_lanes)


class TextStep(NamedTuple, Generic[T]):
    """A step that prefills texts.

    Attributes:
        inputs: (batch, texts in lanes, their feeds) -> inputs.
        top: number of most likely tokens to report; None for a step that reports none.
    """

    inputs: Callable[[Batch, Sequence[T | None], Sequence[Feed | None]], StepInputs]
    top: int | None = None


def prefilled(
    engine: Engine,
    texts: Mapping[int, tuple[int, ...]],
    step: TextStep[T],
    make: Callable[..., T],
    prefix: Prefix | None = None,
    question: Asked | None = None,
    probing: TextProbing | None = None,
    full_lanes: bool = False,
) -> Generator[T, None, None]:
    """Prefill all tokens but the last one of every text, longest first; yield each text when it is done.

    A common prefix of several texts is prefilled once, as far as it is whole steps.

    Args:
        engine: runs the steps.
        texts: token ids of at least two tokens by the number of the text.
        step: what is run.
        make: class of the texts.
        prefix: common beginning of all texts.
        question: what is asked about the texts.
        probing: what is read and changed inside the model; None for nothing.
        full_lanes: use all lanes for any number of texts.
    """
    storage = None if engine.finished is None or probing is not None else KeptTexts(engine.finished)
    if storage is not None:

        def empty(i: int) -> T:
            return make(i, texts[i], prefix, question=question, asked=None if question is None else question.texts[i])

        restored = storage.restored(texts, empty)
        yield from restored.values()
        texts = {i: tokens for i, tokens in texts.items() if i not in restored}
        if not texts:
            return
    size = engine.bucket(engine.prefill_rows if full_lanes else len(texts), engine.prefill_rows)
    most, probes = (max_held(engine, size), None) if probing is None else (0, probing.probes)
    waiting = ScoringQueue(texts, prefix, engine.widths, most, question, make, probes)
    if waiting.shares:
        engine.give_up("decode")
    pool = engine.borrow("prefill", size)
    try:
        for text in _prefill(engine, pool, waiting, step, probing):
            if storage is not None:
                storage.add(text)
            yield text
    finally:
        engine.give_back("prefill", pool)


def max_held(engine: Engine, lanes: int) -> int:
    """Return how many states of shared prefixes to hold at a time: one for each lane, and one for a nested prefix.

    At least two, and at most the rows in which a device decodes: their memory was reserved when the model was loaded
    and is free during scoring. The memory that is free at the moment does not count, so that the texts and settings
    alone decide which texts share a step.
    """
    return max(2, min(lanes + 1, engine.lanes // engine.placement.data))


def _prefill(
    engine: Engine, pool: RowPool, waiting: ScoringQueue[T], step: TextStep[T], probing: TextProbing | None
) -> Iterator[T]:
    """Dispatch steps, one ahead of the outputs that are read, until every text is done."""
    widths = (1,) if probing is not None and probing.one_by_one else engine.widths
    lanes: list[T | None] = [None] * pool.size
    flights: deque[tuple[Any, list[TextPart[T]]]] = deque()
    while flights or waiting or any(lanes):
        begins = may_begin(lanes, widths)
        while begins and pool.owner.free and (text := waiting.take()) is not None:
            if probing is not None and text.probe is not None and text.index is not None:
                capacity = len(text.probe.read_in(0, len(text.tokens)))
                text.recorder = probing.recorder(text.probe, text.index, capacity)
            lanes[enter(engine, pool, text)] = text
            waiting.begun(text)
        if any(lanes):
            engine.decisions.checkpoint()
            width, wide = widest_step(lanes, widths)
            # Texts that ask for nothing have the bits of the plain step: the others have steps of their own.
            for probed in sorted({text.probe is not None for text in wide if text is not None}):
                active = [None if text is None or (text.probe is not None) != probed else text for text in wide]
                part = _dispatch(engine, pool, step, width, lanes, active, waiting, probing if probed else None)
                flights.append(part)
        while len(flights) > 1 or (flights and not any(lanes)):
            outputs, parts = flights.popleft()
            found = engine.runner.read(outputs)
            for lane, text, first, count, reads, last in parts:
                text.take(found, lane, first, count)
                if probing is not None:
                    text.mark_wrong(probing.take(text, reads, found.hidden_states, lane))
                engine.stats["scored_tokens"] += count
                if last:
                    text.finish()
                    if text.index is not None:
                        yield text


def _dispatch(
    engine: Engine,
    pool: RowPool,
    step: TextStep[T],
    width: int,
    lanes: list[T | None],
    active: Sequence[T | None],
    waiting: ScoringQueue[T],
    probing: TextProbing | None,
) -> tuple[Any, list[TextPart[T]]]:
    """Dispatch one step of the active texts; return its outputs, and the part of each."""
    feeds = [None if text is None else text.feed(width) for text in active]
    batch = Batch.of(feeds, width)
    inputs = step.inputs(batch, active, feeds)
    if probing is not None:
        inputs = inputs._replace(probes=probing.text_inputs(active, feeds, width))
    shape = Shape.of(inputs, step.top)
    outputs = engine.run(shape, pool, inputs, owners=active, counts=np.asarray(batch.lengths))
    stepped = [
        (lane, text, feed)
        for lane, (text, feed) in enumerate(zip(active, feeds, strict=True))
        if text is not None and feed is not None
    ]
    for _, text, feed in stepped:
        text.consumed += len(feed.tokens)
    reads = {}
    if probing is not None:
        reads = probing.after_step(pool, [(lane, text, len(feed.tokens)) for lane, text, feed in stepped])
    parts: list[TextPart[T]] = []
    for lane, text, feed in stepped:
        count = min(len(feed.tokens), len(text.tokens) - 1 - feed.position)
        parts.append(TextPart(lane, text, feed.position + 1, count, reads.get(lane), text.done))
        if text.done and text.slot is not None:
            lanes[lane] = None
            leave(engine, pool, text)
            if text.index is None:
                waiting.prefilled(text)
    return outputs, parts


def _scoring_inputs(
    batch: Batch, lanes: Sequence[ScoredText | None], feeds: Sequence[Feed | None], question: Question | None
) -> StepInputs:
    """Return the inputs of a scoring step, with a target for every token before the last."""
    targets = np.zeros(batch.tokens.shape, np.int32)
    chosen = np.zeros((*targets.shape, 0 if question is None else question.width), np.int32)
    for lane, (text, feed) in enumerate(zip(lanes, feeds, strict=True)):
        if text is not None and feed is not None:
            count = min(len(feed.tokens), len(text.tokens) - 1 - feed.position)
            targets[lane, :count] = text.tokens[feed.position + 1 : feed.position + 1 + count]
            if text.asked is not None:
                text.asked.fill(chosen[lane, :count], feed.position + 1)
    if question is None:
        return StepInputs(batch, targets=targets)
    temperature = np.full(len(lanes), question.temperature, np.float32)
    return StepInputs(batch, targets=targets, chosen=Chosen(chosen, temperature))
