"""Two runs with equal samples except at near ties."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hybridlm


def check_same_samples(
    lm: hybridlm.LM,
    completions: Sequence[hybridlm.Completion],
    expected: Sequence[hybridlm.Completion],
    settings: dict[str, Any],
    tolerance: float,
) -> int:
    """Assert equal completions up to a token with nearly tied best logits.

    Logits of sampled tokens include the noise.

    Args:
        lm: the model.
        completions, expected: completions by the number of the prompt.
        settings: of both; temperature and seed are the only ones that change samples.
        tolerance: of logits.

    Returns:
        How many completions differ from some token on.
    """
    differ = 0
    for index, (completion, other) in enumerate(zip(completions, expected, strict=True)):
        assert len(completion.token_ids) == len(other.token_ids)
        places = np.flatnonzero(np.array(completion.token_ids) != np.array(other.token_ids))
        if places.size:
            best = np.sort(perturbed(lm, other, int(places[0]), settings, index))[-2:]
            margin = float(best[1] - best[0])
            assert margin < tolerance, f"request {index}: token {places[0]} differs, margin {margin:.2g}"
            differ += 1
    return differ


def perturbed(
    lm: hybridlm.LM, completion: hybridlm.Completion, place: int, settings: dict[str, Any], index: int
) -> np.ndarray:
    """The noisy logits with the completion's token at a place as maximum."""
    initial = [*completion.prompt_token_ids, *completion.token_ids[:place]]
    logits = np.asarray(lm.forward(initial).logits[-1])
    temperature, seed = settings.get("temperature", 0.0), settings.get("seed", 0)
    if not temperature:
        return logits
    words = jnp.array([seed >> 32, seed & 0xFFFFFFFF], jnp.uint32)
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    key = jax.random.fold_in(jax.random.fold_in(key, index), len(initial))
    return logits + temperature * np.asarray(jax.random.gumbel(key, logits.shape, np.float32))
