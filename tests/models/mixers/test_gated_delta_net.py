"""Gated DeltaNet: all tokens at once equal single tokens, for every length and head ratio."""

import pytest
from filled import filled, random_values
from flax import nnx
from mixer_lanes import check_lengths

from models.mixers.gated_delta_net import GatedDeltaNetConfig
from models.ops.recurrences.delta_rule import CHUNK

HIDDEN, KERNEL = 10, 4
LENGTHS = (1, KERNEL - 1, KERNEL, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5)
# the gated norm divides by the size of small outputs
TOLERANCE = 5e-4


def layer(ratio: int):
    config = GatedDeltaNetConfig(2, 2 * ratio, 4, 6, KERNEL, 1e-6)
    return filled(lambda: config.build(HIDDEN, nnx.Rngs(0)), random_values(ratio))


@pytest.mark.parametrize("ratio", [2, *(pytest.param(ratio, marks=pytest.mark.long) for ratio in (1, 4))])
def test_chunks_equal_single_tokens_at_every_length(ratio: int) -> None:
    check_lengths(layer(ratio), HIDDEN, LENGTHS, TOLERANCE, {"conv": 1e-6, "recurrent": 2e-5})


def test_widths_of_the_published_35b_model() -> None:
    """One token's scratch is wider than the layer's output."""
    config = GatedDeltaNetConfig(16, 32, 128, 128, 4, 1e-6)
    assert (config.channels, config.value_width) == (8192, 4096)
