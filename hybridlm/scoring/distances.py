"""Distances between two models on texts."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ir_passes import Certificate


@dataclass(frozen=True)
class Divergence:
    """Distance between two models on texts.

    Entries `offsets[i]` to `offsets[i + 1]` belong to text i.

    An entry compares the distributions over the whole vocabulary at one token. Nothing predicts the first token of a
    text: its numbers are nan, and its `same_top` is False.

    Attributes:
        token_ids: int32 [E], the tokens of all texts.
        kl: float32 [E], KL(P || Q) in nats, where P is this model's distribution, Q the other model's.
        reverse_kl: float32 [E], KL(Q || P) in nats.
        js: float32 [E], Jensen-Shannon divergence in nats, at most log 2.
        same_top: bool [E], whether both have the same most likely token.
        offsets: int64 [texts + 1].
        certificate: certificate of the comparing step; None without a step.
    """

    token_ids: np.ndarray
    kl: np.ndarray
    reverse_kl: np.ndarray
    js: np.ndarray
    same_top: np.ndarray
    offsets: np.ndarray
    certificate: Certificate | None = field(default=None, repr=False, compare=False)

    @cached_property
    def predicted(self) -> np.ndarray:
        """Indices of the entries of predicted tokens: all but the first of each text."""
        first = np.zeros(len(self.token_ids), bool)
        first[self.offsets[:-1]] = True
        return np.flatnonzero(~first)

    @property
    def mean_kl(self) -> float | None:
        """Mean of `kl` over the predicted tokens, in float64; None without any."""
        return self._mean(self.kl)

    @property
    def mean_reverse_kl(self) -> float | None:
        """Mean of `reverse_kl` over the predicted tokens."""
        return self._mean(self.reverse_kl)

    @property
    def mean_js(self) -> float | None:
        """Mean of `js` over the predicted tokens."""
        return self._mean(self.js)

    @property
    def agreement(self) -> float | None:
        """Share of the predicted tokens with the same most likely token in both models."""
        return self._mean(self.same_top)

    def of(self, text: int) -> dict[str, Any]:
        """Return the arrays of one text, and the means over its predicted tokens."""
        span = slice(int(self.offsets[text]), int(self.offsets[text + 1]))
        arrays = {name: getattr(self, name)[span] for name in ("token_ids", "kl", "reverse_kl", "js", "same_top")}
        single = Divergence(**arrays, offsets=np.array([0, span.stop - span.start]))
        means = {"mean_kl": single.mean_kl, "mean_reverse_kl": single.mean_reverse_kl, "mean_js": single.mean_js}
        return {**arrays, **means, "agreement": single.agreement}

    def _mean(self, values: np.ndarray) -> float | None:
        return float(np.mean(values[self.predicted], dtype=np.float64)) if len(self.predicted) else None
