"""Mamba2 with a shared block: chunks, single tokens, accepted drafts, state of each call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_lanes import check_accepted_drafts, check_single_tokens, run
from filled import filled, random_values
from flax import nnx

from hybridlm.families import MlpConfig, Rope, linear
from models import Decoder, DecoderConfig
from models.mixers.attention import AttentionConfig
from models.mixers.mamba2 import Mamba2Config
from models.mixers.shared_block import AdaptedMatrix, SharedBlockConfig

MAMBA = Mamba2Config(heads=4, head_size=4, groups=2, state_size=3, kernel=3, eps=1e-5)
CALL = SharedBlockConfig(
    AttentionConfig(2, 2, 8, Rope(8, 1e4)), MlpConfig(6, "geglu"), MAMBA, block=0, rank=2, attention_adapters=True,
    eps=1e-5,
)  # fmt: skip
CONFIG = DecoderConfig("zamba2", 13, 8, 64, ((CALL,), (MAMBA,), (CALL,)), 1e-5, 0.0, True, (), "float32", ())
LENGTHS = np.array([7, 3, 1, 0], np.int32)


def model(config: DecoderConfig = CONFIG) -> Decoder:
    return filled(lambda: Decoder(config, nnx.Rngs(0)), random_values(0))


def tokens(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 13, (len(LENGTHS), count)).astype(np.int32)


@pytest.mark.slow
def test_chunks_equal_single_tokens() -> None:
    """Lanes of different lengths, in rows of NaN."""
    decoder = model()
    state = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), decoder.init_state(4, 16, jnp.float32))
    check_single_tokens(decoder, tokens(7), LENGTHS, state)


@pytest.mark.slow
@pytest.mark.parametrize("accepted", range(5))
def test_state_after_accepted_drafts(accepted: int) -> None:
    check_accepted_drafts(model(), tokens(8), accepted)


def test_calls_share_parameters_and_no_state() -> None:
    """A changed block changes both calls; each call has separate keys and adapters."""
    decoder, zeros = model(), np.zeros(4, np.int32)

    def keys(decoder: Decoder) -> list[np.ndarray]:
        state = run(decoder, tokens(7), LENGTHS, zeros, decoder.init_state(4, 16, jnp.float32))[1]
        return [np.asarray(state[i][0].attention.key)[1, :, :7] for i in (0, 2)]

    first, second = keys(decoder)
    assert np.abs(first - second).max() > 0.1
    first_call, second_call = (decoder.layers[i].branches[0].inner for i in (0, 2))
    second_call.attention_adapters["k_proj"].up[...] *= 2.0
    changed = keys(decoder)
    assert np.array_equal(changed[0], first) and np.abs(changed[1] - second).max() > 0.1
    first_call.block.attention.k_proj[...] *= 2.0
    both = keys(decoder)
    assert np.abs(both[0] - changed[0]).max() > 0.1 and np.abs(both[1] - changed[1]).max() > 0.1


def test_matrices_of_a_call() -> None:
    """Products, plain forms and rows agree with NumPy."""
    rng = np.random.default_rng(2)
    base, down, up, x = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in [(6, 4), (2, 4), (6, 2), (3, 4)])
    adapted, expected = AdaptedMatrix(base, down, up), np.asarray(base) + np.asarray(up) @ np.asarray(down)
    assert adapted.shape == expected.shape
    np.testing.assert_allclose(linear(x, adapted), np.asarray(x) @ expected.T, atol=1e-5)
    np.testing.assert_allclose(adapted.astype(jnp.float32), expected, atol=1e-6)
    np.testing.assert_allclose(adapted.take(jnp.array([1, 5])), expected[[1, 5]], atol=1e-6)
    assert adapted.nbytes == 4 * (24 + 8 + 12)
