"""Requests with log-normal prompt and completion lengths, submitted together.

End tokens are ignored, so that engines compute the same tokens.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridlm.lm import LM

PROMPT_MEDIAN, PROMPT_SIGMA, SHORTEST_PROMPT = 180, 0.8, 16
COMPLETION_MEDIAN, COMPLETION_SIGMA, SHORTEST_COMPLETION, LONGEST_COMPLETION = 90, 0.7, 8, 400
SAMPLED: Mapping[str, float | int] = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}


class MixedRequest(NamedTuple):
    """A prompt of random tokens, and the number of tokens to generate."""

    prompt: list[int]
    max_tokens: int


def mixed_requests(count: int, vocab: int, context: int, seed: int = 0) -> list[MixedRequest]:
    """Draw `count` requests of at most `context` tokens.

    Raises:
        ValueError: no room for the shortest prompt and the longest completion.
    """
    longest = min(LONGEST_COMPLETION, context // 4)
    if context < SHORTEST_PROMPT + SHORTEST_COMPLETION + longest:
        raise ValueError(f"context: expected at least 64 tokens for a mixed batch, got {context}")
    rng = np.random.default_rng(seed)
    median = min(PROMPT_MEDIAN, context // 4)
    prompts = rng.lognormal(np.log(median), PROMPT_SIGMA, count).clip(SHORTEST_PROMPT, context - longest)
    completions = rng.lognormal(np.log(COMPLETION_MEDIAN), COMPLETION_SIGMA, count).clip(SHORTEST_COMPLETION, longest)
    first = min(10, vocab - 1)  # the first ids may be special
    return [
        MixedRequest(rng.integers(first, vocab, int(prompt)).tolist(), int(completion))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


class OwnMixedSide:
    """The sessions of a loaded model.

    Attributes:
        prefill, decode: shares of real tokens in the last run's steps; None before.
    """

    def __init__(self, lm: LM, name: str):
        self._lm, self.name = lm, name
        self.prefill: float | None = None
        self.decode: float | None = None

    def run(self, requests: Sequence[MixedRequest], sampled: bool) -> float:
        """Return the seconds from the first submission to the last token."""
        settings: dict[str, Any] = dict(SAMPLED) if sampled else {}
        stats = self._lm.stats
        start = time.perf_counter()
        with self._lm.session() as session:
            for request in requests:
                session.submit(request.prompt, max_tokens=request.max_tokens, ignore_eos=True, **settings)
            while session.busy:
                session.step()
        seconds = time.perf_counter() - start
        new_stats = self._lm.stats
        counted = {name: new_stats[name] - stats[name] for name in PLACES}
        self.decode = counted["decode_tokens"] / max(counted["decode_places"], 1)
        prefill = counted["step_places"] - counted["decode_places"]
        self.prefill = (counted["step_tokens"] - counted["decode_tokens"]) / max(prefill, 1)
        return seconds

    def late_token(self, requests: Sequence[MixedRequest]) -> tuple[float, int]:
        """Return seconds and steps to a greedy request's first token; all other lanes decode."""
        count = min(self._lm.engine.lanes - 1, len(requests))
        late = sorted((request.prompt for request in requests), key=len)[len(requests) // 2]
        with self._lm.session() as session:
            waiting = {session.submit(late[:SHORTEST_PROMPT], ignore_eos=True) for _ in range(count)}
            while waiting:
                waiting -= {event.index for event in session.step()}
            start, steps = time.perf_counter(), 0
            index = session.submit(late, max_tokens=1, ignore_eos=True)
            while all(event.index != index for event in session.step()):
                steps += 1
            return time.perf_counter() - start, steps + 1


PLACES = ("step_tokens", "step_places", "decode_tokens", "decode_places")
"""Counters of `LM.stats` for the shares."""
