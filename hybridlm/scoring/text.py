"""A text while it is scored: progress, results, and storage for interrupted runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import numpy as np

from hybridlm.engine.prefix import Prefix
from hybridlm.engine.widths import next_width
from hybridlm.files.finished import FinishedTexts
from hybridlm.requests.captured import Recorder
from hybridlm.requests.finite import first_not_finite
from hybridlm.requests.probes import Probe
from hybridlm.rows.snapshot import Snapshot
from hybridlm.scoring.distributions import Question, TextQuestion
from hybridlm.scoring.text_distributions import TextDistributions
from hybridlm.steps.operands import Feed
from hybridlm.steps.score import Scored
from ir_passes.host.slot_owner import Slot


@dataclass(eq=False)
class QueuedText:
    """A text or shared prefix, with a lane while it is prefilled.

    Attributes:
        index: number in its call; None for a shared prefix.
        tokens: token ids, with `prefix`; the last is not prefilled.
        prefix: user's prefix; results begin behind it.
        parent: shared prefix, with the results of the first tokens.
        consumed: tokens of the state after all dispatched steps.
        snapshot: state after a shared prefix, while texts wait for it.
        children: texts and prefixes that wait for a shared prefix.
        first_wrong: first token with results that are not finite, or None.
    """

    index: int | None
    tokens: tuple[int, ...]
    prefix: Prefix | None = None
    parent: Self | None = None
    consumed: int = 0
    slot: Slot | None = None
    snapshot: Snapshot | None = None
    children: list[Self] = field(default_factory=list)
    probe: Probe | None = None
    recorder: Recorder | None = None
    first_wrong: int | None = None

    @property
    def copies(self) -> "Sequence[QueuedText]":
        """The text in the rows of each model."""
        return (self,)

    @property
    def before(self) -> int:
        return 0 if self.prefix is None else len(self.prefix)

    @property
    def end(self) -> int:
        """Number of tokens to prefill: all but the last, unless the probe reads it."""
        last = len(self.tokens) - 1
        return last + 1 if self.probe is not None and self.probe.reads(last) else last

    @property
    def done(self) -> bool:
        """Whether every token that is prefilled has been."""
        return self.consumed >= self.end

    @property
    def start(self) -> Snapshot | None:
        """State that it continues, or None."""
        if self.parent is not None:
            return self.parent.snapshot
        return None if self.prefix is None else self.prefix.snapshot

    def width(self, widths: tuple[int, ...]) -> int:
        """Return the width of the next step among descending `widths`."""
        return next_width(self.end - self.consumed, widths)

    def feed(self, width: int) -> Feed:
        """Return the next tokens to prefill, at most `width`."""
        end = min(self.end, self.consumed + width)
        if self.probe is not None:
            end = self.probe.stop(self.consumed, end)
        return Feed(self.tokens[self.consumed : end], self.consumed)

    def take(self, outputs: Any, lane: int, first: int, count: int) -> None:
        """Store a step's results, NumPy arrays, for `count` tokens."""
        raise NotImplementedError

    def results(self) -> dict[str, np.ndarray]:
        """Return the arrays of results by name, to store or to fill."""
        raise NotImplementedError

    def finish(self) -> None:
        """Copy the first tokens' results from the shared prefix, after all steps."""
        if self.parent is not None and self.parent.first_wrong is not None:
            self.first_wrong = self.parent.first_wrong

    def check(self, arrays: Sequence[Any], first: int) -> None:
        """Record the first token, counted from `first`, without finite results in arrays [token, ..]."""
        wrong = first_not_finite(arrays)
        self.mark_wrong(None if wrong is None else first + wrong)

    def mark_wrong(self, token: int | None) -> None:
        """Record the index of a token without finite results; None for none."""
        if token is not None and (self.first_wrong is None or token < self.first_wrong):
            self.first_wrong = token


T = TypeVar("T", bound=QueuedText)


@dataclass(eq=False)
class ScoredText(QueuedText):
    """A text with a score for each token.

    Attributes:
        logprobs: float32 [T]; NaN for a first token without a prefix.
        greedy: bool [T]; False for that token.
        top_logprobs: per token, the most likely tokens; empty for that token.
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
        """Store a step's results, NumPy arrays, for `count` tokens from `first` on."""
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
        """Copy the results of the first tokens from the shared prefix, after all steps."""
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
    """Return the finished texts of an earlier run, by number.

    Args:
        call: of the scorer.
        make: number -> text without results.

    Raises:
        ValueError: stored results of other texts.
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
    """Add the results of a finished text."""
    assert text.index is not None, "results of a shared prefix belong to its texts"
    wrong = np.full(1, -1 if text.first_wrong is None else text.first_wrong, np.int64)
    finished.add(call, text.index, {**text.results(), "first_wrong": wrong})
