"""Arrays about one text's distributions, filled step by step."""

import math
from dataclasses import dataclass, field

import numpy as np

from hybridlm.requests.results import TokenLogprobs
from hybridlm.scoring.distributions import Question, TextQuestion
from hybridlm.steps.score import Scored

_BY_POSITION = ("_top_ids", "_top_logprobs", "_logprobs", "_chosen_ranks")
"""Arrays that begin at the first reported token."""


@dataclass(eq=False)
class TextDistributions:
    """Ranks, entropies and log-probabilities of one text.

    Attributes:
        length: with everything before the text.
        ranks, entropy: per token; 0 and nan before the first reported token.
    """

    question: Question
    query: TextQuestion
    length: int
    ranks: np.ndarray = field(init=False)
    entropy: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        count, question = max(self.length - self.query.first, 0), self.question
        self.ranks = np.zeros(self.length, np.int32)
        self.entropy = np.full(self.length, math.nan, np.float32)
        self._top_ids = np.zeros((count, question.top), np.int32)
        self._top_logprobs = np.zeros((count, question.top), np.float32)
        self._logprobs = np.zeros((count, question.width), np.float32)
        self._chosen_ranks = np.zeros((count, question.width), np.int32)

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in ("ranks", "entropy", *_BY_POSITION)}

    def take(self, scored: Scored, lane: int, first: int, count: int) -> None:
        skipped = max(self.query.first - first, 0)
        if skipped >= count:
            return
        step, tokens = slice(skipped, count), slice(first + skipped, first + count)
        places = slice(tokens.start - self.query.first, tokens.stop - self.query.first)
        assert scored.rank is not None and scored.entropy is not None, "a step with a question has them"
        self.ranks[tokens], self.entropy[tokens] = scored.rank[lane, step], scored.entropy[lane, step]
        arrays = scored.top_tokens, scored.top_logprobs, scored.chosen_logprobs, scored.chosen_ranks
        for name, array in zip(_BY_POSITION, arrays, strict=True):
            if array is not None:
                getattr(self, name)[places] = array[lane, step]

    def copy_from(self, shared: "TextDistributions") -> None:
        """Copy the first tokens' results from a shared prefix with the same question."""
        first, end = self.query.first, shared.length
        if end <= first:
            return
        assert shared.query.first == first, "shared chunks have equal questions"
        self.ranks[first:end], self.entropy[first:end] = shared.ranks[first:], shared.entropy[first:]
        for name in _BY_POSITION:
            getattr(self, name)[: end - first] = getattr(shared, name)

    def top(self, begin: int) -> TokenLogprobs | None:
        """Return the most likely tokens after `begin`; None with `top` 0."""
        count = self.question.top
        if not count:
            return None
        positions = len(self._top_ids)
        ranks = np.tile(np.arange(1, count + 1, dtype=np.int32), positions)
        offsets = self._offsets(np.full(positions, count, np.int64), begin)
        return TokenLogprobs(self._top_ids.reshape(-1), self._top_logprobs.reshape(-1), ranks, offsets)

    def chosen(self, begin: int) -> TokenLogprobs | None:
        if not self.question.chosen:
            return None
        ids = self.query.ids
        lists = [ids] * len(self._logprobs) if isinstance(ids, np.ndarray) else ids
        counts = np.array(list(map(len, lists)), np.int64)
        real = np.arange(self.question.width) < counts[:, None]
        flat = np.concatenate([np.zeros(0, np.int32), *lists])
        return TokenLogprobs(flat, self._logprobs[real], self._chosen_ranks[real], self._offsets(counts, begin))

    def _offsets(self, counts: np.ndarray, begin: int) -> np.ndarray:
        offsets = np.zeros(self.length - begin + 1, np.int64)
        offsets[self.query.first - begin + 1 :] = np.cumsum(counts)
        return offsets
