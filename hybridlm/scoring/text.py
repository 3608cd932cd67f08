"""A text while it is scored: progress, results, and storage for interrupted runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from hybridlm.engine.reading import QueuedText, T
from hybridlm.files.finished import FinishedTexts
from hybridlm.scoring.distributions import Question, TextQuestion
from hybridlm.scoring.text_distributions import TextDistributions
from hybridlm.steps.score import Scored


@dataclass(eq=False)
class ScoredText(QueuedText):
    """A text with a score for each token.

    Attributes:
        logprobs: float32 [T]; NaN for a first token without a prefix.
        top_logprobs: the most likely tokens per token.
    """

    question: Question | None = None
    query: TextQuestion | None = None
    distributions: TextDistributions | None = field(init=False, default=None)
    logprobs: np.ndarray = field(init=False)
    greedy: np.ndarray = field(init=False)
    top_logprobs: list[dict[int, float]] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.tokens) - self.before
        self.logprobs = np.full(count, np.nan, np.float32)
        self.greedy = np.zeros(count, bool)
        self.top_logprobs = [{} for _ in range(count)]
        if self.question is not None and self.query is not None:
            self.distributions = TextDistributions(self.question, self.query, len(self.tokens))

    def take(self, outputs: Scored, lane: int, first: int, count: int) -> None:
        numbers = outputs.logprob, outputs.top_logprobs, outputs.entropy, outputs.chosen_logprobs
        self.check([None if array is None else array[lane, :count] for array in numbers], first)
        if self.distributions is not None:
            self.distributions.take(outputs, lane, first, count)
        first -= self.before
        last = first + count
        self.logprobs[first:last] = outputs.logprob[lane, :count]
        self.greedy[first:last] = outputs.greedy[lane, :count]
        if self.distributions is None and outputs.top_tokens is not None and outputs.top_logprobs is not None:
            for i in range(count):
                ids, values = outputs.top_tokens[lane, i].tolist(), outputs.top_logprobs[lane, i].tolist()
                self.top_logprobs[first + i] = dict(zip(ids, values, strict=True))

    def results(self) -> dict[str, np.ndarray]:
        """Return the arrays of results by name, without `top_logprobs`."""
        arrays = {} if self.distributions is None else self.distributions.arrays()
        return {"logprobs": self.logprobs, "greedy": self.greedy, **arrays}

    def finish(self) -> None:
        super().finish()
        if self.parent is not None:
            count = len(self.parent.tokens) - self.before
            self.logprobs[:count] = self.parent.logprobs
            self.greedy[:count] = self.parent.greedy
            self.top_logprobs[:count] = [dict(top) for top in self.parent.top_logprobs]
            if self.distributions is not None and self.parent.distributions is not None:
                self.distributions.copy_from(self.parent.distributions)


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
