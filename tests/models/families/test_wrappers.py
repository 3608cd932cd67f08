"""Multimodal models: inner config, tensor names, skipped parts, classes, placeholder tokens."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models import WRAPPERS, ConfigError, UnsupportedModel, family_of
from models.families.wrappers import JEV

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
CHECKPOINTS = {
    None: "lfm2_base", "lfm2": "lfm2_base", "qwen3_5_text": "dense_interval", "qwen3_5_moe_text": "sparse_base",
    "nemotron_h": "nemotron_latent", "bailing_hybrid": "ling_base",
}  # fmt: skip
"""`model_type` of a text model -> a checkpoint of its family."""
# Outer type, key of the inner config, root of the inner tensors and name of the head, tensors of other parts.
FILES: list[tuple[str, str, str, str, list[str]]] = [
    (
        "lfm2_vl", "text_config", "model.language_model.", "lm_head.weight",
        ["model.vision_tower.vision_model.head.weight", "model.multi_modal_projector.linear_1.weight"],
    ),
    ("lfm2-vl", "text_config", "language_model.model.", "language_model.lm_head.weight", ["multi_modal_projector.a"]),
    (
        "lfm2_audio", "lfm", "lfm.", "lm_head.weight",
        ["conformer.layers.0.a", "audio_adapter.model.0.a", "depthformer.layers.0.a", "depth_embeddings.0.a"],
    ),
    (
        "minicpmv4_6", "text_config", "model.language_model.", "lm_head.weight",
        ["model.vision_tower.a", "model.merger.a"],
    ),
    ("minicpmv4_7", "text_config", "model.language_model.", "lm_head.weight", ["model.merger.mlp.0.a"]),
    ("minicpm_ocr", "text_config", "model.language_model.", "lm_head.weight", ["model.vision_tower.encoder.a"]),
    (
        "NemotronH_Nano_VL_V2", "llm_config", "language_model.backbone.", "language_model.lm_head.weight",
        ["vision_model.radio_model.a", "mlp1.0.weight"],
    ),
    (
        "NemotronH_Nano_Omni_Reasoning_V3", "llm_config", "language_model.backbone.", "language_model.lm_head.weight",
        ["sound_encoder.encoder.layers.0.a", "sound_projection.norm.weight", "vision_projector.a"],
    ),
    (
        "nemotron_h_omni", "text_config", "language_model.model.", "language_model.lm_head.weight",
        ["audio_tower.a", "embed_audio.a", "vision_final_layernorm.weight"],
    ),
    (
        "nemo_speechlm", "text_config", "model.language_model.", "lm_head.weight",
        ["model.audio_tower.a", "model.word_timestamp_encoder.a", "word_timestamp_head.weight"],
    ),
    (
        "intern_s2_preview", "text_config", "model.language_model.", "lm_head.weight",
        ["model.visual.blocks.0.a", "model.time_series.a", "time_series_forecaster.a", "mtp.fc.weight"],
    ),
    (
        "bailing_moe_v3_vl", "text_config", "model.", "lm_head.weight",
        ["model.visual.pos_embed.weight", "linear_proj.0.bias"],
    ),
    (JEV, "text_config", "model.", "lm_head.weight", ["proj.weight", "proj.bias"]),
]  # fmt: skip


def inner_config(model_type: str) -> dict[str, Any]:
    """Return the config.json of a text model that a wrapper of this type may have."""
    text = next(wrapper.text for wrapper in WRAPPERS if model_type in wrapper.model_types)
    fields = json.loads((GOLDEN / CHECKPOINTS[text] / "config.json").read_text())
    return fields if text is None else fields | {"model_type": text}


def wrapped(model_type: str, key: str = "text_config", **outer: Any) -> dict[str, Any]:
    return {"model_type": model_type, key: inner_config(model_type), "tie_word_embeddings": False, **outer}


def test_every_wrapper_has_a_case() -> None:
    cases = {model_type for model_type, *_ in FILES}
    assert all(cases & set(wrapper.model_types) for wrapper in WRAPPERS)
    names = [name for wrapper in WRAPPERS for name in wrapper.model_types]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("model_type", "key", "root", "head", "parts"), FILES, ids=[case[0] for case in FILES])
def test_names_and_configuration(model_type: str, key: str, root: str, head: str, parts: list[str]) -> None:
    """The text model follows its own config.json; tensors keep places, other parts are skipped."""
    fields = wrapped(model_type, key)
    inner, family = family_of(fields[key]), family_of(fields)
    config, expected = family.read_config(fields), inner.read_config(fields[key])
    assert replace(config, placeholders=(), tied=True) == replace(expected, tied=True, unknown_keys=config.unknown_keys)
    names = {name for weight in family.weights(config) for name in weight.options[0].shapes}
    assert names
    for name in names:
        in_file = head if name == "lm_head.weight" else root + name.removeprefix(inner.root)
        assert family.canonical(in_file) == name
        assert not family.skips(in_file) and not family.skips(name)
    assert all(family.skips(part) for part in parts)
    assert not any(inner.skips(part) for part in parts if not part.startswith(("model.visual", "mtp")))


@pytest.mark.parametrize(("in_file", "name"), [
    ("llm.model.embed_tokens.weight", "backbone.embeddings.weight"),
    ("llm.model.norm.weight", "backbone.norm_f.weight"),
    ("llm.model.layers.0.mixer._fp32_params.A_log", "backbone.layers.0.mixer.A_log"),
    ("llm.model.layers.0.mixer.in_proj.weight", "backbone.layers.0.mixer.in_proj.weight"),
    ("llm.lm_head.weight", "lm_head.weight"),
])  # fmt: skip
def test_names_as_nemo_exports_them(in_file: str, name: str) -> None:
    family = family_of(wrapped("nemo_speechlm"))
    assert family.canonical(in_file) == name and not family.skips(name)
    assert family.skips(family.canonical("llm.mtp.layers.0.a")) and family.skips("perception.proj.weight")
    assert family.skips("llm.model.layers.1.mixer.in_proj._extra_state")


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda wrapper: wrapper.model_types[0])
def test_classes(wrapper: Any) -> None:
    """Listed classes are accepted; the text model's class and others are refused by name."""
    model_type = wrapper.model_types[0]
    for name in wrapper.architectures:
        family_of(wrapped(model_type, architectures=[name], auto_map={"AutoModel": f"modeling.{name}"}))
    for name in ("Lfm2ForCausalLM", "DiffusionModel"):
        with pytest.raises(UnsupportedModel, match=name):
            family_of(wrapped(model_type, architectures=[name]))
    inner = inner_config(model_type) | {"architectures": ["Lfm2BidirectionalModel"]}
    with pytest.raises(UnsupportedModel, match="Lfm2BidirectionalModel"):
        family_of({"model_type": model_type, "text_config": inner})


@pytest.mark.parametrize("model_type", ["lfm4_vl", "minicpmv9", "lfm3_vl", "NemotronH_Nano_VL_V9"])
def test_an_unknown_wrapper_is_refused_by_name(model_type: str) -> None:
    with pytest.raises(UnsupportedModel, match=model_type):
        family_of({"model_type": model_type, "text_config": inner_config("lfm2_vl")})


@pytest.mark.parametrize("fields", [
    {},
    {"text_config": None},
    {"text_config": []},
    {"text_config": inner_config("lfm2_vl"), "llm_config": inner_config("minicpmv4_6")},
], ids=["none", "null", "list", "two"])  # fmt: skip
def test_one_text_model_is_required(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="text_config"):
        family_of({"model_type": "lfm2_vl", **fields})


def test_a_wrapper_inside_a_wrapper_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="lfm2_vl"):
        family_of({"model_type": JEV, "text_config": wrapped("lfm2_vl")})


def test_faults_of_the_text_model_and_of_the_outer_config() -> None:
    fields = wrapped("lfm2_vl")
    fields["text_config"]["conv_bias"] = True
    with pytest.raises(ConfigError, match="conv_bias"):
        family_of(fields).read_config(fields)
    outer: dict[str, Any]
    for outer in ({"is_causal": False}, {"tie_word_embeddings": "no"}, {"image_token_id": "<image>"}):
        fields = wrapped("lfm2_vl", **outer)
        with pytest.raises(ConfigError, match=next(iter(outer))):
            family_of(fields).read_config(fields)


@pytest.mark.parametrize(
    ("model_type", "outer", "tied"),
    [
        ("lfm2_vl", {"tie_word_embeddings": None}, True),
        ("lfm2_vl", {"tie_word_embeddings": True, "tie_embedding": False}, False),
        ("minicpmv4_6", {"tie_word_embeddings": None}, False),
        ("minicpm_ocr", {"tie_word_embeddings": None}, True),
        ("minicpmv4_7", {"tie_word_embeddings": True}, True),
        # The head belongs to the text model here; its own field counts.
        ("nemotron_h_omni", {"tie_word_embeddings": True}, False),
    ],
)
def test_the_head_is_the_embedding_if_the_outer_config_ties_them(model_type: str, outer: Any, tied: bool) -> None:
    fields = {name: field for name, field in wrapped(model_type, **outer).items() if field is not None}
    assert family_of(fields).read_config(fields).tied is tied


@pytest.mark.parametrize(("fields", "ids"), [
    (wrapped("lfm2_vl"), (396,)),
    (wrapped("lfm2_vl", image_token_id=7), (7,)),
    (wrapped("minicpmv4_6", image_token_id=5, video_token_id=4), (4, 5)),
    (wrapped("nemotron_h_omni", img_context_token_id=9, sound_context_token_id=8, audio_token_id=None), (8, 9)),
    (json.loads((GOLDEN / "dense_multimodal" / "config.json").read_text()), (95, 96)),
    (json.loads((GOLDEN / "dense_interval" / "config.json").read_text()), ()),
])  # fmt: skip
def test_placeholders(fields: dict[str, Any], ids: tuple[int, ...]) -> None:
    assert family_of(fields).read_config(fields).placeholders == ids


def test_fields_that_the_text_model_leaves_out_are_the_outer_ones() -> None:
    fields = wrapped("minicpmv4_6", dtype="float16", eos_token_id=[3, 4])
    for name in ("dtype", "torch_dtype", "eos_token_id"):
        fields["text_config"].pop(name, None)
    config = family_of(fields).read_config(fields)
    assert (config.dtype, config.eos_token_ids) == ("float16", (3, 4))
