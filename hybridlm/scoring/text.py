"""A text while it is scored: progress, results, and storage for interrupted runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from hybridlm.engine.reading import QueuedText, T
from hybridlm.files.finished import FinishedTexts
from hybridlm.requests.results import TokenLogprobs
from hybridlm.scoring.distributions import Question, TextQuestion
from hybridlm.steps.score import Scored

_BY_POSITION = ("_top_ids", "_top_logprobs", "_logprobs", "_chosen_ranks")
"""Arrays that begin at the first reported token."""


@dataclass(eq=False)
class ScoredText(QueuedText):
    """A text with scores of its tokens; with a question also ranks and entropies.

    Attributes:
        top_count: most likely tokens to store per token, without a question.
        logprobs: float32 [T]; NaN for a first token without a prefix.
        ranks, entropy: also before the text; 0 and nan before the first reported token.
    """

    question: Question | None = None
    query: TextQuestion | None = None
    top_count: int = 0
    logprobs: np.ndarray = field(init=False)
    greedy: np.ndarray = field(init=False)
    ranks: np.ndarray = field(init=False)
    entropy: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.tokens) - self.before
        self.logprobs = np.full(count, np.nan, np.float32)
        self.greedy = np.zeros(count, bool)
        self._top_ids = np.zeros((count, self.top_count), np.int32)
        self._top_logprobs = np.zeros((count, self.top_count), np.float32)
        if self.question is not None and self.query is not None:
            count, question = max(len(self.tokens) - self.query.first, 0), self.question
            self.ranks = np.zeros(len(self.tokens), np.int32)
            self.entropy = np.full(len(self.tokens), np.nan, np.float32)
            self._top_ids = np.zeros((count, question.top), np.int32)
            self._top_logprobs = np.zeros((count, question.top), np.float32)
            self._logprobs = np.zeros((count, question.width), np.float32)
            self._chosen_ranks = np.zeros((count, question.width), np.int32)

    def take(self, outputs: Scored, lane: int, first: int, count: int) -> None:
        numbers = outputs.logprob, outputs.top_logprobs, outputs.entropy, outputs.chosen_logprobs
        self.check([None if array is None else array[lane, :count] for array in numbers], first)
        if self.query is not None:
            self._take_distributions(self.query, outputs, lane, first, count)
        first -= self.before
        last = first + count
        self.logprobs[first:last] = outputs.logprob[lane, :count]
        self.greedy[first:last] = outputs.greedy[lane, :count]
        if self.query is None and outputs.top_tokens is not None and outputs.top_logprobs is not None:
            self._top_ids[first:last] = outputs.top_tokens[lane, :count]
            self._top_logprobs[first:last] = outputs.top_logprobs[lane, :count]

    def _take_distributions(self, query: TextQuestion, scored: Scored, lane: int, first: int, count: int) -> None:
        skipped = max(query.first - first, 0)
        if skipped >= count:
            return
        step, tokens = slice(skipped, count), slice(first + skipped, first + count)
        places = slice(tokens.start - query.first, tokens.stop - query.first)
        assert scored.rank is not None and scored.entropy is not None, "a step with a question has them"
        self.ranks[tokens], self.entropy[tokens] = scored.rank[lane, step], scored.entropy[lane, step]
        arrays = scored.top_tokens, scored.top_logprobs, scored.chosen_logprobs, scored.chosen_ranks
        for name, array in zip(_BY_POSITION, arrays, strict=True):
            if array is not None:
                getattr(self, name)[places] = array[lane, step]

    def results(self) -> dict[str, np.ndarray]:
        """Return the arrays of results by name."""
        names = ("_top_ids", "_top_logprobs") if self.query is None else ("ranks", "entropy", *_BY_POSITION)
        return {name: getattr(self, name) for name in ("logprobs", "greedy", *names)}

    def finish(self) -> None:
        super().finish()
        shared = self.parent
        if shared is not None:
            count = len(shared.tokens) - self.before
            self.logprobs[:count] = shared.logprobs
            self.greedy[:count] = shared.greedy
            if self.query is None:
                self._top_ids[:count], self._top_logprobs[:count] = shared._top_ids, shared._top_logprobs
            elif len(shared.tokens) > self.query.first:
                first, end = self.query.first, len(shared.tokens)
                assert shared.query is not None and shared.query.first == first, "shared chunks have equal questions"
                self.ranks[first:end], self.entropy[first:end] = shared.ranks[first:], shared.entropy[first:]
                for name in _BY_POSITION:
                    getattr(self, name)[: end - first] = getattr(shared, name)

    @property
    def top_logprobs(self) -> list[dict[int, float]]:
        """Most likely tokens of each position; empty for a first token without a prefix."""
        rows = zip(self._top_ids.tolist(), self._top_logprobs.tolist(), strict=True)
        tops = [dict(zip(ids, values, strict=True)) for ids, values in rows]
        return tops if self.before else [{}, *tops[1:]]

    def top(self) -> TokenLogprobs | None:
        """Return the most likely tokens; None with `top` 0."""
        count = 0 if self.question is None else self.question.top
        if not count:
            return None
        positions = len(self._top_ids)
        ranks = np.tile(np.arange(1, count + 1, dtype=np.int32), positions)
        offsets = self._offsets(np.full(positions, count, np.int64))
        return TokenLogprobs(self._top_ids.reshape(-1), self._top_logprobs.reshape(-1), ranks, offsets)

    def chosen(self) -> TokenLogprobs | None:
        if self.question is None or self.query is None or not self.question.chosen:
            return None
        ids = self.query.ids
        lists = [ids] * len(self._logprobs) if isinstance(ids, np.ndarray) else ids
        counts = np.array(list(map(len, lists)), np.int64)
        real = np.arange(self.question.width) < counts[:, None]
        flat = np.concatenate([np.zeros(0, np.int32), *lists])
        return TokenLogprobs(flat, self._logprobs[real], self._chosen_ranks[real], self._offsets(counts))

    def _offsets(self, counts: np.ndarray) -> np.ndarray:
        assert self.query is not None
        offsets = np.zeros(len(self.tokens) - self.before + 1, np.int64)
        offsets[self.query.first - self.before + 1 :] = np.cumsum(counts)
        return offsets


def restored(
    finished: FinishedTexts, call: int, texts: Mapping[int, tuple[int, ...]], make: Callable[[int], T]
) -> dict[int, T]:
    """Return the finished texts of an earlier run; raises ValueError for other texts.

    Args:
        make: number -> text without results.
    """
    stored: dict[int, T] = {}
    for number in texts:
        text, wrong = make(number), np.full(1, -1, np.int64)
        if finished.restore(call, number, {**text.results(), "first_wrong": wrong}):
            text.first_wrong = None if wrong[0] < 0 else int(wrong[0])
            stored[number] = text
    finished.tokens += sum(len(tokens) - 1 for number, tokens in texts.items() if number not in stored)
    return stored


def keep(finished: FinishedTexts, call: int, text: QueuedText) -> None:
    assert text.index is not None, "results of a shared prefix belong to its texts"
    wrong = np.full(1, -1 if text.first_wrong is None else text.first_wrong, np.int64)
    finished.add(call, text.index, {**text.results(), "first_wrong": wrong})
