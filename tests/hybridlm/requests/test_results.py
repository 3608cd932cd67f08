"""Sums and perplexities of scores: in float64, None if they overflow or nothing counts."""

import math

import numpy as np
import pytest

from hybridlm import Score
from hybridlm.requests.results import first_not_finite, perplexity


def score(*logprobs: float) -> Score:
    values = np.array([math.nan, *logprobs], np.float32)
    return Score(list(range(len(values))), values, np.zeros(len(values), bool), None)


def test_the_sum_is_in_float64() -> None:
    """The small terms would vanish next to the large one in float32."""
    values = [-(2.0**24)] + [-0.5] * 1000
    assert score(*values).sum_logprob == -(2.0**24) - 500
    rng = np.random.default_rng(0)
    random = rng.normal(-3, 1, 10000).astype(np.float32)
    assert score(*random).sum_logprob == pytest.approx(math.fsum(random.tolist()), rel=1e-14)
    assert type(score(-1.0).sum_logprob) is float


def test_perplexity() -> None:
    assert score(*[math.log(0.25)] * 7).perplexity == pytest.approx(4, rel=1e-6)
    assert score(-1.0, -3.0).perplexity == pytest.approx(math.exp(2))
    assert score(0.0).perplexity == 1
    assert type(score(-1.0).perplexity) is float


def test_a_single_token_has_no_perplexity() -> None:
    assert score().sum_logprob == 0
    assert score().perplexity is None
    assert perplexity(0.0, 0) is None


def test_a_perplexity_beyond_a_float_is_none() -> None:
    assert score(-709.0).perplexity == pytest.approx(math.exp(709))
    assert score(-710.0).perplexity is None
    assert perplexity(-1e300, 1) is None
    assert perplexity(-1e5, 1000) == pytest.approx(math.exp(100))


def test_the_first_place() -> None:
    good, bad = np.zeros((4, 2), np.float32), np.zeros((4, 2), np.float32)
    bad[3, 1], bad[2, 0] = np.nan, -np.inf
    assert first_not_finite([good, None, good[:, 0]]) is None
    assert first_not_finite([good, bad]) == 2 and first_not_finite([bad[3:, 1]]) == 0
    assert first_not_finite([]) is None and first_not_finite([np.zeros((0, 3))]) is None
    assert first_not_finite([np.zeros((2, 0))]) is None
