"""LoRA adapters against PEFT: every family's parameters, merged and saved or merged at load."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparison import log_probabilities
from tiny_checkpoint import write_checkpoint
from tiny_variants import VARIANTS, Variant
from transformers_oracle import Oracle

import hybridlm
from hybridlm.checkpoint import OpenModel, bind, load_parameters, open_adapter, open_directory
from models import family_of

pytestmark = pytest.mark.oracle

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of PEFT's dependencies
    import peft

EXTRA = {"sparse_base", "next_base", "kimi_fused", "granite_experts", "lfm2_moe_base", "nemotron_latent"}
FIRST = {variant.family: variant.name for variant in reversed(VARIANTS)}
TRIED = [variant for variant in VARIANTS if variant.name in {*FIRST.values(), *EXTRA}]
IDS = [variant.name for variant in TRIED]
REFUSED_BY_PEFT = ("mamba", "mamba2", "falcon_mamba", "nemotron_h", "falcon_h1")
"""Model types with an `out_proj` that PEFT does not adapt."""


def adapted(model: Any, seed: int, copies: bool = False, **settings: Any) -> Any:
    """Return a PEFT model with random factors on all linear layers and expert tensors.

    Args:
        model: of transformers.
        seed: of the factors.
        copies: also on further layers with the same weight, as in the blocks of Zamba2.
        settings: of PEFT.
    """
    generator = torch.Generator().manual_seed(seed)
    modules = {id(module.weight): name for name, module in [*model.named_modules()][::-1] if hasattr(module, "weight")}
    linear = sorted(
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and (copies or modules[id(module.weight)] == name)
        and "visual" not in name
        and name != "lm_head"
        and not (model.config.model_type in REFUSED_BY_PEFT and name.endswith("out_proj"))
    )
    experts = sorted(name for name, item in model.named_parameters() if item.ndim == 3 and "conv" not in name)
    options: dict[str, Any] = {"r": 3, "lora_alpha": 5, "target_modules": linear, "target_parameters": experts}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = peft.get_peft_model(model, peft.LoraConfig(**options | settings))
        with torch.no_grad():
            for name, array in result.named_parameters():
                if "lora_" in name:
                    array.copy_(torch.randn(array.shape, generator=generator) * 0.2)
                elif "modules_to_save" in name:
                    array.add_(torch.randn(array.shape, generator=generator) * 0.2)
    return result


def save(result: Any, directory: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result.save_pretrained(directory)


def merged_by_peft(result: Any, directory: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result.merge_and_unload().save_pretrained(directory)


def arrays(directory: Path, adapter: Path | None = None) -> dict[Any, np.ndarray]:
    checkpoint = open_directory(directory)
    family = family_of(checkpoint.config)
    config = family.read_config(checkpoint.config)
    weights = family.weights(config)
    bound = [] if adapter is None else [bind(open_adapter(adapter), family, weights, config.tied)]
    loaded = load_parameters(OpenModel(checkpoint, family, config), "float32", adapters=bound)
    return {path: np.asarray(array) for path, array in loaded.arrays.items()}


def compare(base: Path, adapter: Path, merged: Path) -> None:
    expected, actual, initial = arrays(merged), arrays(base, adapter), arrays(base)
    for path, array in expected.items():
        np.testing.assert_allclose(actual[path], array, rtol=1e-5, atol=1e-5, err_msg=str(path))
    changed = [path for path in initial if not np.array_equal(initial[path], actual[path])]
    assert changed and changed == [path for path in initial if not np.array_equal(initial[path], expected[path])]


@pytest.mark.parametrize("variant", TRIED, ids=IDS)
def test_every_projection(variant: Variant, tmp_path: Path) -> None:
    write_checkpoint(variant, 0, tmp_path / "base")
    result = adapted(Oracle.load(tmp_path / "base").model, 1)
    save(result, tmp_path / "adapter")
    merged_by_peft(result, tmp_path / "merged")
    compare(tmp_path / "base", tmp_path / "adapter", tmp_path / "merged")


def test_a_block_of_several_layers_has_one_adapter(tmp_path: Path) -> None:
    """PEFT adapts each layer of a block by itself; the block is in memory once."""
    write_checkpoint(named("zamba2_base"), 0, tmp_path / "base")
    save(adapted(Oracle.load(tmp_path / "base").model, 1, copies=True), tmp_path / "adapter")
    with pytest.raises(hybridlm.CheckpointError, match="of a block that layers share"):
        arrays(tmp_path / "base", tmp_path / "adapter")


def named(name: str) -> Variant:
    return next(variant for variant in VARIANTS if variant.name == name)


SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "rslora": ("dense_base", {"use_rslora": True}),
    "patterns": (
        "sparse_base",
        {
            "rank_pattern": {"q_proj": 5, r"layers\.0\..*in_proj_z": 2, r"layers\.1\.mlp\.experts\.down_proj": 2},
            "alpha_pattern": {"o_proj": 11, "experts.gate_up_proj": 2},
        },
    ),
    "granite patterns": ("granite_experts", {"alpha_pattern": {"experts.gate_up_proj": 2}}),
    "embedding and head": (
        "dense_base",
        {"target_modules": ["embed_tokens", "lm_head", "down_proj"], "target_parameters": None},
    ),
    "modules_to_save": (
        "dense_base",
        {"target_modules": ["o_proj", "down_proj"], "modules_to_save": ["lm_head", "in_proj_a", "conv1d"]},
    ),
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings(settings: str, tmp_path: Path) -> None:
    name, options = SETTINGS[settings]
    write_checkpoint(named(name), 0, tmp_path / "base")
    result = adapted(Oracle.load(tmp_path / "base").model, 1, **options)
    save(result, tmp_path / "adapter")
    merged_by_peft(result, tmp_path / "merged")
    compare(tmp_path / "base", tmp_path / "adapter", tmp_path / "merged")


@pytest.mark.parametrize("name", ["dense_base", "next_base"])
def test_queries_keys_and_values_adapted_apart(name: str, tmp_path: Path) -> None:
    """PEFT adapts separate `in_proj_*`; merged rows are in the model's matrix."""
    write_checkpoint(named(name), 0, tmp_path / "base")
    model = Oracle.load(tmp_path / "base").model
    mixers = [(name, mixer) for name, mixer in model.named_modules() if name.endswith("linear_attn")]
    assert mixers
    split = torch.nn.Module()
    for line, mixer in mixers:
        keys, values = mixer.key_dim, mixer.value_dim
        holder = split
        for part in line.split("."):
            if not hasattr(holder, part):
                holder.add_module(part, torch.nn.Module())
            holder = getattr(holder, part)
        for part, size in zip("qkv", (keys, keys, values), strict=True):
            linear = torch.nn.Linear(model.config.get_text_config().hidden_size, size, bias=False)
            holder.add_module(f"in_proj_{part}", linear)
    split.config = model.config
    result = adapted(split, 1, target_parameters=None)
    save(result, tmp_path / "adapter")
    changes = {
        index: torch.cat([module.get_delta_weight("default") for module in parts])
        for index, _ in mixers
        for parts in [[result.get_submodule(f"base_model.model.{index}.in_proj_{part}") for part in "qkv"]]
    }
    final, initial = arrays(tmp_path / "base", tmp_path / "adapter"), arrays(tmp_path / "base")
    changed = {path: final[path] - initial[path] for path in initial if not np.array_equal(final[path], initial[path])}
    assert len(changed) == len(mixers) and all(path[-1] == "in_proj_qkv" for path in changed)
    for change, array in zip(changes.values(), changed.values(), strict=True):
        np.testing.assert_allclose(array, change.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_adapters_of_the_folder_and_of_the_option(tmp_path: Path) -> None:
    """Log-probabilities equal transformers' for every adapter location."""
    base, adapter, pair = (tmp_path / name for name in ("base", "adapter", "both"))
    write_checkpoint(named("dense_base"), 0, base)
    actual = adapted(Oracle.load(base).model, 1)
    actual.peft_config["default"].base_model_name_or_path = str(base)
    save(actual, adapter)
    shutil.copytree(base, pair)
    shutil.copytree(adapter, pair, dirs_exist_ok=True)
    prompt = list(range(3, 30))
    with torch.no_grad():
        expected = log_probabilities(actual(input_ids=torch.tensor([prompt])).logits[0].numpy(), prompt)[1:]
    settings: dict[str, Any] = {"lanes": 1, "context": 64, "chunk": 32, "dtype": "float32"}
    lm = hybridlm.load(base, adapter=adapter, **settings)
    options = np.array(lm.score([prompt])[0].logprobs[1:])
    np.testing.assert_allclose(options, expected, atol=2e-4)
    plain = hybridlm.load(base, **settings)
    assert np.abs(np.array(plain.score([prompt])[0].logprobs[1:]) - options).max() > 0.05
    assert plain.fingerprint != lm.fingerprint
    for other in (hybridlm.load(pair, **settings), hybridlm.load(adapter, **settings)):
        assert other.fingerprint == lm.fingerprint
        assert all(np.array_equal(other.params[name], array) for name, array in lm.params.items())
    single = hybridlm.load(pair, adapter=False, **settings)
    assert all(np.array_equal(single.params[name], array) for name, array in plain.params.items())
