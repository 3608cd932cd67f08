"""The short convolution against its definition, its tail at every length, and idle lanes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridlm.families import LaneInfo
from models import Devices
from models.layers.short_conv import layer_conv, short_conv

CHANNELS = 6
run = jax.jit(short_conv)


@pytest.mark.each_value
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


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_one_token_on_gpus_is_that_on_cpus(dtype: type, biased: bool) -> None:
    """Real, fresh and idle lanes; unused states and inputs hold NaN."""
    rng = np.random.default_rng(1)
    x, state = rng.normal(size=(4, 1, CHANNELS)).astype(np.float32), rng.normal(size=(4, 3, CHANNELS))
    x[2], state[1], state[2, 0] = np.nan, np.nan, np.nan
    weight = rng.normal(size=(CHANNELS, 1, 4)).astype(np.float32)
    bias = rng.normal(size=CHANNELS).astype(np.float32) if biased else None
    lengths, fresh = jnp.array([1, 1, 0, 1], jnp.int32), jnp.array([False, True, False, False])
    state = jnp.asarray(state, dtype)

    def run(platform: str) -> tuple[np.ndarray, np.ndarray]:
        info = LaneInfo(lengths, lengths, (lengths > 0)[:, None], fresh, 1)
        form = jax.jit(partial(layer_conv, info=info, devices=Devices(platform=platform)))
        y, new = form(x, weight, state, bias=bias)
        return np.asarray(y), np.asarray(new)

    (y, new), (expected_y, expected) = run("gpu"), run("cpu")
    real = np.asarray(lengths) > 0
    np.testing.assert_allclose(y[real], expected_y[real], rtol=1e-6, atol=1e-6)
    assert new.tobytes() == expected.tobytes() and new[2].tobytes() == np.asarray(state)[2].tobytes()
