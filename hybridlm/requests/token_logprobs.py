"""Log-probabilities of several ids at each position of a text, as flat arrays."""

from dataclasses import dataclass

import numpy as np


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
