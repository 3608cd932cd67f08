"""Random traffic in few pages, compared with solo runs.

Requests join at random steps, are cancelled and preempted; a completion equals a session with its request alone.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

import hybridlm
from hybridlm import Completion
from models import KV_BLOCK

PAGES = 5
SETTINGS: dict[str, Any] = {
    "lanes": 4, "context": 512, "dtype": "float32", "chunk": 32, "certify": "off", "cache": PAGES * KV_BLOCK,
}  # fmt: skip
"""Four lanes of four pages each, and five pages for all of them."""
PLAIN: dict[str, Any] = {"ignore_eos": True}

Asked = tuple[list[int], dict[str, Any]]


FEW: tuple[dict[str, Any], ...] = ({}, {"temperature": 1.0}, {"frequency_penalty": 0.5, "repetition_penalty": 1.3})
"""Settings with few compiled steps; the last one depends on all tokens that were sampled."""
MANY: tuple[dict[str, Any], ...] = (
    *FEW, {"temperature": 0.8, "top_p": 0.9, "logprobs": 2}, {"allowed_token_ids": list(range(10, 40))},
    {"bad_words": [[11]], "temperature": 0.7}, {"stop": list(range(3, 97, 9))}, {"logprobs": 0},
    {"structured_outputs": hybridlm.StructuredOutputs(regex="[a-f ]{40}"), "ignore_eos": False},
)  # fmt: skip


def request_of(rng: random.Random, kinds: tuple[dict[str, Any], ...], vocab: int = 97) -> Asked:
    """A request that probably crosses the end of a page."""
    prompt = [rng.randrange(3, vocab) for _ in range(rng.choice((1, 90, 115, 120, 126, 128, 240, 250, 370)))]
    settings = {"max_tokens": rng.choice((1, 2, 25, 40)), "seed": rng.randrange(99), "ignore_eos": True}
    return prompt, settings | rng.choice(kinds)


def submit(lm: hybridlm.LM, session: hybridlm.Session, index: int, request: Asked, priority: int = 0) -> None:
    prompt, settings = request
    session.add(lm.text_model.inputs.request(index, prompt, hybridlm.SamplingParams(**settings), priority))


def completed(session: hybridlm.Session) -> dict[int, Completion]:
    """Make a step and check the session's integrity; return its completions by request."""
    events, cache = session.step(), session._engine.prefix_cache
    session.check_integrity()
    if cache is not None:
        cache.check_integrity()
    return {event.index: event.completion for event in events if event.completion is not None}


def finished(session: hybridlm.Session) -> dict[int, Completion]:
    """Run a session to its end; return the completions in the order of their ends."""
    completions = dict[int, Completion]()
    while session.busy:
        completions |= completed(session)
    return completions


def alone(lm: hybridlm.LM, requests: list[Asked]) -> list[Completion]:
    """Every request in a session with no other, under its number."""
    preemptions, completions = lm.stats["preemptions"], []
    for index, request in enumerate(requests):
        with lm.session(speculate=None) as session:
            submit(lm, session, index, request)
            completions += finished(session).values()
    assert lm.stats["preemptions"] == preemptions
    return completions


def traffic(
    lm: hybridlm.LM, requests: list[Asked], rng: random.Random, arrivals: float = 0.3, **options: Any
) -> tuple[dict[int, Completion], int]:
    """Let requests join at random steps, cancel some; return completions and the number of preemptions."""
    preemptions, completions = lm.stats["preemptions"], dict[int, Completion]()
    events: dict[int, list[int]] = {}
    with lm.session(**options) as session:
        waiting = list(enumerate(requests))
        while waiting or session.busy:
            while waiting and rng.random() < arrivals:
                index, request = waiting.pop(0)
                submit(lm, session, index, request, priority=rng.choice((0, 0, 0, 1)))
            if session._alive and rng.random() < 0.02:
                session.cancel(rng.choice(list(session._alive)))
            for event in session.step():
                events.setdefault(event.index, []).extend([] if event.token is None else [event.token])
                if event.completion is not None:
                    completions[event.index] = event.completion
            session.check_integrity()
    for index, completion in completions.items():
        assert events.get(index, []) == completion.token_ids, "each token is an event, once"
    return completions, lm.stats["preemptions"] - preemptions


def compare(completions: dict[int, Completion], want: list[Completion]) -> None:
    assert sorted(completions) == list(range(len(want)))
    for index, expected in enumerate(want):
        got = completions[index]
        if got.finish_reason == "cancelled":
            assert got.token_ids == expected.token_ids[: len(got.token_ids)]
            continue
        assert (got.token_ids, got.finish_reason, got.text) == (
            expected.token_ids, expected.finish_reason, expected.text,
        ), index  # fmt: skip
        if expected.logprobs is not None:
            np.testing.assert_allclose(got.logprobs or [], expected.logprobs, atol=1e-4)
            assert len(got.top_logprobs or ()) == len(expected.top_logprobs or ())


def run(
    lm: hybridlm.LM, seed: int, count: int = 20, kinds: tuple[dict[str, Any], ...] = FEW, drafts: bool = False
) -> int:
    """Compare random traffic with solo runs; return the number of preemptions.

    Args:
        drafts: right and wrong tokens are drafted.
    """
    rng = random.Random(seed)
    requests = [request_of(rng, kinds, lm.config.vocab_size) for _ in range(count)]
    expected = alone(lm, requests)
    drafter = Known(expected, (7,)) if drafts else "as loaded"
    completions, preempted = traffic(lm, requests, rng, speculate=drafter)
    compare(completions, expected)
    return preempted


def prompt(count: int, first: int = 3) -> list[int]:
    return [3 + (first + 7 * i * i) % 90 for i in range(count)]


class Known:
    """Drafter of known texts.

    Args:
        texts: completions, or prompts with their completions.
        pattern: numbers below 10: so many quarters of the drafts, all right (0 to 4), as many less 5 and wrong ones
            after them (5 to 8), or a wrong one with right ones after it (9). Which entry counts depends on the
            tokens so far.
    """

    def __init__(self, texts: Sequence[Completion | list[int]], pattern: Sequence[int] = (4,)):
        self._texts = [text if isinstance(text, list) else text.prompt_token_ids + text.token_ids for text in texts]
        self._pattern = pattern

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """Return right and wrong next tokens of the first text with this beginning."""
        length, tokens = len(token_ids), list(token_ids)
        number, text = next(((i, text) for i, text in enumerate(self._texts) if text[:length] == tokens), (0, tokens))
        drafts = text[length : length + k]
        wrong = [abs(token - 1) for token in drafts]
        kind = self._pattern[(length + number) % len(self._pattern)]
        if kind == 9:
            return [*wrong[:1], *drafts[1:]]
        right = kind % 5 * k // 4
        return [*drafts[:right], *(wrong[right:] if kind > 4 else ())]
