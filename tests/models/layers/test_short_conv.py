"""The short convolution against its definition, its tail at every length, and idle lanes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.layers.short_conv import short_conv

CHANNELS = 6
run = jax.jit(short_conv)


@pytest.mark.parametrize("kernel", [2, 3, 4])
@pytest.mark.parametrize("tokens", [1, 2, 3, 5])
def test_equals_its_definition_at_every_length(kernel: int, tokens: int) -> None:
    rng = np.random.default_rng(kernel * 10 + tokens)
    lanes = tokens + 1
    lengths = np.arange(lanes, dtype=np.int32)
    valid = np.arange(tokens)[None] < lengths[:, None]
    x = rng.normal(size=(lanes, tokens, CHANNELS)).astype(np.float32)
    state = rng.normal(size=(lanes, kernel - 1, CHANNELS)).astype(np.float32)
    weight = rng.normal(size=(CHANNELS, kernel)).astype(np.float32)
    poisoned = np.where(valid[:, :, None], x, np.nan)
    y, new = run(poisoned, weight, state, lengths, valid)
    for lane, length in enumerate(lengths):
        history = np.concatenate([state[lane], x[lane, :length]])
        for t in range(length):
            want = (history[t : t + kernel] * weight.T).sum(axis=0)
            np.testing.assert_allclose(y[lane, t], want, atol=1e-6)
        assert np.asarray(new)[lane].tobytes() == history[len(history) - (kernel - 1) :].tobytes()


def test_state_in_a_narrower_dtype_keeps_an_idle_lane() -> None:
    state = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, CHANNELS)), jnp.bfloat16).at[1].set(jnp.nan)
    x = jnp.ones((2, 1, CHANNELS))
    valid = jnp.array([[True], [False]])
    y, new = run(x, jnp.ones((CHANNELS, 4)), state, jnp.array([1, 0], jnp.int32), valid)
    assert new.dtype == jnp.bfloat16
    assert np.asarray(new[1]).tobytes() == np.asarray(state[1]).tobytes()
    assert np.isfinite(np.asarray(y[0])).all()
