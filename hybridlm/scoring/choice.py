"""Multiple choice: likelihoods of several continuations of one context."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hybridlm.requests.results import Score
from hybridlm.scoring.items import ItemReader, own
from hybridlm.scoring.scorer import checked

By = Literal["sum", "token", "byte"]


@dataclass(frozen=True)
class Choice:
    """Options that continue one context, with their log-likelihoods.

    Attributes:
        token_ids: scored tokens of each option, which contain it.
        logprobs: float32 [T] for each option, natural.
        greedy: per option, whether every token is the most likely.
        boundary_shift: per option, tokens by which the boundary moved into the context, because a token spans both.
    """

    options: list[Any]
    token_ids: list[list[int]]
    logprobs: list[np.ndarray]
    greedy: list[bool]
    boundary_shift: list[int] = field(default_factory=list)

    @property
    def sums(self) -> list[float]:
        """Log-likelihood of each option, in float64."""
        return [float(np.sum(logprobs, dtype=np.float64)) for logprobs in self.logprobs]

    @property
    def per_token(self) -> list[float]:
        """Log-likelihood of each option per token."""
        return [total / len(ids) for total, ids in zip(self.sums, self.token_ids, strict=True)]

    @property
    def per_byte(self) -> list[float]:
        """Log-likelihood of each option per UTF-8 byte.

        Raises:
            ValueError: an option is token ids or empty.
        """
        if not all(isinstance(option, str) for option in self.options):
            raise ValueError("per byte: the options are token ids, which have no bytes; take per_token or sums")
        if "" in self.options:
            raise ValueError(f"options[{self.options.index('')}]: an empty text has no bytes; take per_token or sums")
        return [total / len(option.encode()) for total, option in zip(self.sums, self.options, strict=True)]

    def ranking(self, by: By = "sum") -> list[int]:
        """Return the indices of the options, the most likely first; ties keep their order.

        Args:
            by: "sum" (lm_eval's acc), "token" or "byte" (its acc_bytes).
        """
        measures = {"sum": lambda: self.sums, "token": lambda: self.per_token, "byte": lambda: self.per_byte}
        if by not in measures:
            raise ValueError(f"by: expected one of {', '.join(measures)}, got {by!r}")
        values = measures[by]()
        return sorted(range(len(values)), key=lambda i: -values[i])

    @property
    def best(self) -> int:
        """Index of the most likely option by sum."""
        return self.ranking()[0]


def choose(
    context: Any, options: Any, reader: ItemReader, score: Callable[[Sequence[tuple[int, ...]]], list[Score]]
) -> Choice:
    if not isinstance(options, list | tuple) or not options:
        raise TypeError(f"options: expected a list of at least one option, got {options!r}")
    pairs = [reader.pair(context, option, "context", f"options[{i}]") for i, option in enumerate(options)]
    scores = checked(score([ids.token_ids for ids in pairs]), "options[{}]".format)
    parts = [own(text, ids) for text, ids in zip(scores, pairs, strict=True)]
    return Choice(
        options=list(options),
        token_ids=[part.token_ids for part in parts],
        logprobs=[part.logprobs for part in parts],
        greedy=[bool(part.greedy.all()) for part in parts],
        boundary_shift=[part.boundary_shift for part in parts],
    )
