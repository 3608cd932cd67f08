"""Host arrays of one step. Every step gets arrays of its own, which nothing writes to afterwards."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hybridlm._sampling import Sampling
from hybridlm._sequence import SamplingParams
from hybridlm._sequence import Sequence as Alive
from hybridlm._steps import Scored


class Feed(NamedTuple):
    """What one lane consumes in a step: tokens, and the position of the first."""

    tokens: tuple[int, ...]
    position: int


@dataclass(frozen=True)
class Batch:
    """tokens int32 [N, T], lengths int32 [N], positions int32 [N], and the largest position + 1 in the step."""

    tokens: np.ndarray
    lengths: np.ndarray
    positions: np.ndarray
    end: int

    @staticmethod
    def of(feeds: list[Feed | None], tokens: int) -> "Batch":
        """Arrays for these lanes; a lane without a feed is idle."""
        batch = Batch(
            np.zeros((len(feeds), tokens), np.int32),
            np.zeros(len(feeds), np.int32),
            np.zeros(len(feeds), np.int32),
            max((feed.position + len(feed.tokens) for feed in feeds if feed is not None), default=0),
        )
        for lane, feed in enumerate(feeds):
            if feed is not None:
                batch.tokens[lane, : len(feed.tokens)] = feed.tokens
                batch.lengths[lane] = len(feed.tokens)
                batch.positions[lane] = feed.position
        return batch


def sampling_arrays(alive: list[Alive | None]) -> tuple[Sampling, np.ndarray]:
    """The sampling settings of every lane, and whether any lane samples at all."""
    idle = SamplingParams()
    params = [idle if sequence is None else sequence.request.params for sequence in alive]
    index = [0 if sequence is None else sequence.request.index for sequence in alive]
    sampling = Sampling(
        np.array([p.temperature for p in params], np.float32),
        np.array([p.top_k for p in params], np.int32),
        np.array([p.top_p for p in params], np.float32),
        np.array([p.min_p for p in params], np.float32),
        np.array([[p.seed >> 32, p.seed & 0xFFFFFFFF] for p in params], np.uint32),
        np.array(index, np.uint32),
    )
    return sampling, np.array(any(p.temperature > 0 for p in params))


@dataclass
class Scoring:
    """A text that owns a lane while it is scored.

    Attributes:
        index: number of the text in its call.
        tokens: its token ids.
        consumed: tokens that the lane's state has seen.
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

    def targets(self, limit: int) -> tuple[int, ...]:
        """The tokens that follow those of `feed`."""
        return self.tokens[1:][self.consumed : self.consumed + limit]

    def take(self, scored: Scored, lane: int, limit: int) -> int:
        """Keep a step's results for this text; returns how many tokens it scored."""
        count = len(self.targets(limit))
        first, last = self.consumed + 1, self.consumed + 1 + count
        self.logprobs[first:last] = scored.logprob[lane, :count]
        self.greedy[first:last] = scored.greedy[lane, :count]
        if scored.top_tokens is not None and scored.top_logprobs is not None:
            for i in range(count):
                ids, values = scored.top_tokens[lane, i].tolist(), scored.top_logprobs[lane, i].tolist()
                self.top_logprobs[first + i] = dict(zip(ids, values, strict=True))
        self.consumed += count
        return count
