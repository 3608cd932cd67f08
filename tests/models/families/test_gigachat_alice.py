"""config.json and tensors of GigaChat3.5 and Alice AI: layers of published models, options, refusals."""

import math
from typing import Any

import pytest
from published import ALICE, GIGACHAT, read
from tiny_variants import variant

from hybridlm.families import (
    AttentionConfig,
    BlockResidual,
    GatedDeltaNetConfig,
    KimiDeltaAttentionConfig,
    LatentAttentionConfig,
    MlpConfig,
    MoeConfig,
    NormConfig,
    PostNorm,
    QkNorm,
    Rope,
    SwigluLimit,
    YarnScaling,
)
from models import DecoderConfig, family_of

TINY: dict[str, Any] = variant("gigachat_base").config


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def inner(config: DecoderConfig) -> list[list[Any]]:
    """The branches without their wrappers, all of which are of one kind."""
    wrappers = PostNorm | BlockResidual
    assert all(isinstance(branch, wrappers) for layer in config.layers for branch in layer)
    return [[getattr(branch, "inner") for branch in layer] for layer in config.layers]  # noqa: B009


def test_published_gigachat() -> None:
    config, gated = read(GIGACHAT), NormConfig(1e-6, 1.0, 2.0)
    assert config.norm == gated and not config.tied and config.max_position_embeddings == 262144
    assert all(isinstance(branch, PostNorm) and branch.in_front for layer in config.layers for branch in layer)
    mixers, forwards = zip(*inner(config), strict=True)
    rope = Rope(64, 1e5, YarnScaling(8.0, 32768.0, 1.0, 32.0, 1.0, True))
    attention = LatentAttentionConfig(
        64,
        512,
        64,
        128,
        128,
        rope,
        norm=gated,
        # The square of YaRN's factor, and the square root of 7168 / 1536 for queries.
        score_factor=(0.1 * math.log(8) + 1) ** 2 * (14 / 3) ** 0.5,
        query_rank=1536,
        output_gate=True,
        row_factor=14**0.5,
    )
    delta_net = GatedDeltaNetConfig(32, 64, 128, 128, 4, 1e-6, gate="sigmoid", gate_factor=2.0, norm_offset=1.0)
    assert [mixer == attention for mixer in mixers] == [False, False, False, True] * 10
    assert {mixer for mixer in mixers} == {attention, delta_net}
    assert forwards[:3] == (MlpConfig(18432, limit=SwigluLimit(10.0)),) * 3
    (moe,) = set(forwards[3:])
    assert isinstance(moe, MoeConfig) and (moe.width, moe.shared_width) == (2048, 2048)
    assert moe.limit == moe.shared_limit == SwigluLimit(10.0)
    router = moe.router
    assert (router.experts, router.per_token, router.scores, router.bias, router.scale) == (
        256, 8, "sigmoid", True, 2.5,
    )  # fmt: skip


def test_options_of_gigachat() -> None:
    spelled = without(TINY, "full_attention_layers") | {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"]
    }
    assert read(spelled) == read(TINY) == read(TINY | {"layer_types": spelled["layer_types"]})
    defaults = ("layernorm_gating_weight", "linear_gating_type", "linear_sigmoid_gate_scale", "num_key_value_heads")
    chosen = {"layernorm_gating_weight": 2.0, "linear_sigmoid_gate_scale": 2.0}
    assert read(without(TINY, *defaults)) == read(TINY | chosen)
    (plain, _), (attending, _), _ = inner(
        read(
            TINY
            | {"gated_attention": False, "use_mla_scaling_factor": False, "linear_gating_type": "gated_rmsnorm_sigmoid"}
        )
    )
    assert (attending.output_gate, attending.row_factor, plain.norm_offset) == (False, 1.0, 0.0)
    assert attending.score_factor == pytest.approx((0.1 * 0.7 * math.log(8) + 1) ** 2)
    for unbounded in (0, 0.0, None):
        assert {forward.limit for _, forward in inner(read(TINY | {"swiglu_limit": unbounded}))} == {None}
    # The rank has a default; null stands for queries without compression.
    assert inner(read(without(TINY, "q_lora_rank")))[1][0].query_rank == 1536
    assert inner(read(TINY | {"q_lora_rank": None}))[1][0].query_rank is None


def test_mtp_layers_of_gigachat_are_skipped() -> None:
    family = family_of(GIGACHAT)
    assert all(family.skips(f"model.layers.{layer}.eh_proj.weight") for layer in (40, 41, 42))
    assert not family.skips("model.layers.39.mlp.gate.weight") and not family.skips("model.layers.43.eh_proj.weight")
    assert family_of(ALICE).skips("mtp.layers.0.self_attn.q_proj.weight")


def test_published_alice() -> None:
    config = read(ALICE)
    assert config.norm == NormConfig(1e-6, 1.0) and not config.tied and config.mixes_sources
    mixers, forwards = zip(*inner(config), strict=True)
    attention = AttentionConfig(16, 2, 256, Rope(64, 1e6), QkNorm(1e-6, offset=1.0), output_gate=True)
    delta = KimiDeltaAttentionConfig(32, 128, 4, 1e-6, bottleneck=128)
    assert [mixer == attention for mixer in mixers] == [False, False, False, True] * 12
    assert set(mixers) == {attention, delta}
    (moe,) = set(forwards)
    assert isinstance(moe, MoeConfig) and moe.shared_gate and (moe.width, moe.shared_width) == (512, 512)
    router = moe.router
    assert (router.experts, router.per_token, router.scores, router.bias, router.scale) == (512, 10, "sigmoid", True, 1)
    # A block has four layers; the first branch of all reads the embedding.
    branches: list[Any] = [branch for layer in config.layers for branch in layer]
    assert [branch.begins for branch in branches] == ([True] + [False] * 7) * 12
    assert [branch.mixes for branch in branches] == [False] + [True] * 95


def test_tensors_of_alice() -> None:
    config = read(ALICE)
    paths = {
        name: weight.path
        for weight in family_of(ALICE).weights(config)
        for option in weight.options
        for name in option.shapes
    }
    assert "model.layers.0.attn_res_proj.weight" not in paths and "model.layers.0.attn_res_norm_weight" not in paths
    assert paths["model.layers.4.attn_res_proj.weight"] == ("layers", 4, "branches", 0, "mix", "query")
    assert paths["model.layers.0.mlp_res_norm_weight"] == ("layers", 0, "branches", 1, "mix", "norm", "weight")
    assert paths["model.attnres_final.res_proj.weight"] == ("mix", "query")
    assert paths["model.attnres_final.res_norm_weight"] == ("mix", "norm", "weight")
    assert "model.layers.0.linear_attn.a_log_bias" in paths and "model.layers.0.linear_attn.o_proj.weight" in paths
    assert "model.layers.3.self_attn.q_norm.weight" in paths and "model.layers.3.mlp.shared_expert_gate.weight" in paths
