"""LFM2's short convolution: its equation, chunked equality, and its whole state."""

import jax
import numpy as np
import pytest
from filled import filled
from flax import nnx
from mixer_lanes import check_lengths, run

from models.mixers.gated_short_conv import GatedShortConvConfig

HIDDEN = 6


def layer(kernel: int):
    rng = np.random.default_rng(kernel)
    build = GatedShortConvConfig(kernel, HIDDEN).build
    return filled(
        lambda: build(HIDDEN, nnx.Rngs(0)),
        lambda _, shape: rng.normal(size=shape).astype(np.float32) / shape[-1] ** 0.5,
    )


@pytest.mark.parametrize("kernel", [2, 3])
def test_steps_equal_single_tokens_at_every_length(kernel: int) -> None:
    check_lengths(layer(kernel), HIDDEN, (1, 2, 3, 4, 9), 1e-5, {"conv": 1e-5})


def test_equals_its_equation_in_float64() -> None:
    mixer, rng = layer(3), np.random.default_rng(0)
    x = rng.normal(size=(1, 5, HIDDEN)).astype(np.float32)
    state = mixer.init_state(1, 8, np.float32)
    out, new = jax.device_get(run(mixer, x, np.array([5], np.int32), np.array([0], np.int32), state, 0))
    in_proj, taps, out_proj = (np.asarray(w[...], np.float64) for w in (mixer.in_proj, mixer.conv, mixer.out_proj))
    b, c, u = np.split(x[0].astype(np.float64) @ in_proj.T, 3, axis=-1)
    history = np.concatenate([np.zeros((2, HIDDEN)), b * u])
    mixed = np.stack([(history[t : t + 3] * taps[:, 0].T).sum(axis=0) for t in range(5)])
    np.testing.assert_allclose(out[0], (c * mixed) @ out_proj.T, atol=1e-5)
    np.testing.assert_allclose(new.conv[0], history[-2:], atol=1e-5)
