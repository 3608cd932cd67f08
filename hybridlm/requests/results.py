"""Results of generation and scoring, and checks that they are finite."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hybridlm.errors import NumericalError
from hybridlm.requests.captured import Captured
from hybridlm.requests.result_html import preformatted, strip, table
from hybridlm.requests.sequence import FinishReason
from hybridlm.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities of ids per token: entries `offsets[t]` to `offsets[t + 1]` for token t.

    Attributes:
        token_ids: int32 [E], ids in the token's place.
        logprobs: float32 [E], natural log-probabilities given the tokens before.
        ranks: int32 [E], rank in the vocabulary from 1; ties go to the lower id.
        offsets: int64 [T + 1]; equal neighbours for a token without entries.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    ranks: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        """Number of tokens of the text, T."""
        return len(self.offsets) - 1

    def at(self, token: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ids, log-probabilities and ranks of one token."""
        entries = slice(self.offsets[token], self.offsets[token + 1])
        return self.token_ids[entries], self.logprobs[entries], self.ranks[entries]

    def dense(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ids, log-probabilities and ranks as [T, K]; missing entries are -1, nan and 0."""
        counts = np.diff(self.offsets)
        present = np.arange(counts.max(initial=0)) < counts[:, None]
        arrays = []
        for entries, missing in ((self.token_ids, -1), (self.logprobs, np.nan), (self.ranks, 0)):
            array = np.full(present.shape, missing, entries.dtype)
            array[present] = entries
            arrays.append(array)
        ids, logprobs, ranks = arrays
        return ids, logprobs, ranks

    def __repr__(self) -> str:
        return f"TokenLogprobs({len(self)} tokens, {len(self.token_ids)} entries)"

    def after(self, tokens: int) -> "TokenLogprobs":
        first = self.offsets[tokens]
        ids, logprobs, ranks = (array[first:] for array in (self.token_ids, self.logprobs, self.ranks))
        return TokenLogprobs(ids, logprobs, ranks, self.offsets[tokens:] - first)


def perplexity(sum_logprob: float, count: int) -> float | None:
    """Return exp(-sum_logprob / count); None for count 0 or an overflow."""
    mean = -sum_logprob / count if count else math.inf
    return math.exp(mean) if mean < math.log(sys.float_info.max) else None


PromptLogprobs = list[dict[int, float] | None]
"""Log-probabilities by id for each prompt token; None for the first."""


@dataclass(frozen=True)
class Completion:
    """The completion of one prompt.

    Attributes:
        text: decoded text without its stop; None without a tokenizer.
        token_ids: sampled tokens, including the stop token.
        logprobs: natural log-probabilities before temperature, filters and processors; nan for an end marker set by the
            thinking budget; None unless requested.
        top_logprobs: per token, the most likely tokens, best first; None unless requested.
        finish_reason: "stop" (end token or stop string), "length" (max_tokens or full context) or "cancelled".
        tokenizer: for notebooks; not compared, printed or pickled.
        reasoning: thoughts before the answer, or None.
        answer: text without thoughts and markers; None without a tokenizer.
        captured: hidden states and states, if requested; not compared.
        seed: None for temperature 0; not compared.
        prompt_logprobs: per prompt token, log-probabilities by id, if requested.
    """

    text: str | None
    token_ids: list[int]
    logprobs: list[float] | None
    top_logprobs: list[dict[int, float]] | None
    finish_reason: FinishReason
    prompt_token_ids: list[int]
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False)
    reasoning: str | None = None
    answer: str | None = None
    captured: Captured | None = field(default=None, compare=False)
    seed: int | None = field(default=None, compare=False)
    prompt_logprobs: PromptLogprobs | None = None

    def __getstate__(self) -> dict[str, Any]:
        return _without_tokenizer(self)

    @property
    def sum_logprob(self) -> float | None:
        """Sum of `logprobs` in float64 without nan; None unless requested."""
        return None if self.logprobs is None else math.fsum(x for x in self.logprobs if not math.isnan(x))

    @property
    def top(self) -> TokenLogprobs | None:
        """`top_logprobs` as flat arrays; None unless requested."""
        if self.top_logprobs is None:
            return None
        counts = [len(best) for best in self.top_logprobs]
        return TokenLogprobs(
            np.array([token for best in self.top_logprobs for token in best], np.int32),
            np.array([logprob for best in self.top_logprobs for logprob in best.values()], np.float32),
            np.array([rank for count in counts for rank in range(1, count + 1)], np.int32),
            np.cumsum([0, *counts]),
        )

    def _repr_html_(self) -> str:
        text = " ".join(map(str, self.token_ids)) if self.text is None else self.text
        counts = f"{len(self.prompt_token_ids):,} tokens of prompt, {len(self.token_ids):,} sampled"
        sampled = "" if self.logprobs is None else strip(self.token_ids, self.logprobs, None, self.tokenizer)
        return preformatted(text) + table([("ended by", self.finish_reason), ("tokens", counts)]) + sampled


@dataclass(frozen=True)
class Score:
    """Log-probabilities of one text under the model.

    Attributes:
        token_ids: the text's T tokens.
        logprobs: float32 [T], natural, given the tokens before; entry 0 is nan unless the text continues a prefix.
        greedy: bool [T], whether each token is the most likely; False without a prediction.
        top_logprobs: per token, the most likely tokens, best first (empty without a prediction); None unless requested.
        prefix_tokens: tokens before the text.
        boundary_shift: tokens of the prompt in `token_ids`, because a token spans prompt and completion.
        ranks: int32 [T], rank from 1; 0 without a prediction or before `start`; None, as all below, unless
            distributions were requested.
        entropy: float32 [T], in nats; nan where `ranks` is 0.
        top, chosen: the most likely ids, best first, and the chosen ids, per token.
        captured, tokenizer: as for `Completion`.
        first_wrong: first position without finite numbers; None in every score of `LM.score`.
    """

    token_ids: list[int]
    logprobs: np.ndarray
    greedy: np.ndarray
    top_logprobs: list[dict[int, float]] | None
    prefix_tokens: int = 0
    ranks: np.ndarray | None = None
    entropy: np.ndarray | None = None
    top: TokenLogprobs | None = None
    chosen: TokenLogprobs | None = None
    captured: Captured | None = field(default=None, compare=False)
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False)
    boundary_shift: int = 0
    first_wrong: int | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return _without_tokenizer(self)

    @property
    def first_predicted(self) -> int:
        """Index of the first predicted token: 0 after a prefix, otherwise 1."""
        return 0 if self.prefix_tokens else 1

    @cached_property
    def sum_logprob(self) -> float:
        """Sum over predicted tokens in float64; 0 without any."""
        return float(np.sum(self.logprobs[self.first_predicted :], dtype=np.float64))

    @property
    def perplexity(self) -> float | None:
        count = len(self.token_ids) - self.first_predicted
        return perplexity(self.sum_logprob, count)

    def _repr_html_(self) -> str:
        rows = [
            ("tokens", f"{len(self.token_ids):,}"),
            ("sum of log-probabilities", f"{self.sum_logprob:.3f}"),
            ("perplexity", "none" if self.perplexity is None else f"{self.perplexity:.4g}"),
        ]
        return table(rows) + strip(self.token_ids, self.logprobs.tolist(), self.greedy.tolist(), self.tokenizer)


def _without_tokenizer(result: Completion | Score) -> dict[str, Any]:
    """Return the pickled fields: the tokenizer is larger than most results."""
    return {**vars(result), "tokenizer": None}


def first_not_finite(arrays: Sequence[Any]) -> int | None:
    """Return the first position with NaN or infinity in arrays [position, ..]."""
    masks = [np.isfinite(array) for array in arrays if array is not None]
    positions = [np.flatnonzero(~mask.all(axis=tuple(range(1, mask.ndim)))) for mask in masks]
    return min((int(indices[0]) for indices in positions if indices.size), default=None)


def require_finite(wrong: Mapping[int, int], item: Callable[[int], str]) -> None:
    """Raise NumericalError for the first item of `wrong`, by index of its bad token."""
    for number, token in sorted(wrong.items()):
        raise NumericalError(item(number), token)
