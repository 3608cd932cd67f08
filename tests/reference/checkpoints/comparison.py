"""Equality with transformers: a tolerance per family, and tokens that may differ only at near ties."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

QWEN_TOLERANCE = 2e-3
TOLERANCES = {
    "qwen3_next": QWEN_TOLERANCE,
    "qwen3_5": QWEN_TOLERANCE,
    "qwen3_5_moe": QWEN_TOLERANCE,
    "lfm2": 5e-5,
    "lfm2_moe": 5e-5,
    "kimi_linear": 3e-4,
    "bailing_hybrid": 3e-4,
    "olmo_hybrid": 3e-4,
    "mamba": 5e-5,
    "falcon_mamba": 5e-5,
    "jamba": 3e-4,
    "mamba2": 5e-5,
    "nemotron_h": 5e-5,
    "granitemoehybrid": 5e-4,
    "bamba": 3e-4,
    "falcon_h1": 3e-4,
}
"""Absolute, on float32 logits of the tiny models, by family: about five times the noise that one rounding of the
embeddings makes in the oracle itself. It is large where the gated norm of a delta net amplifies small recurrent
outputs."""


class Greedy(NamedTuple):
    """`tokens` int[T] chosen greedily, and `margins` float[T]: best logit minus second best at each of them."""

    tokens: np.ndarray
    margins: np.ndarray


def check_logits(found: np.ndarray, expected: np.ndarray, where: str, tolerance: float) -> int:
    """Asserts `[T, V]` logits within the tolerance and the same best token at every position that is no near tie.

    Returns the number of positions whose best token differs at a near tie.
    """
    assert found.shape == expected.shape, f"{where}: logits of shape {found.shape}, expected {expected.shape}"
    assert found.dtype == np.float32, f"{where}: logits are {found.dtype}, expected float32"
    worst = np.abs(found - expected).max()
    assert worst <= tolerance, f"{where}: logits differ by {worst:.1e}, tolerance {tolerance}"
    differ = found.argmax(axis=-1) != expected.argmax(axis=-1)
    best = np.sort(expected, axis=-1)[:, -2:]
    margins = best[:, 1] - best[:, 0]
    assert (margins[differ] < tolerance).all(), f"{where}: another best token at {np.flatnonzero(differ)}"
    return int(differ.sum())


def check_logprobs(found: np.ndarray, expected: np.ndarray, where: str, tolerance: float) -> None:
    """Asserts the log-probabilities `[T]` of a sequence, whose first entry is nan on both sides."""
    assert found.shape == expected.shape, f"{where}: log-probabilities of shape {found.shape}, not {expected.shape}"
    # A log-probability is a difference of two numbers that are each as exact as a logit.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2 * tolerance, equal_nan=True, err_msg=where)


def check_greedy(found: Sequence[int], expected: Greedy, where: str, tolerance: float) -> int:
    """Asserts equal tokens up to the first near tie of the oracle; returns 1 if they differ from there on, else 0."""
    tokens, margins = expected
    assert len(found) == len(tokens), f"{where}: {len(found)} tokens, expected {len(tokens)}"
    differ = np.flatnonzero(np.asarray(found) != tokens)
    if not differ.size:
        return 0
    first = int(differ[0])
    assert margins[first] < tolerance, (
        f"{where}: token {first} is {found[first]}, transformers chose {tokens[first]} by {margins[first]:.4f}, "
        f"which is no near tie (tolerance {tolerance})"
    )
    return 1


def padded(prompts: Sequence[Sequence[int]]) -> np.ndarray:
    """int32[N, T]: the prompts, zeros behind them, on which a causal model's logits do not depend."""
    tokens = np.zeros((len(prompts), max(map(len, prompts))), dtype=np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    return tokens
