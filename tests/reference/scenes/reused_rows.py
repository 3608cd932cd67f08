"""Rows full of NaN from other sequences give the bits of pools of zeros."""

from typing import Any

import jax
import jax.numpy as jnp

import hybridlm
from hybridlm.steps.structure import Rows


def check_reused_rows(lm: hybridlm.LM) -> None:
    """Assert equal bits of rows with NaN, with other sequences' states, and with zeros."""
    prompts = [[5, 9, 3, 7, 11, 2, 8, 4, 6], [10, 12], [13, 14, 15, 16, 17], [18] * 11, [1], [20] * 8]
    settings: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True, "logprobs": 3}
    engine = lm.engine
    engine._pool = None
    want, scores = lm.generate(prompts, **settings), lm.score(prompts)
    assert lm.generate(prompts, **settings) == want

    def fill_with_nan() -> None:
        rows = engine.pool.take()
        layers = jax.tree.map(
            lambda leaf: jnp.full_like(leaf, jnp.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else 7), rows.layers
        )
        engine.pool.arrays = Rows(layers, jnp.full_like(rows.token, lm.config.vocab_size - 1))

    fill_with_nan()
    assert lm.generate(prompts, **settings) == want
    fill_with_nan()
    for got, expected in zip(lm.score(prompts), scores, strict=True):
        assert got.logprobs.tobytes() == expected.logprobs.tobytes()
