"""The configs of published checkpoints give the layers and the state of the models they belong to."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from published import PUBLISHED

from models import family_of
from models.attention import AttentionConfig
from models.gated_delta_net import GatedDeltaNetConfig
from models.rope import Rope


def total_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "layers", "channels", "recurrent", "sequence", "token"),
    [
        ("Qwen3.5-35B-A3B", (30, 10), 8192, 2 * MIB, 64_389_120, 20_480),
        ("Qwen3-Next-80B", (36, 12), 8192, 2 * MIB, 77_266_944, 24_576),
        ("Qwen3.5-27B", (48, 16), 10240, 3 * MIB, 153_944_064, 65_536),
    ],
)
def test_state_of_published_models(
    name: str, layers: tuple[int, int], channels: int, recurrent: int, sequence: int, token: int
) -> None:
    """Channels of the convolution, bytes of one layer's recurrence, of a sequence's fixed state, and of a token."""
    family = family_of(PUBLISHED[name])
    config = family.read_config(PUBLISHED[name])
    assert config.unknown_keys == () and config.eps == 1e-6 and not config.tied
    mixers = [mixer for mixer, _ in config.layers if isinstance(mixer, GatedDeltaNetConfig)]
    attentions = [mixer for mixer, _ in config.layers if isinstance(mixer, AttentionConfig)]
    assert (len(mixers), len(attentions)) == layers
    assert {mixer.channels for mixer in mixers} == {channels}
    assert {mixer.rope for mixer in attentions} == {Rope(64, 1e7)}

    # Four layers stand for all: building every layer takes long, even without its arrays.
    assert config.layers == config.layers[:4] * layers[1]
    few = dataclasses.replace(config, layers=config.layers[:4])
    model = nnx.eval_shape(lambda: family.build(few, nnx.Rngs(0)))

    def state(context: int) -> tuple[list[Any], list[Any]]:
        """Of the recurrent layers, and of the attention layers."""
        per_layer = jax.eval_shape(lambda: model.init_state(1, context, jnp.bfloat16))
        assert all(feed_forward is None for _, feed_forward in per_layer)
        assert len(per_layer) == 4
        return [layer[0] for layer in per_layer[:3]], [per_layer[3][0]]

    fixed, cache = state(512)
    assert {total_bytes(s.recurrent) for s in fixed} == {recurrent}
    assert {s.conv.shape for s in fixed} == {(1, 3, channels)}
    assert total_bytes(fixed) * layers[1] == sequence
    longer, longer_cache = state(1024)
    assert total_bytes(longer) == total_bytes(fixed)
    assert (total_bytes(longer_cache) - total_bytes(cache)) * layers[1] == 512 * token
