"""The Gated DeltaNet layer: all tokens at once equal one at a time, at every length and head ratio."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled
from flax import nnx

from models.delta_rule import CHUNK
from models.gated_delta_net import GatedDeltaNetConfig
from models.shapes import LaneInfo

HIDDEN, KERNEL = 10, 4
LENGTHS = (1, KERNEL - 1, KERNEL, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5)
# the gated norm divides by the size of small outputs
TOLERANCE = 5e-4


def layer(ratio: int):
    config = GatedDeltaNetConfig(2, 2 * ratio, 4, 6, KERNEL, 1e-6)
    rng = np.random.default_rng(ratio)

    def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
        array = rng.uniform(-1, 1, shape) if len(shape) == 1 else rng.normal(size=shape) / shape[-1] ** 0.5
        return array.astype(np.float32)

    return filled(lambda: config.build(HIDDEN, nnx.Rngs(0)), value)


def info(lengths: jax.Array, positions: jax.Array, tokens: int) -> LaneInfo:
    valid = jnp.arange(tokens, dtype=jnp.int32)[None] < lengths[:, None]
    return LaneInfo(lengths, positions, valid, (positions == 0) & (lengths > 0), 0)


@jax.jit
def run(mixer, x, lengths, positions, state):
    return mixer(x, info(lengths, positions, x.shape[1]), state)


@jax.jit
def by_tokens(mixer, x, lengths, positions, state):
    def token(state, inputs):
        x_t, t = inputs
        out, state = mixer(x_t[:, None], info(jnp.clip(lengths - t, 0, 1), positions + t, 1), state)
        return state, out[:, 0]

    state, outs = jax.lax.scan(token, state, (jnp.moveaxis(x, 1, 0), jnp.arange(x.shape[1], dtype=jnp.int32)))
    return jnp.moveaxis(outs, 0, 1), state


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_chunks_equal_single_tokens_at_every_length(ratio: int) -> None:
    mixer = layer(ratio)
    lengths = np.array([*LENGTHS, 0], np.int32)
    positions = np.array([0, 9, 0, 9, 0, 9, 0, 0], np.int32)
    rng = np.random.default_rng(ratio)
    x = rng.normal(size=(len(lengths), max(LENGTHS), HIDDEN)).astype(np.float32)
    x[np.arange(x.shape[1])[None] >= lengths[:, None]] = np.nan
    state = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), mixer.init_state(len(lengths), 1, jnp.float32)
    )
    # lanes that begin here must not see what the last tenant left
    poison = (positions == 0) & (lengths > 0)
    state.conv[poison], state.recurrent[poison] = np.nan, np.inf
    out, new = jax.device_get(run(mixer, x, lengths, positions, state))
    want_out, want = jax.device_get(by_tokens(mixer, x, lengths, positions, state))
    for lane, length in enumerate(lengths):
        np.testing.assert_allclose(out[lane, :length], want_out[lane, :length], atol=TOLERANCE)
        np.testing.assert_allclose(new.recurrent[lane], want.recurrent[lane], atol=2e-5)
        np.testing.assert_allclose(new.conv[lane], want.conv[lane], atol=1e-6)
    for a, b in zip(new, state, strict=True):
        assert a[-1].tobytes() == b[-1].tobytes()


def test_widths_of_the_published_35b_model() -> None:
    """The scratch of one token is wider than the layer's output: what undersized buffers forget."""
    config = GatedDeltaNetConfig(16, 32, 128, 128, 4, 1e-6)
    assert (config.channels, config.value_width) == (8192, 4096)
