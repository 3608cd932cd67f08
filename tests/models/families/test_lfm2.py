"""config.json of LFM2: both spellings, feed-forward widths, and refusals."""

from typing import Any

import pytest
from published import LFM2, LFM2_MOE, read

from hybridlm.families import AttentionConfig, MlpConfig, MoeConfig


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
