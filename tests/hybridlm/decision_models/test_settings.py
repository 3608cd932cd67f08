"""The files of decision models: each fault is named, other heads are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decision_checkpoint import write_decider, write_jev
from safetensors.numpy import save_file

from hybridlm.checkpoint import CheckpointError
from hybridlm.checkpoint.adapters import adapter_folder
from hybridlm.decision_models.heads import SlotHead
from hybridlm.decision_models.questions import read_questions
from hybridlm.decision_models.settings import DecisionSettings, read_settings

HIDDEN = 8


def test_without_files_every_model_is_one(tmp_path: Path) -> None:
    assert read_settings(tmp_path, HIDDEN) == DecisionSettings()
    assert read_settings(tmp_path / "model.gguf", HIDDEN) == DecisionSettings()
    assert adapter_folder(tmp_path) is None


def test_files_of_any_model(tmp_path: Path) -> None:
    options = {"labels": {"score": ["0", "1"]}, "temperature": {"choice": 2}, "noul_options": ["false", "true"]}
    (tmp_path / "decision.json").write_text(json.dumps(options | {"sanitize_control_tokens": False, "adapter": "lora"}))
    (tmp_path / "decision_template.jinja").write_text("{{ question.name }}")
    result = read_settings(tmp_path, HIDDEN)
    assert (result.labels, result.temperature) == ({"score": ("0", "1")}, {"choice": 2.0})
    assert (result.noul_options, result.sanitize_control_tokens) == (("false", "true"), False)
    assert (result.template, result.adapter) == ("{{ question.name }}", "lora")
    assert adapter_folder(tmp_path) == "lora"
    digests = {result.digest, DecisionSettings().digest}
    for change in ({"temperature": {"choice": 3}}, {"sanitize_control_tokens": True}, {"labels": {}}):
        (tmp_path / "decision.json").write_text(json.dumps(options | change))
        digests.add(read_settings(tmp_path, HIDDEN).digest)
    assert len(digests) == 5
    (tmp_path / "decision.json").write_text(json.dumps({"sort_choices": True}))
    with pytest.warns(UserWarning, match="sort_choices"):
        read_settings(tmp_path, HIDDEN)


def test_files_of_a_jev_model(tmp_path: Path) -> None:
    write_jev(tmp_path, HIDDEN, softcap=30, adapter_subfolder="adapter")
    extra = read_settings(tmp_path, HIDDEN)
    assert extra.head is not None and extra.head.weight.shape == (24, HIDDEN) and extra.head.bias.shape == (24,)
    assert (extra.head.softcap, extra.head.offsets) == (30.0, {"noul": 0, "score": 2, "choice": 8})
    assert extra.labels["noul"] == ("no", "yes") and len(extra.labels["choice"]) == 16
    assert extra.temperature == {"noul": 1.5, "score": 0.75, "choice": 2.0}
    assert (extra.adapter, extra.noul_options, adapter_folder(tmp_path)) == ("adapter", ("false", "true"), "adapter")
    (tmp_path / "decision.json").write_text("{}")
    with pytest.warns(UserWarning, match=r"decision\.json: not used"):
        assert read_settings(tmp_path, HIDDEN).digest == extra.digest
    (tmp_path / "decision.json").unlink()
    other = tmp_path / "other"
    other.mkdir()
    write_jev(other, HIDDEN, seed=1, softcap=30, adapter_subfolder="adapter")
    assert read_settings(other, HIDDEN).digest != extra.digest


def write_saved_jev(directory: Path, **fields: Any) -> None:
    """A head saved by transformers among other tensors; `fields` are of config.json."""
    rng = np.random.default_rng(0)
    tensors = {"proj.weight": rng.normal(size=(24, HIDDEN)), "proj.bias": rng.normal(size=24), "model.norm": np.ones(3)}
    save_file({name: tensor.astype(np.float32) for name, tensor in tensors.items()}, directory / "model.safetensors")
    below = {"model_type": "qwen3_5_text"}
    settings = {"model_type": "jev", "num_verbalizers": 24, "offsets": None, "softcap": 2, "text_config": below}
    (directory / "config.json").write_text(json.dumps(settings | fields))


def test_a_jev_model_that_transformers_saved(tmp_path: Path) -> None:
    (tmp_path / "decision.json").write_text(json.dumps({"temperature": {"choice": 2}}))
    write_saved_jev(tmp_path)
    settings = read_settings(tmp_path, HIDDEN)
    assert settings.head is not None and settings.temperature == {"choice": 2.0}
    assert (settings.head.weight.shape, settings.head.softcap) == ((24, HIDDEN), 2.0)
    assert settings.head.offsets == {"noul": 0, "score": 2, "choice": 8}
    write_saved_jev(tmp_path, offsets={"choice": 3}, softcap=None)
    other = read_settings(tmp_path, HIDDEN)
    assert other.head is not None and (other.head.offsets, other.head.softcap) == ({"choice": 3}, None)
    assert other.digest != settings.digest
    with pytest.raises(CheckpointError, match="expected the tensors"):
        read_settings(tmp_path, HIDDEN + 1)
    for name, wrong in {"num_verbalizers": 0, "offsets": {"choice": 24}, "softcap": -1}.items():
        write_saved_jev(tmp_path, **{name: wrong})
        with pytest.raises(CheckpointError, match=f"{name}: expected"):
            read_settings(tmp_path, HIDDEN)


@pytest.mark.parametrize("file", ["joint_head.safetensors", "head.pt"])
def test_heads_that_are_not_implemented_are_named(tmp_path: Path, file: str) -> None:
    """Weights that would answer by labels, as in clef and kev models."""
    (tmp_path / file).touch()
    with pytest.raises(CheckpointError, match=f"decide: found {file}, the head of (clef|kev)"):
        read_settings(tmp_path, HIDDEN)


def test_architectures_that_are_not_implemented_are_named(tmp_path: Path) -> None:
    for name in ("ClefForDecision", "KevForDecision", "LayaTypedDecisions"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "architectures": [name]}))
        with pytest.raises(CheckpointError, match=f"decide: found {name};"):
            read_settings(tmp_path, HIDDEN)
    write_saved_jev(tmp_path, architectures=["JevForDecision"])
    assert read_settings(tmp_path, HIDDEN).head is not None
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3_5ForConditionalGeneration"]}))
    assert read_settings(tmp_path, HIDDEN) == DecisionSettings()


def test_no_more_options_than_rows() -> None:
    head = SlotHead(np.zeros((5, HIDDEN), np.float32), np.zeros(5, np.float32), None, {"choice": 2})
    (three,), (four,), (noul,) = (
        read_questions({"q": question}, {}, ("true", "false"))
        for question in (
            {"type": "choice", "criteria": {"a": None, "b": None, "c": None}},
            {"type": "choice", "criteria": {"a": None, "b": None, "c": None, "d": None}},
            {"type": "noul"},
        )
    )
    head.check(three)
    for wrong in (four, noul):
        with pytest.raises(ValueError, match=r"questions\['q'\]: .*rows"):
            head.check(wrong)


WRONG: dict[str, dict[str, Any]] = {
    "labels: expected": {"labels": ["A"]},
    "labels\\['rank'\\]": {"labels": {"rank": ["A"]}},
    "labels\\['noul'\\]": {"labels": {"noul": [1, 2]}},
    "temperature: ": {"temperature": {"choice": 0}},
    "noul_options: ": {"noul_options": ["true"]},
    "sanitize_control_tokens: ": {"sanitize_control_tokens": "no"},
    "chat_template: ": {"chat_template": 5},
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_settings(tmp_path: Path, fault: str) -> None:
    (tmp_path / "decision.json").write_text(json.dumps(WRONG[fault]))
    with pytest.raises(CheckpointError, match=rf"decision\.json: {fault}"):
        read_settings(tmp_path, HIDDEN)


@pytest.mark.parametrize("name", ["../x", "/x", "", 5])
def test_adapters_lie_inside(tmp_path: Path, name: Any) -> None:
    (tmp_path / "decision.json").write_text(json.dumps({"adapter": name}))
    with pytest.raises(CheckpointError, match="adapter: "):
        adapter_folder(tmp_path)


def slots(**fields: Any) -> dict[str, Any]:
    ranges = {"noul": [0, 2], "score": [2, 3], "choice": [2, 4]}
    return {"slots": {"verbalizers": list("abcd"), "ranges": ranges, "num_slots": 4} | fields}


JUDGES: dict[str, dict[str, Any]] = {
    "slots.verbalizers: ": {"slots": 5},
    "slots.num_slots: ": slots(num_slots=2000),
    "slots.ranges: expected type -> ": slots(ranges={"noul": [0, 5]}),
    "slots.ranges: expected types": slots(ranges={"rank": [0, 2]}),
    "softcap: ": slots() | {"softcap": 0},
}


@pytest.mark.parametrize("fault", JUDGES)
def test_wrong_judges(tmp_path: Path, fault: str) -> None:
    write_jev(tmp_path, HIDDEN, **JUDGES[fault])
    with pytest.raises(CheckpointError, match=fault):
        read_settings(tmp_path, HIDDEN)


def test_wrong_heads(tmp_path: Path) -> None:
    write_jev(tmp_path, HIDDEN)
    with pytest.raises(CheckpointError, match=r"head\.safetensors: expected the tensors"):
        read_settings(tmp_path, HIDDEN + 1)
    weight = np.full((24, HIDDEN), np.nan, np.float32)
    save_file({"proj.weight": weight, "proj.bias": np.zeros(24, np.float32)}, tmp_path / "head.safetensors")
    with pytest.raises(CheckpointError, match="finite"):
        read_settings(tmp_path, HIDDEN)
    (tmp_path / "head.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"head\.safetensors: expected the head"):
        read_settings(tmp_path, HIDDEN)
    write_jev(tmp_path, HIDDEN)
    (tmp_path / "calibration.json").write_text('{"per_kind": {"noul": -1}}')
    with pytest.raises(CheckpointError, match=r"calibration\.json: per_kind: "):
        read_settings(tmp_path, HIDDEN)
    (tmp_path / "judge_config.json").unlink()
    with pytest.raises(CheckpointError, match="expected judge_config.json"):
        read_settings(tmp_path, HIDDEN)


@pytest.mark.parametrize(("fault", "fields"), [
    ("attention_mode: 'noncausal_full_attention'", {"attention_mode": "noncausal_full_attention"}),
    ("codes: ", {"codes": []}),
    ("codes: ", {"codes": [5]}),
    ("temperature: ", {"temperature": None}),
    ("prompt: ", {"prompt": "d4"}),
])  # fmt: skip
def test_wrong_deciders(tmp_path: Path, fault: str, fields: dict[str, Any]) -> None:
    write_decider(tmp_path, HIDDEN, **fields)
    with pytest.raises(CheckpointError, match=fault):
        read_settings(tmp_path, HIDDEN)


def test_files_of_a_decider(tmp_path: Path) -> None:
    write_decider(tmp_path, HIDDEN, prompt="d3", attention_mode="causal")
    settings = read_settings(tmp_path, HIDDEN)
    assert settings.head is not None and settings.head.weight.shape == (26, HIDDEN) and not settings.head.bias.any()
    assert settings.head.offsets == {"noul": 0, "score": 0, "choice": 0} and settings.labels["noul"][:2] == ("A", "B")
    assert settings.temperature == {"noul": 0.7, "score": 0.7, "choice": 0.7} and settings.adapter is None
    (tmp_path / "decision_config.json").unlink()
    with pytest.raises(CheckpointError, match="expected decision_config.json beside readout.safetensors"):
        read_settings(tmp_path, HIDDEN)
