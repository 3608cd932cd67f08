"""config.json of LFM2: both spellings, feed-forward widths, and refusals."""

import re
from typing import Any

import pytest
from published import LFM2, LFM2_MOE

from models import DecoderConfig, family_of
from models.config.reader import ConfigError
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.mixers.attention import AttentionConfig


def read(config: dict[str, Any]) -> DecoderConfig:
    return family_of(config).read_config(config)


def test_published_dense_model() -> None:
    config = read(LFM2)
    assert config.unknown_keys == () and config.tied
    assert [i for i, (mixer, _) in enumerate(config.layers) if isinstance(mixer, AttentionConfig)] == [
        2, 5, 8, 10, 12, 14
    ]  # fmt: skip
    assert {forward for _, forward in config.layers} == {MlpConfig(8192)}
    assert {m.head_dim for m, _ in config.layers if isinstance(m, AttentionConfig)} == {64}


def test_published_sparse_model() -> None:
    config = read(LFM2_MOE)
    assert config.unknown_keys == ()
    assert [type(forward) for _, forward in config.layers] == [MlpConfig] * 2 + [MoeConfig] * 22
    moe = config.layers[2][1]
    assert isinstance(moe, MoeConfig) and moe.shared_width == 0
    assert (moe.router.experts, moe.router.per_token, moe.router.epsilon) == (32, 4, 1e-6)


@pytest.mark.parametrize(
    ("change", "width"),
    [
        ({}, 8192), ({"block_ff_dim": 12289}, 8192), ({"block_ff_dim": 12300}, 8448),
        ({"block_multiple_of": 1000}, 9000), ({"block_ffn_dim_multiplier": 1.3}, 10752),
        ({"block_auto_adjust_ff_dim": False}, 12288), ({"block_ff_dim": None, "intermediate_size": 300}, 256),
    ],
)  # fmt: skip
def test_width_of_the_feed_forward_layers(change: dict[str, Any], width: int) -> None:
    assert read(LFM2 | change).layers[0][1] == MlpConfig(width)


@pytest.mark.parametrize(("change", "message"), [
    ({"conv_bias": True}, "conv_bias: expected one of False"),
    ({"conv_L_cache": 1}, "conv_L_cache: expected a whole number of at least 2, found 1"),
    ({"block_use_swiglu": False}, "block_use_swiglu: expected one of True"),
    ({"use_pos_enc": False}, "use_pos_enc: expected one of True"),
    ({"full_attn_idxs": [16]}, "full_attn_idxs: expected indices of the 16 layers, found [16]"),
    ({"layer_types": ["conv"] * 15}, "layer_types: expected a list of 16 items"),
    ({"layer_types": ["mamba"] * 16}, "layer_types: expected a list of 16 items, each one of 'conv', 'full_attention'"),
    ({"num_attention_heads": 30, "num_key_value_heads": 10}, "num_attention_heads: expected a divisor of hidden"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type: expected one of 'default'"),
])  # fmt: skip
def test_unsupported_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(LFM2 | change)


def test_more_experts_than_there_are() -> None:
    with pytest.raises(ConfigError, match=r"num_experts_per_tok: expected at most num_experts \(3\)"):
        read(LFM2_MOE | {"num_experts": 3})
