"""LoRA adapters against PEFT: every parameter of every family, merged by PEFT and saved, or merged when it is loaded."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import FIRST
from tiny_checkpoint import write_checkpoint
from tiny_variants import VARIANTS, Variant
from transformers_oracle import Oracle, log_probabilities

import hybridlm
from hybridlm.checkpoint import bind, load_weights, open_adapter, open_directory
from models import family_of

pytestmark = pytest.mark.oracle

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of PEFT's dependencies
    import peft

EXTRA = {"sparse_base", "next_base", "kimi_fused", "granite_experts", "lfm2_moe_base", "nemotron_latent"}
TRIED = [variant for variant in VARIANTS if variant.name in {*FIRST.values(), *EXTRA}]
IDS = [variant.name for variant in TRIED]


def adapted(model: Any, seed: int, **settings: Any) -> Any:
    """Return a PEFT model whose factors are random, on every linear layer and every tensor of experts."""
    generator = torch.Generator().manual_seed(seed)
    linear = sorted(
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "visual" not in name and name != "lm_head"
    )
    experts = sorted(name for name, one in model.named_parameters() if one.ndim == 3 and "conv" not in name)
    options: dict[str, Any] = {"r": 3, "lora_alpha": 5, "target_modules": linear, "target_parameters": experts}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = peft.get_peft_model(model, peft.LoraConfig(**options | settings))
        with torch.no_grad():
            for name, one in found.named_parameters():
                if "lora_" in name:
                    one.copy_(torch.randn(one.shape, generator=generator) * 0.2)
                elif "modules_to_save" in name:
                    one.add_(torch.randn(one.shape, generator=generator) * 0.2)
    return found


def save(found: Any, directory: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.save_pretrained(directory)


def merged_by_peft(found: Any, directory: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.merge_and_unload().save_pretrained(directory)


def arrays(directory: Path, adapter: Path | None = None) -> dict[Any, np.ndarray]:
    checkpoint = open_directory(directory)
    family = family_of(checkpoint.config)
    config = family.read_config(checkpoint.config)
    weights = family.weights(config)
    bound = [] if adapter is None else [bind(open_adapter(adapter), family, weights, config.tied)]
    loaded = load_weights(checkpoint, family, config, "float32", adapters=bound)
    return {path: np.asarray(array) for path, array in loaded.arrays.items()}


def compare(base: Path, adapter: Path, merged: Path) -> None:
    expected, found, before = arrays(merged), arrays(base, adapter), arrays(base)
    for path, array in expected.items():
        np.testing.assert_allclose(found[path], array, rtol=1e-5, atol=1e-5, err_msg=str(path))
    changed = [path for path in before if not np.array_equal(before[path], found[path])]
    assert len(changed) >= len(before) // 4


@pytest.mark.parametrize("variant", TRIED, ids=IDS)
def test_every_projection(variant: Variant, tmp_path: Path) -> None:
    write_checkpoint(variant, 0, tmp_path / "base")
    found = adapted(Oracle.load(tmp_path / "base").model, 1)
    save(found, tmp_path / "adapter")
    merged_by_peft(found, tmp_path / "merged")
    compare(tmp_path / "base", tmp_path / "adapter", tmp_path / "merged")
