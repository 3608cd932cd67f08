"""config.json of LFM3 and Lara-4-Mini: layers of published models, defaults, options, and refusals."""

from typing import Any

import pytest
from published import LARA, LFM3, read

from hybridlm.families import (
    AttentionConfig,
    GatedDeltaNetConfig,
    GatedShortConvConfig,
    MoeConfig,
    PostNorm,
    ProportionalScaling,
    Rope,
)
from models import DecoderConfig

KINDS = {GatedShortConvConfig: "conv", GatedDeltaNetConfig: "linear_attention"}


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
