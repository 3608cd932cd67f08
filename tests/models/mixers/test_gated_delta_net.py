"""Gated DeltaNet: all tokens at once equal single tokens, for every length and head ratio."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled, random_values
from flax import nnx
from mixer_lanes import check_lengths, info, recurrence_lengths

from models.mixers.gated_delta_net import GatedDeltaNetConfig

HIDDEN, KERNEL = 10, 4
LENGTHS = recurrence_lengths(KERNEL)
# the gated norm divides by the size of small outputs
TOLERANCE = 5e-4
STATE = {"conv": 1e-6, "recurrent": 2e-5}


def layer(ratio: int, **options: Any):
    config = GatedDeltaNetConfig(2, 2 * ratio, 4, 6, KERNEL, 1e-6, **options)
    return filled(lambda: config.build(HIDDEN, nnx.Rngs(0)), random_values(ratio))


@pytest.mark.parametrize("ratio", [2, *(pytest.param(ratio, marks=pytest.mark.long) for ratio in (1, 4))])
def test_chunks_equal_single_tokens_at_every_length(ratio: int) -> None:
    check_lengths(layer(ratio), HIDDEN, LENGTHS, TOLERANCE, STATE)


@pytest.mark.slow
def test_sigmoid_gate_and_weights_minus_one() -> None:
    """Both gates of one mixer differ by a factor on each output of the norm."""
    check_lengths(layer(2, gate="sigmoid", gate_factor=1.6, norm_offset=1.0), HIDDEN, (1, 9), TOLERANCE, STATE)
    plain, other = layer(2), layer(2, gate="sigmoid", gate_factor=1.6, norm_offset=1.0)
    rng = np.random.default_rng(0)
    mixed, gate = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((1, 3, 4, 6), (1, 3, 24)))
    for mixer in (plain, other):
        mixer.out_proj = nnx.Param(jnp.eye(24, dtype=jnp.float32))
    lengths = jnp.array([3], jnp.int32)
    lanes = info(lengths, 0 * lengths, 3)
    by_silu, by_sigmoid = (np.asarray(mixer.project_out(mixed, gate, lanes)) for mixer in (plain, other))
    weight = np.tile(np.asarray(plain.norm[...]), 4)
    np.testing.assert_allclose(by_sigmoid * np.asarray(gate) * weight, by_silu * 1.6 * (weight + 1), rtol=0, atol=1e-5)
