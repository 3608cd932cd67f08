"""Results of generation and scoring."""

import math
import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hybridlm.requests.captured import Captured
from hybridlm.requests.result_html import preformatted, strip, table
from hybridlm.requests.sequence import FinishReason
from hybridlm.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities of ids per token: entries `offsets[t]` to `offsets[t + 1]` for token t.

    Attributes:
        token_ids: int32 [E], ids that could stand in the place of the token.
        logprobs: float32 [E], natural log-probability of each, given the tokens before that place.
        ranks: int32 [E], its place among all tokens of the vocabulary; the most likely one is 1, and of equally likely
            ones the lower id comes first.
        offsets: int64 [T + 1]; a token without entries has two equal ones.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    ranks: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        """Number of tokens of the text, T."""
        return len(self.offsets) - 1

    def at(self, token: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ids, log-probabilities and ranks of one token's place."""
        entries = slice(self.offsets[token], self.offsets[token + 1])
        return self.token_ids[entries], self.logprobs[entries], self.ranks[entries]

    def dense(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ids, log-probabilities and ranks [T, K], K entries at most per token.

        Missing entries have id -1, log-probability nan and rank 0.
        """
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
        """Return the entries of the tokens behind the first ones."""
        first = self.offsets[tokens]
        ids, logprobs, ranks = (array[first:] for array in (self.token_ids, self.logprobs, self.ranks))
        return TokenLogprobs(ids, logprobs, ranks, self.offsets[tokens:] - first)


def perplexity(sum_logprob: float, count: int) -> float | None:
    """Return exp(-sum_logprob / count); None if nothing was counted, or if that overflows a float."""
    mean = -sum_logprob / count if count else math.inf
    return math.exp(mean) if mean < math.log(sys.float_info.max) else None


PromptLogprobs = list[dict[int, float] | None]
"""For each token of a prompt its log-probability and the most likely tokens' by id; None for the first token."""


@dataclass(frozen=True)
class Completion:
    """The completion of one prompt.

    Attributes:
        text: decoded text without the stop that ended it; None if the model has no tokenizer.
        token_ids: the sampled tokens, including the stop token that ended it.
        logprobs: natural log-probability of each token before temperature, filters and processors, nan for an end
            marker that the thinking budget has set; None unless requested.
        top_logprobs: for each token, the most likely tokens at its position and their log-probabilities, best first;
            None unless requested.
        finish_reason: "stop" (an end token or a stop string), "length" (max_tokens, or the context is full) or
            "cancelled".
        prompt_token_ids: the prompt.
        tokenizer: renders tokens in notebooks; neither compared nor printed nor pickled.
        reasoning: the thoughts, if the model thought before its answer; None otherwise.
        answer: the text without the thoughts and their markers; None if the model has no tokenizer.
        captured: hidden states and states, if they were asked for; not compared.
        seed: the given or drawn seed of its random numbers; None if the temperature is 0. Not compared.
        prompt_logprobs: for each token of the prompt a dict of the most likely tokens, best first, and the token itself
            with their log-probabilities; None for the first token, which nothing predicts. None unless requested, and
            of a request that was cancelled before its first step.
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
        """`top_logprobs` as flat arrays; `top.dense()` has arrays [token, K]. None unless requested."""
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
        """Render for notebooks: text or token ids, and a strip of log-probabilities."""
        text = " ".join(map(str, self.token_ids)) if self.text is None else self.text
        counts = f"{len(self.prompt_token_ids):,} tokens of prompt, {len(self.token_ids):,} sampled"
        sampled = "" if self.logprobs is None else strip(self.token_ids, self.logprobs, None, self.tokenizer)
        return preformatted(text) + table([("ended by", self.finish_reason), ("tokens", counts)]) + sampled


@dataclass(frozen=True)
class Score:
    """Log-probabilities of one text under the model.

    Attributes:
        token_ids: the text's T tokens.
        logprobs: float32 [T], natural log-probability of each token given those before it; entry 0 is nan, because
            nothing predicts the first token, unless the text continues a prefix.
        greedy: bool [T], whether each token is the most likely one; False if entry 0 of `logprobs` is nan.
        top_logprobs: for each token, the most likely tokens at its position, best first (empty without a prediction);
            None unless requested.
        prefix_tokens: number of tokens before the text.
        boundary_shift: number of tokens of the prompt behind the moved boundary, because a token spans prompt and
            completion; `token_ids` then begins within the prompt. 0 for a text without a prompt.
        ranks: int32 [T], place of each token among all, the most likely one is 1; 0 without a prediction, or before
            `start`. None unless something was asked about the distributions, as all below.
        entropy: float32 [T], entropy of the distribution in each token's place, in nats; nan where `ranks` is 0.
        top, chosen: the most likely ids, best first, and the chosen ones, in the place of each token.
        captured: hidden states and states, if they were asked for; not compared.
        tokenizer: renders tokens in notebooks; neither compared nor printed nor pickled.
        first_wrong: index of the first token without finite numbers, counted from the first token that the model reads;
            None for every score that `LM.score` returns.
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
        """Index of the first token with a prediction: 0 after a prefix, otherwise 1."""
        return 0 if self.prefix_tokens else 1

    @cached_property
    def sum_logprob(self) -> float:
        """Sum over the predicted tokens, in float64; 0 without any."""
        return float(np.sum(self.logprobs[self.first_predicted :], dtype=np.float64))

    @property
    def perplexity(self) -> float | None:
        """exp of the mean negative log-probability of the predicted tokens; see `perplexity`."""
        count = len(self.token_ids) - self.first_predicted
        return perplexity(self.sum_logprob, count)

    def _repr_html_(self) -> str:
        """Render for notebooks: sums, and a strip of the tokens coloured by their log-probability."""
        rows = [
            ("tokens", f"{len(self.token_ids):,}"),
            ("sum of log-probabilities", f"{self.sum_logprob:.3f}"),
            ("perplexity", "none" if self.perplexity is None else f"{self.perplexity:.4g}"),
        ]
        return table(rows) + strip(self.token_ids, self.logprobs.tolist(), self.greedy.tolist(), self.tokenizer)


def _without_tokenizer(result: Completion | Score) -> dict[str, Any]:
    """Return the pickled fields: all except the tokenizer, larger than most results."""
    return {**vars(result), "tokenizer": None}
