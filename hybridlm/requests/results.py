"""What generation and scoring return."""

import math
import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hybridlm.requests.result_html import preformatted, strip, table
from hybridlm.requests.sequence import FinishReason
from hybridlm.text.tokenizer import Tokenizer


def perplexity(sum_logprob: float, count: int) -> float:
    """exp(-sum_logprob / count); inf where that is more than a float holds, nan where nothing was counted."""
    if not count:
        return math.nan
    mean = -sum_logprob / count
    if math.isnan(mean):
        return math.nan
    return math.exp(mean) if mean < math.log(sys.float_info.max) else math.inf


def known(value: float) -> float | None:
    """The number, or None (null in a table) for nan."""
    return None if math.isnan(value) else value


@dataclass(frozen=True)
class Completion:
    """The continuation of one prompt.

    Attributes:
        text: decoded text without the stop that ended it; None where the model has no tokenizer.
        token_ids: the tokens sampled, the stop token that ended it included.
        logprobs: natural log-probability of each token before temperature, filters and processors; None where not
            asked for.
        top_logprobs: for each token, the most likely tokens at its position and their log-probabilities, best first;
            None where not asked for.
        finish_reason: "stop" (an end token or a stop string) or "length" (max_tokens, or the context is full).
        prompt_token_ids: the prompt.
        tokenizer: says in notebooks what the tokens are; neither compared nor printed nor pickled.
    """

    text: str | None
    token_ids: list[int]
    logprobs: list[float] | None
    top_logprobs: list[dict[int, float]] | None
    finish_reason: FinishReason
    prompt_token_ids: list[int]
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return _without_tokenizer(self)

    def _repr_html_(self) -> str:
        """As notebooks show it: the text, or the token ids, and a strip of the log-probabilities where asked for."""
        said = " ".join(map(str, self.token_ids)) if self.text is None else self.text
        counts = f"{len(self.prompt_token_ids):,} tokens of prompt, {len(self.token_ids):,} sampled"
        sampled = "" if self.logprobs is None else strip(self.token_ids, self.logprobs, None, self.tokenizer)
        return preformatted(said) + table([("ended by", self.finish_reason), ("tokens", counts)]) + sampled


@dataclass(frozen=True)
class Score:
    """Log-probabilities of one text under the model.

    Attributes:
        token_ids: the text's T tokens.
        logprobs: float32 [T], natural log-probability of each token given those before it; entry 0 is nan, because
            nothing predicts the first token, unless the text continues a prefix.
        greedy: bool [T], whether each token is the most likely one; where entry 0 of `logprobs` is nan, it is False.
        top_logprobs: for each token, the most likely tokens at its position, best first (empty where nothing predicts
            it); None where not asked for.
        prefix_tokens: tokens that stand before the text.
        tokenizer: says in notebooks what the tokens are; neither compared nor printed nor pickled.
    """

    token_ids: list[int]
    logprobs: np.ndarray
    greedy: np.ndarray
    top_logprobs: list[dict[int, float]] | None
    prefix_tokens: int = 0
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return _without_tokenizer(self)

    @property
    def first_predicted(self) -> int:
        """The first token that others predict: 0 behind a prefix, otherwise 1."""
        return 0 if self.prefix_tokens else 1

    @property
    def first_nan(self) -> int | None:
        """The first token that others predict and whose log-probability is not a number; None where all are."""
        if not math.isnan(self.sum_logprob):
            return None
        wrong = np.flatnonzero(np.isnan(self.logprobs[self.first_predicted :]))
        return self.first_predicted + int(wrong[0]) if wrong.size else None

    @cached_property
    def sum_logprob(self) -> float:
        """Sum over the tokens that others predict, in float64; 0 where there are none."""
        return float(np.sum(self.logprobs[self.first_predicted :], dtype=np.float64))

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability of the tokens that others predict; nan where there are none."""
        count = len(self.token_ids) - self.first_predicted
        return perplexity(self.sum_logprob, count)

    def _repr_html_(self) -> str:
        """As notebooks show it: sums, and a strip of the tokens coloured by their log-probability."""
        rows = [
            ("tokens", f"{len(self.token_ids):,}"),
            ("sum of log-probabilities", f"{self.sum_logprob:.3f}"),
            ("perplexity", f"{self.perplexity:.4g}"),
        ]
        return table(rows) + strip(self.token_ids, self.logprobs.tolist(), self.greedy.tolist(), self.tokenizer)


def _without_tokenizer(result: Completion | Score) -> dict[str, Any]:
    """What is pickled: a tokenizer is larger than most results, and the process that reads it may have its own."""
    return {**vars(result), "tokenizer": None}
