"""config.json of Mamba2 families: published models, both spellings, and refusals."""

import math
from typing import Any

import numpy as np
import pytest
from made_parameter import made
from published_mamba import NANO, SUPER
from tiny_variants import variant

from models import DecoderConfig, family_of
from models.config.reader import ConfigError
from models.decoder.parallel import ParallelConfig
from models.layers.mlp import MlpConfig
from models.layers.moe import MoeConfig
from models.layers.rope import Rope
from models.mixers.attention import AttentionConfig
from models.mixers.mamba2 import Mamba2Config
from models.weights.sources import WeightSource


def read(config: dict[str, Any]) -> DecoderConfig:
    return family_of(config).read_config(config)


def tiny(name: str) -> dict[str, Any]:
    return {"model_type": variant(name).family, **variant(name).text}


@pytest.mark.parametrize(
    ("published", "layers"), [(NANO, (23, 6, 23)), (SUPER, (40, 8, 40))], ids=["Nemotron-3-Nano", "Nemotron-3-Super"]
)
def test_layers_of_published_nemotron_models(published: dict[str, Any], layers: tuple[int, int, int]) -> None:
    mixers = [mixer for (mixer,) in read(published).layers]
    assert tuple(sum(isinstance(m, t) for m in mixers) for t in (Mamba2Config, AttentionConfig, MoeConfig)) == layers
    assert {(m.rope, m.scale) for m in mixers if isinstance(m, AttentionConfig)} == {(None, None)}
    assert {m.step_limits for m in mixers if isinstance(m, Mamba2Config)} == {(0.0, math.inf)}
    (moe,) = {m for m in mixers if isinstance(m, MoeConfig)}
    assert moe.latent == published.get("moe_latent_size") and moe.activation == "relu2" and not moe.shared_gate
    assert (moe.router.scores, moe.router.bias, moe.router.epsilon) == ("sigmoid", True, 1e-20)


@pytest.mark.parametrize("part", ["up_proj", "down_proj"])
def test_both_layouts_of_experts_are_the_same_parameters(part: str) -> None:
    config = tiny("nemotron_latent")
    result = {weight.path: weight for weight in family_of(config).weights(read(config))}
    weight = result["layers", 1, "branches", 0, "inner", part]
    full, parts = weight.options
    prefix = "backbone.layers.1.mixer.experts"
    assert full == WeightSource({f"{prefix}.{part}": weight.shape})
    stored = {name: np.full(shape, i, np.float32) for i, (name, shape) in enumerate(parts.shapes.items())}
    assert list(stored) == [f"{prefix}.{expert}.{part}.weight" for expert in range(8)]
    np.testing.assert_array_equal(made(parts, weight.shape, stored), np.stack(list(stored.values())))


def test_spellings_of_the_layers_of_nemotron() -> None:
    kinds = ["mamba", "mlp", "attention", "moe"]
    lists = {"layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"], "layer_types": kinds}
    base = NANO | {"hybrid_override_pattern": "M-*E", "num_hidden_layers": 4}
    want = read(base).layers
    assert [type(mixer) for (mixer,) in want] == [Mamba2Config, MlpConfig, AttentionConfig, MoeConfig]
    del base["hybrid_override_pattern"]
    for name, value in lists.items():
        assert read(base | {name: value}).layers == want
    with pytest.raises(ValueError, match="num_hidden_layers"):
        read(base | {"layer_types": kinds, "num_hidden_layers": 5})


@pytest.mark.parametrize("infinity", [math.inf, {"__float__": "Infinity"}])
def test_limits_of_the_time_step(infinity: Any) -> None:
    config = tiny("mamba2_base") | {"time_step_limit": [0.01, infinity]}
    assert read(config).layers[0][0].step_limits == (0.01, math.inf)  # type: ignore[attr-defined]  # a Mamba2's


@pytest.mark.parametrize(("change", "low"), [
    ({"time_step_min": 0.01}, 0.0),
    ({"time_step_min": 0.01, "hf_compat_dt_floor": True}, 0.01),
    ({"hf_compat_dt_floor": True}, 0.001),
    ({"hf_compat_dt_floor": True, "time_step_limit": [0.02, math.inf]}, 0.02),
])  # fmt: skip
def test_the_floor_of_transformers_is_there_for_who_asks(change: dict[str, Any], low: float) -> None:
    config = read(tiny("nemotron_dense") | change)
    mixer = config.layers[0][0]
    assert isinstance(mixer, Mamba2Config) and mixer.step_limits == (low, math.inf)
    assert config.unknown_keys == ()


def test_older_names_of_nemotron_fields() -> None:
    """Names that transformers accepts and saves under new ones."""
    config = tiny("nemotron_latent")
    older = {
        "n_groups": "mamba_n_groups",
        "conv_kernel": "mamba_d_conv",
        "use_conv_bias": "mamba_conv_bias",
        "time_step_limit": "mamba_dt_limit",
        "n_routed_experts": "num_local_experts",
    }
    values = config | {"n_groups": 3, "conv_kernel": 3, "use_conv_bias": False, "time_step_limit": [0.1, 0.9]}
    spelled = {older.get(name, name): value for name, value in values.items()} | {"mamba_dt_min": 0.2}
    assert read(spelled) == read(values) != read(config)
    floor = {"hf_compat_dt_floor": True}
    assert read(spelled | floor) == read(values | floor | {"time_step_min": 0.2})


def test_granite_scales_what_its_config_names() -> None:
    config = read(tiny("granite_experts"))
    assert (config.embedding_multiplier, config.residual_multiplier) == (2.0, 0.7)
    assert config.logits_multiplier == pytest.approx(1 / 1.5)
    attention = config.layers[1][0]
    assert isinstance(attention, AttentionConfig) and attention.scale == 0.25 and attention.rope is None
    rotated = read(tiny("granite_experts") | {"position_embedding_type": "rope"}).layers[1][0]
    assert isinstance(rotated, AttentionConfig) and rotated.rope == Rope(16, 1e4)


def test_bamba_rotates_half_of_a_head() -> None:
    attention = read(tiny("bamba_base")).layers[1][0]
    assert isinstance(attention, AttentionConfig) and attention.rope == Rope(8, 1e4)


def test_factors_of_falcon_move_to_outputs_and_scores() -> None:
    pair, mlp = read(tiny("falcon_base")).layers[0]
    assert isinstance(pair, ParallelConfig)
    mixer, attention = pair.layers
    assert isinstance(mixer, Mamba2Config) and isinstance(attention, AttentionConfig)
    assert mixer.multipliers == pytest.approx((0.84, 1.08, 1.32, 1.56, 0.96)) and mixer.norm == "none"
    assert attention.scale == pytest.approx(1.3**2 * 0.8 / 4)
    assert pair.multipliers == pytest.approx((0.7, 1.3 * 0.9))
    assert mlp == MlpConfig(96, gate_multiplier=0.8, out_multiplier=0.6)


@pytest.mark.parametrize(("base", "change", "message"), [
    ("mamba2_base", {"n_groups": 3}, r"n_groups: expected a divisor of num_heads \(8\), found 3"),
    ("mamba2_base", {"head_dim": 15}, "num_heads: expected as many heads of size 15 as make the inner width 128"),
    ("mamba2_base", {"time_step_limit": [0.5, 0.1]}, "time_step_limit: expected two numbers"),
    ("mamba2_base", {"time_step_limit": [0.0, "Infinity"]}, "time_step_limit: expected two numbers"),
    ("mamba2_base", {"use_bias": True}, "use_bias: expected one of False"),
    ("mamba2_base", {"hidden_act": "gelu"}, "hidden_act: expected one of 'silu'"),
    ("nemotron_dense", {"layers_block_type": ["mamba", "rwkv"]}, "layers_block_type: expected letters M"),
    ("nemotron_dense", {"num_hidden_layers": 4}, r"num_hidden_layers: expected the number of layers in .* \(3\)"),
    ("nemotron_dense", {"mlp_hidden_act": "silu"}, "mlp_hidden_act: expected one of 'relu2'"),
    ("nemotron_dense", {"sliding_window": 128}, "sliding_window: expected one of None"),
    ("nemotron_experts", {"n_group": 3}, "n_group: expected a divisor of the 8 experts .*, found 3"),
    ("nemotron_experts", {"n_group": 8}, "n_group: expected a divisor of the 8 experts .*, found 8"),
    ("nemotron_experts", {"topk_group": 5}, "topk_group: expected at most the 4 groups, found 5"),
    ("nemotron_experts", {"num_experts_per_tok": 5}, "num_experts_per_tok: expected at most the 4 experts"),
    ("nemotron_experts", {"n_shared_experts": 2}, "n_shared_experts: expected one of 1"),
    ("granite_experts", {"num_experts_per_tok": 9}, "num_experts_per_tok: expected at least 1 and at most"),
    ("granite_experts", {"position_embedding_type": "alibi"}, "position_embedding_type: expected one of None"),
    ("granite_experts", {"mamba_n_heads": 7}, "mamba_n_heads: expected as many heads"),
    ("granite_experts", {"attention_bias": True}, "attention_bias: expected one of False"),
    ("bamba_base", {"attn_layer_indices": [2]}, "attn_layer_indices: expected indices of the 2 layers"),
    ("bamba_base", {"attn_rotary_emb": 16}, "attn_rotary_emb: expected one of 8"),
    ("falcon_base", {"ssm_multipliers": [1.0] * 4}, "ssm_multipliers: expected a list of 5 numbers"),
    ("falcon_base", {"mlp_multipliers": [1.0, math.inf]}, "mlp_multipliers: expected a list of 2 numbers"),
    ("nemotron_dense", {"mamba_n_groups": 3}, "n_groups: expected 3, as of mamba_n_groups, another"),
    ("nemotron_experts", {"num_local_experts": 9}, "num_local_experts: expected 8, as of n_routed_experts"),
    ("bamba_base", {"partial_rotary_factor": 1.0}, "partial_rotary_factor: expected one of 0.5"),
    ("granite_experts", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1, as granitemoehybrid"),
    ("falcon_base", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor"),
    ("falcon_base", {"projectors_bias": True}, "projectors_bias: expected one of False"),
])  # fmt: skip
def test_what_is_not_implemented_is_refused(base: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tiny(base) | change)


def test_older_mamba2_checkpoints_name_the_embedding_in_the_singular() -> None:
    config = tiny("mamba2_base")
    (embedding,) = [w for w in family_of(config).weights(read(config)) if w.path == ("embed_tokens",)]
    assert [list(option.shapes) for option in embedding.options] == [
        ["backbone.embeddings.weight"],
        ["backbone.embedding.weight"],
    ]
