"""config.json of LFM3 and Lara-4-Mini: layers of published models, defaults, options, and refusals."""

import re
from typing import Any

import pytest
from published import LARA, LFM3

from models import DecoderConfig, family_of
from models.config.reader import ConfigError
from models.decoder.decoder import PostNorm
from models.layers.moe import MoeConfig
from models.layers.rope import ProportionalScaling, Rope
from models.mixers.attention import AttentionConfig
from models.mixers.gated_delta_net import GatedDeltaNetConfig
from models.mixers.gated_short_conv import GatedShortConvConfig

KINDS = {GatedShortConvConfig: "conv", GatedDeltaNetConfig: "linear_attention"}


def read(config: dict[str, Any]) -> DecoderConfig:
    return family_of(config).read_config(config)


def mixers(config: DecoderConfig) -> list[Any]:
    return [mixer.inner if isinstance(mixer, PostNorm) else mixer for mixer, _ in config.layers]


def kinds(config: DecoderConfig) -> list[str]:
    return [
        KINDS.get(type(mixer)) or ("full_attention" if mixer.window is None else "sliding_attention")
        for mixer in mixers(config)
    ]


def test_published_lfm3() -> None:
    config = read(LFM3)
    period = ["sliding_attention", "conv", "full_attention", "conv"]
    assert kinds(config) == ["conv", *period[1:], *period * 5]
    assert all(isinstance(branch, PostNorm) and branch.in_front for layer in config.layers for branch in layer)
    attention = [mixer for mixer in mixers(config) if isinstance(mixer, AttentionConfig)]
    assert {mixer.head_gate for mixer in attention} == {True}
    assert {(mixer.window, mixer.rope) for mixer in attention} == {
        (256, Rope(128, 1e4)),
        (None, Rope(128, 1e6, ProportionalScaling(32))),
    }
    # The last half of the frequencies does not turn.
    radians = Rope(128, 1e6, ProportionalScaling(32)).frequencies
    assert radians[0] == 1 and radians[31] == pytest.approx(1e6 ** (-62 / 128)) and not radians[32:].any()


def test_defaults_are_those_of_transformers() -> None:
    names = "head_dim conv_L_cache sliding_window use_sandwich_norm use_attention_gate rope_parameters norm_eps"
    assert read({name: value for name, value in LFM3.items() if name not in names.split()}) == read(LFM3)
    names = "head_dim sliding_window rope_parameters norm_topk_prob linear_key_head_dim linear_num_value_heads"
    assert read({name: value for name, value in LARA.items() if name not in names.split()}) == read(LARA)


def test_options_of_lfm3() -> None:
    config = read(LFM3 | {"use_sandwich_norm": False, "use_attention_gate": False, "sliding_window": 100})
    assert not any(isinstance(branch, PostNorm) for layer in config.layers for branch in layer)
    attention = [mixer for mixer in mixers(config) if isinstance(mixer, AttentionConfig)]
    assert {(mixer.window, mixer.head_gate) for mixer in attention} == {(100, False), (None, False)}
    # RoPE of a kind without layers is not needed.
    config = read(LFM3 | {"layer_types": ["full_attention"] * 24, "rope_parameters": {"full_attention": {}}})
    assert {mixer.rope for mixer in mixers(config)} == {Rope(128, 1e6)}


def test_published_lara() -> None:
    config = read(LARA)
    period = ["linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention"]
    assert kinds(config) == (period * 7)[:34] and config.tied
    attention = [mixer for mixer in mixers(config) if isinstance(mixer, AttentionConfig)]
    assert {(mixer.window, mixer.rope) for mixer in attention} == {(512, Rope(128, 1e4)), (None, None)}
    assert {mixer.qk_norm.offset for mixer in attention if mixer.qk_norm} == {0.0}
    moe = config.layers[0][1]
    assert isinstance(moe, MoeConfig) and not moe.shared_gate and moe.shared_width == 512
    assert (moe.router.experts, moe.router.per_token, moe.router.normalise) == (128, 4, True)


@pytest.mark.parametrize(("config", "change", "message"), [
    (LFM3, {"sliding_window": None}, "sliding_window: expected a whole number of at least 1, found None"),
    (LFM3, {"sliding_window": 0}, "sliding_window: expected a whole number of at least 1, found 0"),
    (LFM3, {"attention_bias": True}, "attention_bias: expected one of False"),
    (LFM3, {"conv_bias": True}, "conv_bias: expected one of False"),
    (LFM3, {"head_dim": 63}, "head_dim: expected an even number, for rotated pairs, found 63"),
    (LFM3, {"layer_types": ["chunked_attention"] * 24}, "layer_types: expected a list of 24 items"),
    (LFM3, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling: expected one of {}"),
    (LFM3, {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters.full_attention: expected an object"),
    (
        LFM3,
        {"rope_parameters": LFM3["rope_parameters"] | {"sliding_attention": {"rope_type": "yarn"}}},
        "rope_parameters.sliding_attention.rope_type: expected one of 'default', 'proportional'",
    ),
    (
        LFM3,
        {"rope_parameters": LFM3["rope_parameters"] | {"full_attention": {"partial_rotary_factor": 1.5}}},
        "rope_parameters.full_attention.partial_rotary_factor: expected a share of the head",
    ),
    (LFM3, {"rms_norm_eps": 1e-6}, "rms_norm_eps: expected 1e-05, as of norm_eps, another spelling, found 1e-06"),
    (LARA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1, as lara_mini rotates whole heads"),
    (LARA, {"attention_bias": True}, "attention_bias: expected one of False"),
    (LARA, {"hidden_act": "gelu"}, "hidden_act: expected one of 'silu'"),
    (LARA, {"sliding_window": -1}, "sliding_window: expected a whole number of at least 1, found -1"),
    (LARA, {"num_experts_per_tok": 129}, "num_experts_per_tok: expected at most num_experts (128)"),
    (LARA, {"linear_num_value_heads": 12}, "linear_num_value_heads: expected a multiple of linear_num_key_heads"),
])  # fmt: skip
def test_unsupported_fields_are_refused(config: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(config | change)
