"""Arrays about the distributions of one text, filled as its steps are read."""

import math
from dataclasses import dataclass, field

import numpy as np

from hybridlm.requests.token_logprobs import TokenLogprobs
from hybridlm.scoring.distributions import Question, TextQuestion
from hybridlm.steps.score import Scored

_BY_POSITION = ("_top_ids", "_top_logprobs", "_logprobs", "_chosen_ranks")
"""Arrays that begin at the first token that is asked about."""


@dataclass(eq=False)
class TextDistributions:
    """Ranks, entropies and log-probabilities that are asked about one text, filled as its steps are read.

    Attributes:
        question: of the call.
        asked: of the text.
        length: number of its tokens, with everything before them.
        ranks, entropy: of each of its tokens; 0 and nan where nothing is asked.
    """

    question: Question
    asked: TextQuestion
    length: int
    ranks: np.ndarray = field(init=False)
    entropy: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        count, asked = max(self.length - self.asked.first, 0), self.question
        self.ranks = np.zeros(self.length, np.int32)
        self.entropy = np.full(self.length, math.nan, np.float32)
        self._top_ids = np.zeros((count, asked.top), np.int32)
        self._top_logprobs = np.zeros((count, asked.top), np.float32)
        self._logprobs = np.zeros((count, asked.width), np.float32)
        self._chosen_ranks = np.zeros((count, asked.width), np.int32)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name."""
        return {name: getattr(self, name) for name in ("ranks", "entropy", *_BY_POSITION)}

    def take(self, scored: Scored, lane: int, first: int, count: int) -> None:
        """Store a step's results, NumPy arrays, for `count` tokens from `first` on."""
        skipped = max(self.asked.first - first, 0)
        if skipped >= count:
            return
        step, own = slice(skipped, count), slice(first + skipped, first + count)
        inside = slice(own.start - self.asked.first, own.stop - self.asked.first)
        assert scored.rank is not None and scored.entropy is not None, "the step was asked for them"
        self.ranks[own], self.entropy[own] = scored.rank[lane, step], scored.entropy[lane, step]
        if scored.top_tokens is not None and scored.top_logprobs is not None:
            self._top_ids[inside], self._top_logprobs[inside] = (
                scored.top_tokens[lane, step],
                scored.top_logprobs[lane, step],
            )
        if scored.chosen_logprobs is not None and scored.chosen_ranks is not None:
            self._logprobs[inside], self._chosen_ranks[inside] = (
                scored.chosen_logprobs[lane, step],
                scored.chosen_ranks[lane, step],
            )

    def copy_from(self, shared: "TextDistributions") -> None:
        """Copy the results of the first tokens from those of a shared prefix, which was asked the same about them."""
        first, end = self.asked.first, shared.length
        if end <= first:
            return
        assert shared.asked.first == first, "chunks that are shared are asked the same"
        self.ranks[first:end], self.entropy[first:end] = shared.ranks[first:], shared.entropy[first:]
        for name in _BY_POSITION:
            getattr(self, name)[: end - first] = getattr(shared, name)

    def top(self, before: int) -> TokenLogprobs | None:
        """Return the most likely tokens of each token behind `before`; None if they were not asked for."""
        count = self.question.top
        if not count:
            return None
        positions = len(self._top_ids)
        ranks = np.tile(np.arange(1, count + 1, dtype=np.int32), positions)
        offsets = self._offsets(np.full(positions, count, np.int64), before)
        return TokenLogprobs(self._top_ids.reshape(-1), self._top_logprobs.reshape(-1), ranks, offsets)

    def chosen(self, before: int) -> TokenLogprobs | None:
        """Return the chosen ids of each token behind `before`; None if none were chosen."""
        if not self.question.chosen:
            return None
        positions, given = len(self._logprobs), self.asked.ids
        each = [given] * positions if isinstance(given, np.ndarray) else given
        counts = np.array([len(ids) for ids in each], np.int64)
        real = np.arange(self.question.width) < counts[:, None]
        ids = np.concatenate([np.zeros(0, np.int32), *each])
        return TokenLogprobs(ids, self._logprobs[real], self._chosen_ranks[real], self._offsets(counts, before))

    def _offsets(self, counts: np.ndarray, before: int) -> np.ndarray:
        whole = np.zeros(self.length - before + 1, np.int64)
        whole[self.asked.first - before + 1 :] = np.cumsum(counts)
        return whole
