"""Scoring: log-probabilities of texts, and of prompts (`prompt_logprobs`).

Cached states have no log-probabilities: prompts are read once more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.prefix import Prefix
from hybridlm.engine.probing import TextProbing
from hybridlm.engine.reading import Reading, T
from hybridlm.engine.scheduler import Scheduler, read_all
from hybridlm.requests.results import PromptLogprobs, Score, require_finite
from hybridlm.requests.sequence import Request
from hybridlm.scoring.distributions import Question
from hybridlm.scoring.shared_prefixes import Questions, texts_to_read
from hybridlm.scoring.text import ScoredText, keep, restored
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
        texts: within the context.
        question: about distributions, with `top` 0.
        probing: probed texts share no prefixes.
        full_lanes: use all lanes, so that bits do not depend on the number of texts.
    """
    probes = [None] * len(texts) if probing is None else probing.probes
    predicted = {
        i: text
        for i, (text, probe) in enumerate(zip(texts, probes, strict=True))
        if len(text) > 1 or (probe is not None and probe.reads(0))
    }
    queries = [None] * len(texts) if question is None else question.texts
    results: dict[int | None, Score] = {}
    make = partial(ScoredText, top_count=top)
    for i, text in enumerate(texts):
        if i not in predicted:  # nothing predicts a single token
            results[i] = score_of(make(i, text, prefix, question=question, query=queries[i]), top > 0)
    arguments = {"texts": list(texts), "top": top, "prefix": prefix, "question": question, "full_lanes": full_lanes}
    with engine.command("score", **arguments):
        if predicted:
            reading = scoring(engine, len(predicted), top, question, probing, full_lanes)
            for text in prefilled(reading, predicted, make, prefix, question, probing):
                results[text.index] = score_of(text, top > 0)
    return [results[index] for index in range(len(texts))]


def scoring(
    engine: Engine,
    count: int,
    top: int = 0,
    question: Question | None = None,
    probing: TextProbing | None = None,
    full_lanes: bool = False,
) -> Reading[ScoredText]:
    """Return the reading of `count` scored texts; other arguments as for `scores`."""
    inputs = partial(_scoring_inputs, question=question)
    lanes = step_lanes([engine], count, full_lanes)
    return Reading([engine], lanes, inputs, top if question is None else question.top, probing=probing)


def step_lanes(engines: Sequence[Engine], count: int, full_lanes: bool) -> int:
    """Return the lanes of steps of `count` texts, or of any number with `full_lanes`."""
    limit = min(engine.prefill_lanes for engine in engines)
    return max(engine.bucket(limit if full_lanes else count, limit) for engine in engines)


def score_of(text: ScoredText, with_top: bool) -> Score:
    begin, question = text.before, text.question
    result = Score(
        list(text.tokens[begin:]),
        text.logprobs,
        text.greedy,
        text.top_logprobs if with_top else None,
        begin,
        captured=None if text.recorder is None or text.first_wrong is not None else text.recorder.finish(),
        first_wrong=text.first_wrong,
    )
    if question is None:
        return result
    entropy = text.entropy[begin:] if question.entropy else None
    return replace(result, ranks=text.ranks[begin:], entropy=entropy, top=text.top(), chosen=text.chosen())


def checked(scores: list[Score], item: Callable[[int], str] = "texts[{}]".format) -> list[Score]:
    """Return the same scores; raises NumericalError for a number that is not finite.

    Args:
        item: number of a score -> name of its text in messages.
    """
    wrong = {i: score.first_wrong for i, score in enumerate(scores) if score.first_wrong is not None}
    require_finite(wrong, item)
    return scores


def prefilled(
    reading: Reading[T],
    texts: Mapping[int, tuple[int, ...]],
    make: Callable[..., T],
    prefix: Prefix | None = None,
    question: Questions | None = None,
    probing: TextProbing | None = None,
) -> Iterator[T]:
    """Prefill all tokens but the last; yield each text after its last step.

    Args:
        texts: at least two tokens, by number.
    """
    finished = None if probing is not None else reading.engines[0].finished
    call = 0 if finished is None else finished.begin_call()
    if finished is not None:

        def empty(i: int) -> T:
            return make(i, texts[i], prefix, question=question, query=None if question is None else question.texts[i])

        stored = restored(finished, call, texts, empty)
        yield from stored.values()
        texts = {i: tokens for i, tokens in texts.items() if i not in stored}
    probes = None if probing is None else probing.probes
    for text in read_all(reading, texts_to_read(reading, texts, make, prefix, question, probes)):
        if finished is not None:
            keep(finished, call, text)
        yield text


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


def add_prompts(engine: Engine, scheduler: Scheduler, requests: Sequence[Request]) -> dict[ScoredText, list[int]]:
    """Queue prompts to be scored, equal ones once; return the requests of each."""
    queued: dict[ScoredText, list[int]] = {}
    for top in sorted({request.params.prompt_logprobs or 0 for request in requests}):
        group = [request for request in requests if request.params.prompt_logprobs == top]
        requests_of: dict[tuple[int, ...], list[int]] = {}
        for request in group:
            requests_of.setdefault(request.given, []).append(request.index)
        reading, prompts = scoring(engine, len(requests_of), top), dict(enumerate(requests_of))
        texts = texts_to_read(reading, prompts, partial(ScoredText, top_count=top))
        queued |= {text: requests_of[text.tokens] for text in texts if text.index is not None}
        scheduler.add_texts(reading, texts, max(request.priority for request in group))
    return queued


def prompt_logprobs(text: ScoredText) -> PromptLogprobs | int:
    """Return a prompt's log-probabilities, or the index of its first token without finite ones."""
    score = score_of(text, with_top=True)
    if score.first_wrong is not None:
        return score.first_wrong
    tops = score.top_logprobs or [{} for _ in score.token_ids]
    tokens = zip(score.token_ids, score.logprobs.tolist(), tops, strict=True)
    return [None, *({**top, token: logprob} for token, logprob, top in list(tokens)[1:])]
