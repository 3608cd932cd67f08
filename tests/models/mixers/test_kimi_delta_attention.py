"""Kimi Delta Attention: chunked equality, and both forms of decay."""

import jax
import numpy as np
import pytest
from filled import filled, random_values
from flax import nnx
from mixer_lanes import check_lengths, recurrence_lengths

from models.mixers.kimi_delta_attention import KimiDeltaAttention, KimiDeltaAttentionConfig

HIDDEN, KERNEL = 10, 4
LENGTHS = recurrence_lengths(KERNEL)
PLAIN = KimiDeltaAttentionConfig(2, 5, KERNEL, 1e-5, bottleneck=3)
BOUNDED = KimiDeltaAttentionConfig(3, 4, KERNEL, 1e-6, bottleneck=None, lower_bound=-5.0)


def layer(config: KimiDeltaAttentionConfig) -> KimiDeltaAttention:
    return filled(lambda: config.build(HIDDEN, nnx.Rngs(0)), random_values(config.heads))


@pytest.mark.slow
@pytest.mark.parametrize("config", [PLAIN, pytest.param(BOUNDED, marks=pytest.mark.long)])
def test_chunks_equal_single_tokens_at_every_length(config: KimiDeltaAttentionConfig) -> None:
    # the gated norm divides by the size of small outputs
    check_lengths(layer(config), HIDDEN, LENGTHS, 5e-4, {"conv": 1e-6, "recurrent": 2e-5})


@pytest.mark.parametrize("config", [PLAIN, BOUNDED])
def test_decay_is_its_formula(config: KimiDeltaAttentionConfig) -> None:
    mixer, c = layer(config), config
    x = np.random.default_rng(1).normal(size=(2, 3, HIDDEN)).astype(np.float32) * 3
    result = np.asarray(jax.jit(lambda mixer, x: mixer.log_decay(x))(mixer, x))
    f = x.astype(np.float64)
    for matrix in (mixer.decay.down, mixer.decay.up):
        f = f if matrix is None else f @ np.asarray(matrix[...], np.float64).T
    f = (f + np.asarray(mixer.dt_bias[...])).reshape(2, 3, c.heads, c.head_size)
    rate = np.exp(np.asarray(mixer.A_log[...], np.float64))[:, None]
    expected = -rate * np.logaddexp(0, f) if c.lower_bound is None else c.lower_bound / (1 + np.exp(-rate * f))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    assert (result <= 0).all()
