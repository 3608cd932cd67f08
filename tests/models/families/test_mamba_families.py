"""config.json of Mamba2 families: published models, both spellings, and refusals."""

import math
from typing import Any

import numpy as np
import pytest
from filled import made
from published import read
from published_mamba import NANO, SUPER
from tiny_variants import variant

from hybridlm.families import AttentionConfig, Mamba2Config, MlpConfig, MoeConfig, ParallelConfig, Rope
from models import WeightSource, family_of


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
    config = variant("nemotron_latent").config
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
    config = variant("mamba2_base").config | {"time_step_limit": [0.01, infinity]}
    assert read(config).layers[0][0].step_limits == (0.01, math.inf)  # type: ignore[attr-defined]  # a Mamba2's


@pytest.mark.parametrize(("change", "low"), [
    ({"time_step_min": 0.01}, 0.0),
    ({"time_step_min": 0.01, "hf_compat_dt_floor": True}, 0.01),
    ({"hf_compat_dt_floor": True}, 0.001),
    ({"hf_compat_dt_floor": True, "time_step_limit": [0.02, math.inf]}, 0.02),
])  # fmt: skip
def test_the_floor_of_transformers_is_there_for_who_asks(change: dict[str, Any], low: float) -> None:
    config = read(variant("nemotron_dense").config | change)
    mixer = config.layers[0][0]
    assert isinstance(mixer, Mamba2Config) and mixer.step_limits == (low, math.inf)
    assert config.unknown_keys == ()


def test_older_names_of_nemotron_fields() -> None:
    """Names that transformers accepts and saves under new ones."""
    config = variant("nemotron_latent").config
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
    config = read(variant("granite_experts").config)
    assert (config.embedding_multiplier, config.residual_multiplier) == (2.0, 0.7)
    assert config.logits_multiplier == pytest.approx(1 / 1.5)
    attention = config.layers[1][0]
    assert isinstance(attention, AttentionConfig) and attention.scale == 0.25 and attention.rope is None
    rotated = read(variant("granite_experts").config | {"position_embedding_type": "rope"}).layers[1][0]
    assert isinstance(rotated, AttentionConfig) and rotated.rope == Rope(16, 1e4)


def test_bamba_rotates_half_of_a_head() -> None:
    attention = read(variant("bamba_base").config).layers[1][0]
    assert isinstance(attention, AttentionConfig) and attention.rope == Rope(8, 1e4)


def test_factors_of_falcon_move_to_outputs_and_scores() -> None:
    pair, mlp = read(variant("falcon_base").config).layers[0]
    assert isinstance(pair, ParallelConfig)
    mixer, attention = pair.layers
    assert isinstance(mixer, Mamba2Config) and isinstance(attention, AttentionConfig)
    assert mixer.multipliers == pytest.approx((0.84, 1.08, 1.32, 1.56, 0.96)) and mixer.norm == "none"
    assert attention.scale == pytest.approx(1.3**2 * 0.8 / 4)
    assert pair.multipliers == pytest.approx((0.7, 1.3 * 0.9))
    assert mlp == MlpConfig(96, gate_multiplier=0.8, out_multiplier=0.6)


def test_older_mamba2_checkpoints_name_the_embedding_in_the_singular() -> None:
    config = variant("mamba2_base").config
    (embedding,) = [w for w in family_of(config).weights(read(config)) if w.path == ("embed_tokens",)]
    assert [list(option.shapes) for option in embedding.options] == [
        ["backbone.embeddings.weight"],
        ["backbone.embedding.weight"],
    ]
