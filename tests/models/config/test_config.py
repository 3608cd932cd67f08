"""config.json: real fields are read, unrunnable ones refused, all at once."""

import copy
import json
import math
import pathlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hybridlm.families import AttentionConfig, MlpConfig, MoeConfig, RouterConfig
from models import DecoderConfig, UnsupportedModel, family_of
from models.config.reader import ConfigError

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden"

ROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
DENSE: dict[str, Any] = {
    "model_type": "qwen3_5_text", "vocab_size": 331, "hidden_size": 64, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
    "intermediate_size": 96, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_parameters": ROPE,
}  # fmt: skip
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
NEXT = DENSE | EXPERTS | {"model_type": "qwen3_next"}
SPARSE = {name: value for name, value in DENSE.items() if name != "intermediate_size"} | EXPERTS
SPARSE["model_type"] = "qwen3_5_moe_text"


def read(config: Mapping[str, Any]) -> DecoderConfig:
    return family_of(config).read_config(config)


def faults_of(config: Mapping[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        read(config)
    for fault in error.value.faults:
        assert fault in str(error.value)
    return error.value.faults


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rope_parameters": ROPE | {"rope_type": "longrope"}}, "rope_parameters.rope_type: expected one of 'default'"),
    ({"rope_parameters": ROPE | {"rope_type": "proportional"}}, "rope_parameters.rope_type"),
    ({"rope_scaling": {"rope_type": "su", "factor": 2.0}}, "rope_scaling.rope_type: expected one of 'default'"),
    ({"rope_scaling": {"type": "longrope"}}, "rope_scaling.type: expected one of 'default', 'mrope'"),
    ({"rope_scaling": {"type": "yarn"}}, "rope_scaling.factor"),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
    ({"rope_scaling": {"type": "dynamic"}}, "rope_scaling.factor"),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}},
     "rope_parameters.high_freq_factor"),
    ({"rope_parameters": {"full_attention": ROPE}}, "rope_parameters.full_attention: expected one RoPE"),
    ({"rope_scaling": "linear"}, "rope_scaling: expected an object, found 'linear'"),
    ({"hidden_act": "gelu"}, "hidden_act: expected one of 'silu' (what is implemented), found 'gelu'"),
    ({"attention_bias": True}, "attention_bias: expected one of False (what is implemented), found True"),
    ({"use_sliding_window": True}, "use_sliding_window: expected one of False"),
    ({"attn_output_gate": False}, "attn_output_gate: expected one of True"),
    ({"output_gate_type": "sigmoid"}, "output_gate_type: expected one of 'swish', 'silu'"),
    ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype: expected one of 'float32'"),
    ({"layer_types": ["full_attention"] * 7}, "layer_types: expected a list of 8 items"),
    ({"layer_types": ["full_attention"] * 7 + ["sliding_attention"]}, "layer_types: expected a list of 8 items"),
    ({"layer_types": "full_attention"}, "layer_types: expected a list of 8 items"),
    ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of num_attention_heads (4), found 3"),
    ({"linear_num_value_heads": 3}, "linear_num_value_heads: expected a multiple of linear_num_key_heads (2), found 3"),
    ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim: expected a whole number of at least 2, found 1"),
    ({"rope_parameters": ROPE | {"partial_rotary_factor": 0.2}},
     "rope_parameters.partial_rotary_factor: expected an even number of rotated dimensions of 16, not 3, found 0.2"),
    ({"rope_parameters": ROPE | {"partial_rotary_factor": 2}}, "rope_parameters.partial_rotary_factor"),
    ({"rope_parameters": ROPE | {"partial_rotary_factor": math.inf}}, "rope_parameters.partial_rotary_factor"),
    ({"rope_parameters": None, "partial_rotary_factor": 0.01}, "partial_rotary_factor: expected an even number"),
    ({"rms_norm_eps": math.nan}, "rms_norm_eps: expected a number greater than 0.0, found nan"),
    ({"rms_norm_eps": 0}, "rms_norm_eps"),
    ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
    ({"rms_norm_eps": True}, "rms_norm_eps"),
    ({"hidden_size": None}, "hidden_size: expected a whole number of at least 1, found None"),
    ({"hidden_size": "64"}, "hidden_size: expected a whole number of at least 1, found '64'"),
    ({"hidden_size": 64.0}, "hidden_size: expected a whole number of at least 1, found 64.0"),
    ({"hidden_size": True}, "hidden_size: expected a whole number of at least 1, found True"),
    ({"vocab_size": 0}, "vocab_size: expected a whole number of at least 1, found 0"),
    ({"max_position_embeddings": -1}, "max_position_embeddings"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: expected true or false, found 'yes'"),
    ({"eos_token_id": -1}, "eos_token_id: expected a whole number or a list of whole numbers, none negative"),
    ({"eos_token_id": [1, "2"]}, "eos_token_id"),
    ({"dtype": "float64"}, "dtype: expected one of 'bfloat16', 'float16', 'float32'"),
    ({"torch_dtype": ["bfloat16"]}, "torch_dtype: expected one of 'bfloat16', 'float16', 'float32'"),
    ({"is_causal": False}, "is_causal: expected true, as only causal attention is implemented, found False"),
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention: expected false, as only causal attention"),
    ({"is_encoder_decoder": True}, "is_encoder_decoder: expected false, as only causal attention"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"), REFUSED, ids=[f"{i}-{next(iter(c))}" for i, (c, _) in enumerate(REFUSED)]
)
@pytest.mark.parametrize("nested", [False, True])
def test_unsupported_settings_are_refused(change: dict[str, Any], message: str, nested: bool) -> None:
    config = DENSE | change
    if nested:
        config = {"model_type": "qwen3_5", "text_config": config}
        message = "text_config." + message
    (fault,) = faults_of(config)
    assert fault.startswith(message), fault


@pytest.mark.parametrize("base", [NEXT, SPARSE], ids=["next", "sparse"])
@pytest.mark.parametrize(("change", "message"), [
    ({"num_experts_per_tok": 9}, "num_experts_per_tok: expected at most num_experts (8), found 9"),
    ({"num_experts": None}, "num_experts: expected a whole number of at least 1"),
    ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
    ({"shared_expert_intermediate_size": 0.5}, "shared_expert_intermediate_size"),
])  # fmt: skip
def test_faulty_experts_are_refused(base: dict[str, Any], change: dict[str, Any], message: str) -> None:
    assert any(fault.startswith(message) for fault in faults_of(base | change))


def test_every_fault_is_in_one_error() -> None:
    wrong = {
        "hidden_act": "gelu", "attention_bias": True, "num_key_value_heads": 3, "linear_num_value_heads": 3,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": -1}, "layer_types": [], "vocab_size": None,
    }  # fmt: skip
    with pytest.raises(ConfigError) as error:
        read({"model_type": "qwen3_5", "text_config": DENSE | wrong, "tie_word_embeddings": 1})
    message = str(error.value)
    assert "config.json cannot be run as a qwen3_5 model (9 fault(s))" in message
    for field in (*(f"text_config.{name}" for name in wrong if name != "rope_parameters"), "tie_word_embeddings: "):
        assert f"  - {field}" in message
    assert "text_config.rope_parameters.rope_type: " in message
    assert "text_config.rope_parameters.rope_theta: " in message


REQUIRED = [
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "linear_num_key_heads",
    "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "intermediate_size",
]  # fmt: skip


def test_missing_fields_are_named() -> None:
    faults = faults_of({name: value for name, value in DENSE.items() if name not in REQUIRED})
    missing = [fault.split(":")[0] for fault in faults if fault.endswith("found no such field")]
    assert sorted(missing) == sorted(REQUIRED)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_a_text_config_that_is_no_object_is_refused(family: str) -> None:
    assert "text_config: expected an object, found 3" in faults_of({"model_type": family, "text_config": 3})


@pytest.mark.parametrize("config", [{}, {"model_type": None}, {"model_type": "llama"}, {"model_type": ["qwen3_5"]}])
def test_an_unknown_model_type_lists_the_supported_ones(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel) as error:
        family_of(config)
    assert "qwen3_5, qwen3_5_moe, qwen3_5_moe_text, qwen3_5_text, qwen3_next" in str(error.value)
    if config.get("model_type"):
        assert repr(config["model_type"]) in str(error.value)


def test_unknown_fields_are_reported_and_boilerplate_is_not() -> None:
    boilerplate = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "transformers_version": "5",
        "initializer_range": 0.02,
        "pad_token_id": 0,
    }
    assert read(DENSE | boilerplate).unknown_keys == ()
    nested = {
        "model_type": "qwen3_5",
        "novel": 1,
        "vision_config": {"depth": 3},
        "text_config": DENSE | boilerplate | {"novel_gate": True, "rope_parameters": ROPE | {"factor": 2.0}},
    }
    assert read(nested).unknown_keys == ("novel", "text_config.novel_gate", "text_config.rope_parameters.factor")


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_configs_that_transformers_writes_have_no_unknown_field(name: str) -> None:
    assert read(json.loads((GOLDEN / name / "config.json").read_text())).unknown_keys == ()


def kinds(config: Mapping[str, Any]) -> str:
    return "".join("a" if isinstance(mixer, AttentionConfig) else "r" for mixer, _ in read(config).layers)


def test_a_decision_model_is_read_from_its_text_config() -> None:
    """The text's config may be nested; only decision-head tensors are skipped."""
    for below in (DENSE, {"model_type": "qwen3_5", "text_config": DENSE}):
        config = {"model_type": "jev", "hidden_size": 1, "text_config": below}
        family, inner = family_of(config), family_of(below)
        assert family.read_config(config) == inner.read_config(below)
        assert family.skips("proj.weight") and family.skips("proj.bias") and not inner.skips("proj.weight")
        assert family.with_head is not None and family.with_head.skips("proj.weight")
    with pytest.raises(ConfigError, match="text_config: expected an object"):
        family_of({"model_type": "jev"})
    with pytest.raises(UnsupportedModel):
        family_of({"model_type": "jev", "text_config": {"model_type": "gemma3"}})


def test_layer_types_and_interval() -> None:
    assert kinds(DENSE) == "rrrarrra"
    assert kinds(DENSE | {"full_attention_interval": 3}) == "rrarrarr"
    assert kinds(DENSE | {"full_attention_interval": 1}) == "a" * 8
    types = ["full_attention", "linear_attention"] * 4
    assert kinds(DENSE | {"layer_types": types}) == "arararar"
    assert kinds(DENSE | {"layer_types": types, "full_attention_interval": 4}) == "arararar"
    assert faults_of(DENSE | {"full_attention_interval": 0})


@pytest.mark.parametrize(("outer", "inner", "tied"), [
    (None, None, False),
    (True, None, True),
    (False, None, False),
    (None, True, True),
    (None, False, False),
    (True, True, True),
    # As transformers does where they differ.
    (True, False, True),
    (False, True, False),
])  # fmt: skip
def test_tied_embeddings_outside_or_inside(outer: bool | None, inner: bool | None, tied: bool) -> None:
    text = DENSE | ({} if inner is None else {"tie_word_embeddings": inner})
    config = {"model_type": "qwen3_5", "text_config": text}
    config |= {} if outer is None else {"tie_word_embeddings": outer}
    assert read(config).tied is tied


def test_a_flat_config_is_the_nested_one() -> None:
    for flat, outer in ((DENSE, "qwen3_5"), (SPARSE, "qwen3_5_moe")):
        nested = read({"model_type": outer, "text_config": flat})
        assert replace(nested, placeholders=()) == read(flat)
        assert nested.placeholders == (248_056, 248_057), "of transformers' multimodal config"
        assert read(flat).family == outer


def test_reading_changes_nothing() -> None:
    start = copy.deepcopy(NEXT)
    read(NEXT)
    assert start == NEXT


def sparse_layers(**change: Any) -> str:
    layers = read(NEXT | change).layers
    assert {forward for _, forward in layers} <= {
        MlpConfig(96),
        MoeConfig(RouterConfig(8, 3, normalise=True), 32, 48, shared_gate=True),
    }
    return "".join("e" if isinstance(forward, MoeConfig) else "d" for _, forward in layers)


def test_dense_layers_of_qwen3_next() -> None:
    assert sparse_layers() == "eeeeeeee"
    assert sparse_layers(decoder_sparse_step=2) == "dededede"
    assert sparse_layers(decoder_sparse_step=3) == "ddeddedd"
    assert sparse_layers(mlp_only_layers=[0, 7]) == "deeeeeed"
    assert sparse_layers(mlp_only_layers=[1], decoder_sparse_step=2) == "dddedede"
    assert faults_of(NEXT | {"decoder_sparse_step": 0})
    assert faults_of(NEXT | {"mlp_only_layers": [-1]})


@pytest.mark.parametrize("normalise", [True, False])
def test_only_qwen3_next_chooses_whether_to_normalise(normalise: bool) -> None:
    for config, expected in ((NEXT, normalise), (SPARSE, True)):
        moe = read(config | {"norm_topk_prob": normalise}).layers[0][1]
        assert isinstance(moe, MoeConfig) and moe.router.normalise is expected
    assert "norm_topk_prob" in faults_of(NEXT | {"norm_topk_prob": None})[0]  # false in transformers


@pytest.mark.parametrize(("value", "ids"), [(None, ()), (7, (7,)), (0, (0,)), ([7, 9], (7, 9)), ([], ())])
def test_end_tokens(value: Any, ids: tuple[int, ...]) -> None:
    assert read(DENSE | {"eos_token_id": value}).eos_token_ids == ids
    text = {name: field for name, field in DENSE.items() if name != "eos_token_id"}
    assert read({"model_type": "qwen3_5", "text_config": text, "eos_token_id": value}).eos_token_ids == ids


@pytest.mark.parametrize(("outer", "inner", "dtype"), [
    ({}, {}, "bfloat16"),
    ({"dtype": "float32"}, {}, "float32"),
    ({"torch_dtype": "float16"}, {}, "float16"),
    ({"dtype": "bfloat16"}, {"dtype": "float32"}, "float32"),
    ({}, {"torch_dtype": "float16"}, "float16"),
    ({"dtype": "float16"}, {"dtype": None}, "float16"),
])  # fmt: skip
def test_dtype(outer: dict[str, Any], inner: dict[str, Any], dtype: str) -> None:
    assert read({"model_type": "qwen3_5", "text_config": DENSE | inner, **outer}).dtype == dtype
