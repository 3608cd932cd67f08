"""Attention over depth against float64: a softmax over the sources of each token."""

import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled, random_values
from flax import nnx

from models.decoder.streams import SourceMix

HIDDEN, EPS = 12, 1e-6


@pytest.mark.parametrize("sources", [1, 2, 5])
def test_mix_as_float64(sources: int) -> None:
    mix = filled(lambda: SourceMix(HIDDEN, EPS, nnx.Rngs(0)), random_values(0))
    x = 3 * np.random.default_rng(sources).normal(size=(2, 3, sources, HIDDEN)).astype(np.float32)
    query, weight = np.asarray(mix.query[...], np.float64)[0], np.asarray(mix.norm.weight[...], np.float64)
    want = np.zeros((2, 3, HIDDEN))
    for lane in range(2):
        for token in range(3):
            rows = x[lane, token].astype(np.float64)
            scores = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + EPS) * weight @ query
            shares = np.exp(scores - scores.max())
            want[lane, token] = shares / shares.sum() @ rows
    mixed = mix(jnp.asarray(x))
    np.testing.assert_allclose(mixed, want, rtol=0, atol=1e-5)
    if sources == 1:
        np.testing.assert_allclose(mixed, x[:, :, 0], rtol=1e-6)
