"""Heads of Nemotron-H and Ling: tokens, accepted drafts, prefixes, saved models, faults."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_checkpoint import write_random_checkpoint
from safetensors.numpy import load_file, save_file

import hybridlm
from hybridlm import CheckpointError, ConfigError
from models import family_of

pytestmark = pytest.mark.usefixtures("always")
NEMOTRON = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E", "mtp_layers_block_type": None}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "nemotron_h": ("nemotron_latent", NEMOTRON),
    "bailing_hybrid": ("ling_base", {"num_nextn_predict_layers": 1, "num_mtp_layers": None}),
}
LOADED: dict[str, Any] = {"lanes": 2, "context": 96, "dtype": "float32", "chunk": 16, "draft_tokens": 3}
SETTINGS: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True}
SAMPLED: dict[str, Any] = SETTINGS | {"temperature": 0.8, "top_k": 40, "seed": 5}
PROMPTS = [np.random.default_rng(n).integers(3, 60, size=n).tolist() for n in (5, 1, 17, 40)]
HEAD_NAMES = {
    "nemotron_h": {"fc": "mtp.layers.0.eh_proj", "enorm": "mtp.layers.0.enorm", "norm": "mtp.layers.1.final_layernorm"},
    "bailing_hybrid": {
        "fc": "model.layers.3.eh_proj",
        "enorm": "model.layers.3.enorm",
        "norm": "model.layers.3.final_layernorm",
    },
}
FINAL_NORMS = {"nemotron_h": "backbone.norm_f.weight", "bailing_hybrid": "model.norm.weight"}
OUTPUTS = ("out_proj", "o_proj", "dense", "down_proj")


def write(family: str, folder: Path, **fields: Any) -> Path:
    name, settings = VARIANTS[family]
    return write_random_checkpoint(name, folder, head=True, **settings | fields)


def write_agreeing(family: str, folder: Path) -> Path:
    """Write a model with an agreeing head: layers add nothing, the head repeats embeddings."""
    write(family, folder)
    tensors, names = load_file(folder / "model.safetensors"), HEAD_NAMES[family]
    for name, array in tensors.items():
        if name.removesuffix(".weight").endswith(OUTPUTS):
            tensors[name] = np.zeros_like(array)
        if "embedding" in name:
            # Large, so that the constants of two norms in a row do not count.
            tensors[name] = array * np.float32(1000)
    hidden = len(tensors[FINAL_NORMS[family]])
    tensors[f"{names['fc']}.weight"] = np.eye(hidden, 2 * hidden, dtype=np.float32)
    tensors[f"{names['enorm']}.weight"] = np.ones(hidden, np.float32)
    tensors[f"{names['norm']}.weight"] = tensors[FINAL_NORMS[family]]
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("family", VARIANTS)
def test_random_drafts_change_nothing(tmp_path: Path, family: str) -> None:
    """More requests than lanes, greedy and sampled. A saved model has the head."""
    lm = hybridlm.load(write(family, tmp_path / "m"), speculate="mtp", **LOADED)
    for settings in (SETTINGS, SAMPLED):
        expected = [completion.token_ids for completion in lm.generate(PROMPTS, speculate=None, **settings)]
        drafted = lm.stats["drafted_tokens"]
        assert [completion.token_ids for completion in lm.generate(PROMPTS, **settings)] == expected
        assert lm.stats["drafted_tokens"] - drafted > 100
    batched = [completion.token_ids for completion in lm.generate(PROMPTS, **SETTINGS)]
    assert [lm.generate([prompt], **SETTINGS)[0].token_ids for prompt in PROMPTS] == batched
    assert lm.stats["accepted_tokens"] < lm.stats["drafted_tokens"] / 4
    assert lm.certificates and not any(certificate.faults for certificate in lm.certificates.values())
    lm.save(tmp_path / "saved")
    saved = hybridlm.load(tmp_path / "saved", speculate="mtp", **LOADED)
    for name, array in lm.params.items():
        np.testing.assert_array_equal(np.asarray(saved.params[name]), np.asarray(array))


@pytest.mark.slow
@pytest.mark.parametrize("family", VARIANTS)
def test_all_drafts_of_a_head_that_agrees_are_accepted(tmp_path: Path, family: str) -> None:
    """Also with a temperature and after a prefix with the head's state."""
    lm = hybridlm.load(write_agreeing(family, tmp_path / "m"), speculate="mtp", **LOADED)
    for settings in (SETTINGS, SAMPLED):
        expected = [completion.token_ids for completion in lm.generate(PROMPTS, speculate=None, **settings)]
        assert [completion.token_ids for completion in lm.generate(PROMPTS, **settings)] == expected
    assert lm.stats["accepted_tokens"] == lm.stats["drafted_tokens"] > 60
    text = PROMPTS[3]
    (completion,) = lm.generate([text[23:]], prefix=lm.prefix(text[:23]), **SETTINGS)
    assert completion.token_ids == lm.generate([text], speculate=None, **SETTINGS)[0].token_ids
    assert lm.stats["accepted_tokens"] == lm.stats["drafted_tokens"]


@pytest.mark.parametrize("family", VARIANTS)
def test_a_checkpoint_without_the_head_is_named(tmp_path: Path, family: str) -> None:
    folder = write(family, tmp_path / "m")
    beginnings = {name.rpartition(".")[0] for name in HEAD_NAMES[family].values()}
    tensors = load_file(folder / "model.safetensors")
    remaining = {name: array for name, array in tensors.items() if not name.startswith(tuple(beginnings))}
    assert len(remaining) < len(tensors)
    save_file(remaining, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="needs the multi-token-prediction head"):
        hybridlm.load(folder, speculate="mtp", **LOADED)


@pytest.mark.parametrize(("family", "fields", "fault"), [
    ("nemotron_h", {"num_nextn_predict_layers": 0}, "num_nextn_predict_layers: expected one of 1"),
    ("nemotron_h", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers: expected one of 1"),
    ("nemotron_h", {"mtp_hybrid_override_pattern": "*-"}, "mtp_hybrid_override_pattern: expected full_attention"),
    ("nemotron_h", {"mtp_hybrid_override_pattern": ""}, "mtp_hybrid_override_pattern: expected a list"),
    ("nemotron_h", {"mtp_layers_block_type": ["moe", "mamba"]}, "mtp_layers_block_type: expected full_attention"),
    ("nemotron_h", {"layers_block_type": ["linear_attention", "moe", "moe"]}, "with a layer of this kind"),
    ("bailing_hybrid", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers: expected one of 1"),
    ("bailing_hybrid", {"num_nextn_predict_layers": None, "num_mtp_layers": 0}, "num_mtp_layers: expected one of 1"),
    ("bailing_hybrid", {"mtp_use_kda": True}, "mtp_use_kda: expected one of False"),
])  # fmt: skip
def test_a_head_that_is_not_implemented_is_a_fault(
    tmp_path: Path, family: str, fields: dict[str, Any], fault: str
) -> None:
    config = json.loads((write(family, tmp_path / "m") / "config.json").read_text()) | fields
    assert family_of(config).read_config(config).head is None
    variant = family_of(config).with_head
    assert variant is not None
    with pytest.raises(ConfigError, match=fault):
        variant.read_config(config)


def test_a_saved_model_whose_config_describes_no_head_is_read(tmp_path: Path) -> None:
    folder = write_random_checkpoint("nemotron_latent", tmp_path / "m", num_nextn_predict_layers=0)
    settings: dict[str, Any] = LOADED | {"draft_tokens": 4}
    hybridlm.load(folder, **settings).save(tmp_path / "saved")
    assert hybridlm.load(tmp_path / "saved", **LOADED).params
