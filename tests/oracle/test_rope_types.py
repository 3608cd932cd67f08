"""Every type of RoPE of every family with positions, against the frequencies that transformers computes."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparison import log_probabilities
from tiny_checkpoint import write_checkpoint
from tiny_variants import VARIANTS
from transformers import AutoConfig, AutoModelForCausalLM
from transformers_oracle import Oracle

import hybridlm
from models import ConfigError, family_of

pytestmark = pytest.mark.oracle

FAMILIES = (
    "qwen3_next qwen3_5 qwen3_5_moe qwen4_exp lfm2 lfm2_moe lara_mini bamba falcon_h1 olmo_hybrid bailing_hybrid "
    "granitemoehybrid minimax".split()
)
FIRST = {variant.family: variant for variant in reversed(VARIANTS) if not variant.legacy_rope}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn by type": {"type": "yarn", "factor": 2.5},
    "yarn mscale": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.3},
    "yarn betas": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 5, "beta_slow": 0.5, "truncate": False},
    "yarn attention factor": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.7},
    "yarn no factor": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 64},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64},
}  # fmt: skip


def ropes(config: Any) -> set[Any]:
    """Return every `Rope` inside a config."""
    if hasattr(config, "frequencies"):
        return {config}
    if dataclasses.is_dataclass(config):
        return {rope for field in dataclasses.fields(config) for rope in ropes(getattr(config, field.name))}
    return {rope for item in config for rope in ropes(item)} if isinstance(config, tuple) else set()


def rewritten(directory: Path, spelling: str, scaling: dict[str, Any]) -> dict[str, Any]:
    """Return config.json with a scaling in one of three spellings."""
    config = json.loads((directory / "config.json").read_text())
    if config["model_type"] == "granitemoehybrid":
        config["position_embedding_type"] = "rope"
    rope = config.pop("rope_parameters", None) or {"rope_theta": 10000.0}
    rope.pop("rope_type", None)
    top = {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
    if spelling == "rope_parameters":
        return config | {"rope_parameters": rope | scaling}
    if spelling == "both":
        return config | top | {"rope_scaling": scaling, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}
    return config | top | {"rope_scaling": scaling}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling", "both"])
def test_frequencies(family: str, spelling: str, tmp_path: Path) -> None:
    variant = dataclasses.replace(FIRST[family], text=dict(FIRST[family].text))
    write_checkpoint(variant, 0, tmp_path)
    model = Oracle.load(tmp_path).model
    kind = (
        type(next(module for module in model.modules() if "RotaryEmbedding" in type(module).__name__))
        if any("RotaryEmbedding" in type(module).__name__ for module in model.modules())
        else None
    )
    assert kind is not None or family in ("olmo_hybrid", "granitemoehybrid")
    for name, scaling in SCALINGS.items():
        fields = rewritten(tmp_path, spelling, scaling)
        if family == "bailing_hybrid" and name.startswith("yarn") and "original_max_position_embeddings" not in scaling:
            # transformers takes the default of the family and ignores the file's context.
            with pytest.raises(ConfigError, match="original_max_position_embeddings"):
                family_of(fields).read_config(fields)
            continue
        (rope,) = ropes(family_of(fields).read_config(fields).layers)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(fields))
        config = type(model.config).from_pretrained(folder)
        if kind is None:
            with torch.device("meta"):
                full = type(model)._from_config(config)
            kind = type(next(m for m in full.modules() if "RotaryEmbedding" in type(m).__name__))
        module: Any = kind(config)
        np.testing.assert_allclose(rope.frequencies, module.inv_freq.numpy(), rtol=1e-5, err_msg=name)
        amplitude = 1.0 if rope.scaling is None else rope.scaling.amplitude
        assert amplitude == pytest.approx(module.attention_scaling), name


@pytest.mark.parametrize("family", [*(family for family in FAMILIES if family != "minimax"), "zamba2"])
def test_share_of_a_head_is_that_of_transformers_or_refused(family: str, tmp_path: Path) -> None:
    """The original code of MiniMax rotates a share, its class in transformers whole heads."""
    write_checkpoint(FIRST[family], 0, tmp_path)
    settings = {"rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor"}
    fields = rewritten(tmp_path, "rope_scaling", {})
    stored = {name: value for name, value in fields.items() if name not in settings}
    refused = 0
    for place, share in itertools.product(("rope_parameters", "config.json", "rope_scaling"), (0.25, 0.5)):
        inner: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
        fields = stored | {"rope_scaling" if place == "rope_scaling" else "rope_parameters": inner}
        (inner if place == "rope_parameters" else fields)["partial_rotary_factor"] = share
        (tmp_path / "config.json").write_text(json.dumps(fields))
        config = AutoConfig.from_pretrained(tmp_path)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        kind: Any = next(type(module) for module in model.modules() if "RotaryEmbedding" in type(module).__name__)
        frequencies = kind(config).inv_freq.numpy()
        try:
            (rope,) = ropes(family_of(fields).read_config(fields).layers)
        except ConfigError as error:
            (fault,) = error.faults
            assert "partial_rotary_factor" in fault and 2 * len(frequencies) != int(share * rope_width(config))
            refused += 1
            continue
        np.testing.assert_allclose(rope.frequencies, frequencies, rtol=1e-5, err_msg=f"{place} {share}")
    assert refused == {"bamba": 2, "bailing_hybrid": 4}.get(family, 0 if family.startswith("qwen") else 6)


def rope_width(config: Any) -> int:
    """Return the size of a head with RoPE."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


LONG: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("name", ["dense_base", "ling_base"])
def test_yarn_beyond_the_original_context(name: str, tmp_path: Path) -> None:
    """Scores of a four times longer text; YaRN sets the longest context."""
    variant = next(variant for variant in VARIANTS if variant.name == name)
    write_checkpoint(variant, 0, tmp_path)
    fields = rewritten(tmp_path, "rope_parameters", LONG | {"mscale": 0.7, "mscale_all_dim": 0.9})
    fields |= {"max_position_embeddings" if name == "dense_base" else "model_max_length": 16}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    tokens = [(7 * i) % 300 + 5 for i in range(64)]
    expected = log_probabilities(Oracle.load(tmp_path).logits(tokens), tokens)[1:]
    lm = hybridlm.load(tmp_path, lanes=1, dtype="float32", chunk=32)
    assert lm.context == 64
    (score,) = lm.score([tokens])
    np.testing.assert_allclose(np.array(score.logprobs[1:]), expected, atol=variant.tolerance)
    with pytest.raises(ValueError, match="context"):
        hybridlm.load(tmp_path, context=65)
