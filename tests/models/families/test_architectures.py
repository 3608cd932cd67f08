"""Classes of config.json: families compute their listed classes, and refuse others by name."""

from typing import Any

import pytest

from models import FAMILIES, JEV, UnsupportedModel, family_of

REMOTE = {
    "nemotron_h": {"AutoModelForCausalLM": "modeling_nemotron_h.NemotronHForCausalLM"},
    "kimi_linear": {"AutoModel": "modeling_kimi.KimiLinearModel", "AutoConfig": "configuration_kimi.KimiLinearConfig"},
    "bailing_hybrid": {
        "AutoConfig": "configuration_bailing_moe_v3.BailingMoeV3Config",
        "AutoModel": "modeling_bailing_moe_v3.BailingMoeV3Model",
        "AutoModelForCausalLM": "modeling_bailing_moe_v3.BailingMoeV3ForCausalLM",
        "AutoTokenizer": ["tokenization.Own", None],
    },
    "lfm2": {"AutoModelForCausalLM": "organisation/model--modeling.Lfm2ForCausalLM"},
}
"""`auto_map` of published checkpoints with an implemented class."""

# Published encoders, diffusion models and variants with the tensor names or the `model_type` of a family.
OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("lfm2", {"architectures": ["Lfm2BidirectionalModel"]}, "Lfm2BidirectionalModel"),
    ("lfm2", {"architectures": ["Lfm2BidirectionalForMaskedLM"]}, "Lfm2BidirectionalForMaskedLM"),
    ("lfm2", {"architectures": ["Lfm2DiffusionForCausalLM"]}, "Lfm2DiffusionForCausalLM"),
    ("lfm2", {"architectures": ["Lfm2ForTokenClassification"]}, "Lfm2ForTokenClassification"),
    ("lfm2", {"auto_map": {"AutoModel": "modeling_lfm2_bidirectional.Lfm2BidirectionalModel"}}, "Lfm2Bidirectional"),
    (
        "lfm2",
        {"architectures": ["Lfm2Model"], "auto_map": {"AutoModel": "a/b--modeling.Lfm2EncoderModel"}},
        "Lfm2EncoderModel",
    ),
    ("lfm2", {"architectures": ["Lfm2ForCausalLM", "Lfm2BidirectionalModel"]}, "Lfm2BidirectionalModel"),
    ("lfm2", {"architectures": "Lfm2BidirectionalModel"}, "Lfm2BidirectionalModel"),
    ("lfm2", {"architectures": [["Lfm2ForCausalLM"]]}, "Lfm2ForCausalLM"),
    ("lfm2", {"auto_map": "modeling.Lfm2ForCausalLM"}, "auto_map"),
    ("bailing_hybrid", {"architectures": ["BailingMoeV2ForCausalLM"]}, "BailingMoeV2ForCausalLM"),
    (
        "bailing_hybrid",
        {"auto_map": {"AutoModelForCausalLM": "modeling_bailing_moe_v2.BailingMoeV2ForCausalLM"}},
        "BailingMoeV2ForCausalLM",
    ),
    ("qwen3_5", {"text_config": {"architectures": ["Qwen3_5BidirectionalModel"]}}, "text_config.architectures"),
    ("qwen3_5_text", {"architectures": ["GLiNextQwen3_5TextModel"]}, "GLiNextQwen3_5TextModel"),
    ("nemotron_h", {"architectures": ["NemotronHPuzzleForCausalLM"]}, "NemotronHPuzzleForCausalLM"),
    ("qwen3_next", {"architectures": ["Qwen3NextForQuestionAnswering"]}, "Qwen3NextForQuestionAnswering"),
    (JEV, {"architectures": ["KevForDecision"], "text_config": {"model_type": "lfm2"}}, "KevForDecision"),
    (
        JEV,
        {"text_config": {"model_type": "lfm2", "architectures": ["Lfm2BidirectionalModel"]}},
        "Lfm2BidirectionalModel",
    ),
]


def refused(fields: dict[str, Any]) -> str:
    with pytest.raises(UnsupportedModel) as caught:
        family_of(fields)
    return str(caught.value)


@pytest.mark.parametrize(("model_type", "fields", "name"), OTHERS)
def test_another_class_is_refused_by_name(model_type: str, fields: dict[str, Any], name: str) -> None:
    message = refused({"model_type": model_type, **fields})
    assert name in message and "nearest supported family" in message


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_listed_class_is_accepted(family: Any) -> None:
    for model_type in family.model_types:
        for name in family.architectures:
            assert family_of({"model_type": model_type, "architectures": [name]}) is family
        assert any(name.endswith("ForCausalLM") for name in family.architectures)


@pytest.mark.parametrize("fields", [{}, {"architectures": None}, {"architectures": []}, {"auto_map": {}}], ids=str)
def test_a_file_that_names_no_class_is_accepted(fields: dict[str, Any]) -> None:
    for family in FAMILIES:
        assert family_of({"model_type": family.name, **fields}) is family


@pytest.mark.parametrize("name", REMOTE)
def test_code_of_a_checkpoint_is_accepted_for_a_listed_class(name: str) -> None:
    assert family_of({"model_type": name, "auto_map": REMOTE[name]}).name == name


def test_a_class_of_another_family_names_that_family() -> None:
    message = refused({"model_type": "lfm2", "architectures": ["Lfm2MoeForCausalLM"]})
    assert "nearest supported family is lfm2_moe" in message


@pytest.mark.parametrize(("fields", "nearest"), [
    ({"model_type": "lfm2_diffusion", "architectures": ["Lfm2DiffusionForBlockDiffusion"]}, "lfm2"),
    ({"model_type": "nemotron_h_puzzle", "architectures": ["NemotronHPuzzleForCausalLM"]}, "nemotron_h"),
    ({"model_type": "bailing_moe_linear", "architectures": ["BailingMoeLinearV2ForCausalLM"]}, "bailing_hybrid"),
    ({"architectures": ["Qwen3_5MoeForCausalLM"]}, "qwen3_5_moe"),
    ({"architectures": ["GigaChat35ForCausalLM"]}, "gigachat3_5"),
], ids=lambda item: item if isinstance(item, str) else "")  # fmt: skip
def test_the_nearest_family_of_an_unknown_model_type(fields: dict[str, Any], nearest: str) -> None:
    message = refused(fields)
    assert fields["architectures"][0] in message and message.endswith(f"nearest supported family is {nearest}")


@pytest.mark.parametrize(("fields", "part"), [
    ({"model_type": "glm5_next"}, "several residual streams (mHC)"),
    ({"model_type": "glm5_next_text"}, "attention over indexed positions"),
    ({"model_type": "inkling"}, "short convolutions inside attention"),
    ({"model_type": "zaya"}, "convolutions over compressed keys and values"),
], ids=lambda item: item if isinstance(item, str) else "")  # fmt: skip
def test_missing_parts_of_known_families_are_named(fields: dict[str, Any], part: str) -> None:
    assert part in refused(fields) and "this is not implemented; supported are" in refused(fields)
