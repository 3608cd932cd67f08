"""Equality with transformers: a tolerance per family, and exceptions at near ties."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

QWEN_TOLERANCE = 2e-3
TOLERANCES = {
    "qwen3_next": QWEN_TOLERANCE, "qwen3_5": QWEN_TOLERANCE, "qwen3_5_moe": QWEN_TOLERANCE, "lfm2": 5e-5,
    "qwen4_exp": 2e-4,
    "lfm2_moe": 5e-5, "lfm3": 1e-4, "lara_mini": QWEN_TOLERANCE, "kimi_linear": 3e-4, "bailing_hybrid": 3e-4,
    "minimax": 1e-4, "olmo_hybrid": 3e-4, "mamba": 5e-5, "falcon_mamba": 5e-5, "jamba": 3e-4, "mamba2": 5e-5,
    "nemotron_h": 5e-5, "granitemoehybrid": 5e-4, "bamba": 3e-4, "falcon_h1": 3e-4, "zamba2": 1e-3,
    "gigachat3_5": 1e-3, "alice_ai": QWEN_TOLERANCE,
}  # fmt: skip
"""Absolute, on float32 logits of the tiny models, by family: about five times the noise that one rounding of the
embeddings makes in the oracle itself. It is large where the gated norm of a delta net amplifies small recurrent
outputs."""


class Greedy(NamedTuple):
    """Greedy `tokens` int[T] and `margins` float[T]: best minus second logit."""

    tokens: np.ndarray
    margins: np.ndarray


def check_logits(array: np.ndarray, expected: np.ndarray, where: str, tolerance: float) -> int:
    """Assert `[T, V]` logits within tolerance, and equal best tokens except near ties.

    Returns the number of positions with different best tokens at near ties.
    """
    assert array.shape == expected.shape, f"{where}: logits of shape {array.shape}, expected {expected.shape}"
    assert array.dtype == np.float32, f"{where}: logits are {array.dtype}, expected float32"
    worst = np.abs(array - expected).max()
    assert worst <= tolerance, f"{where}: logits differ by {worst:.1e}, tolerance {tolerance}"
    differ = array.argmax(axis=-1) != expected.argmax(axis=-1)
    best = np.sort(expected, axis=-1)[:, -2:]
    margins = best[:, 1] - best[:, 0]
    assert (margins[differ] < tolerance).all(), f"{where}: another best token at {np.flatnonzero(differ)}"
    return int(differ.sum())


def check_logprobs(array: np.ndarray, expected: np.ndarray, where: str, tolerance: float) -> None:
    """Assert equal log-probabilities `[T]`; the first is nan on both sides."""
    assert array.shape == expected.shape, f"{where}: log-probabilities of shape {array.shape}, not {expected.shape}"
    # A log-probability is a difference of two numbers that are each as exact as a logit.
    np.testing.assert_allclose(array, expected, rtol=0, atol=2 * tolerance, equal_nan=True, err_msg=where)


def check_greedy(actual: Sequence[int], expected: Greedy, where: str, tolerance: float) -> int:
    """Assert equal tokens up to the first near tie; return 1 after a difference."""
    tokens, margins = expected
    assert len(actual) == len(tokens), f"{where}: {len(actual)} tokens, expected {len(tokens)}"
    differ = np.flatnonzero(np.asarray(actual) != tokens)
    if not differ.size:
        return 0
    first = int(differ[0])
    assert margins[first] < tolerance, (
        f"{where}: token {first} is {actual[first]}, transformers chose {tokens[first]} by {margins[first]:.4f}, "
        f"which is no near tie (tolerance {tolerance})"
    )
    return 1


def padded(prompts: Sequence[Sequence[int]]) -> np.ndarray:
    """Return int32[N, T] prompts padded with zeros; causal logits ignore them."""
    tokens = np.zeros((len(prompts), max(map(len, prompts))), dtype=np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    return tokens


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log-probabilities along the last axis in float64."""
    logits = np.asarray(logits, np.float64)
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))


def log_probabilities(logits: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """float64[T]: the log-probability of each token given those before it; entry 0 is nan."""
    chosen = log_softmax(logits)[np.arange(len(tokens) - 1), np.asarray(tokens[1:], dtype=np.int64)]
    return np.concatenate([[np.nan], chosen])


def kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return the Kullback-Leibler divergence of q from p, log-probabilities [..., token], in the dtype given."""
    with np.errstate(invalid="ignore"):
        return np.where(p == -np.inf, 0.0, np.exp(p) * (p - q)).sum(-1)


def js(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return the Jensen-Shannon divergence, as `kl`."""
    with np.errstate(divide="ignore"):
        mean = np.log((np.exp(p) + np.exp(q)) / 2)
    return (kl(p, mean) + kl(q, mean)) / 2
