"""Files with repeated, superfluous or renamed entries load if nothing is ambiguous."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from planned_engines import planned_engine
from safetensors.numpy import load_file, save_file
from text_checkpoint import SETTINGS, write_text_checkpoint

import hybridlm
from hybridlm.checkpoint import CheckpointError, LoadedWeights, OpenModel, load_parameters, open_checkpoint
from models import family_of

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_checkpoint(tmp_path_factory.mktemp("base"))


def write(directory: Path, base: Path, tensors: Mapping[str, np.ndarray], **config: Any) -> Path:
    fields = json.loads((base / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(fields | config))
    save_file(dict(tensors), directory / "model.safetensors")
    return directory


def load(directory: Path) -> LoadedWeights:
    checkpoint = open_checkpoint(directory)
    assert not hasattr(checkpoint, "parameters")
    family = family_of(checkpoint.config)
    return load_parameters(OpenModel(checkpoint, family, family.read_config(checkpoint.config)), "float32")


def equal(first: LoadedWeights, second: LoadedWeights) -> bool:
    return first.arrays.keys() == second.arrays.keys() and all(
        np.array_equal(array, second.arrays[path]) for path, array in first.arrays.items()
    )


def tensors_of(directory: Path) -> dict[str, np.ndarray]:
    return {name: array for file in directory.glob("*.safetensors") for name, array in load_file(file).items()}


@pytest.mark.parametrize("stored", [np.float32, ml_dtypes.bfloat16])
def test_redundant_head_of_a_tied_model(base: Path, tmp_path: Path, stored: Any) -> None:
    tensors = tensors_of(base)
    if stored != np.float32:  # the embedding is exact in it, too
        tensors[EMBEDDING] = tensors[EMBEDDING].astype(stored).astype(np.float32)
    tensors[HEAD] = tensors[EMBEDDING].astype(stored)
    loaded = load(write(tmp_path, base, tensors, tie_word_embeddings=True))
    np.testing.assert_array_equal(loaded.arrays["embed_tokens",], tensors[EMBEDDING])
    assert ("lm_head",) not in loaded.arrays
    assert any(HEAD in line and "equals" in line for line in loaded.lines())


@pytest.mark.parametrize("wrong", ["last value", "shape", "dtype"])
def test_another_head_of_a_tied_model(base: Path, tmp_path: Path, wrong: str) -> None:
    tensors = tensors_of(base)
    head = tensors[EMBEDDING].copy()
    head[-1, -1] += wrong == "last value"
    tensors[HEAD] = {"last value": head, "shape": head[1:].copy(), "dtype": head.astype(np.int32)}[wrong]
    with pytest.raises(CheckpointError) as caught:
        load(write(tmp_path, base, tensors, tie_word_embeddings=True))
    assert len(caught.value.faults) == 1
    assert HEAD in caught.value.faults[0] and "tie_word_embeddings" in caught.value.faults[0]
    if wrong == "last value":
        assert f"row {len(head) - 1}" in caught.value.faults[0]


@pytest.mark.parametrize("name", ["mtp.fc.weight", "model.visual.patch_embed.proj.weight", "model.norm.weight"])
def test_index_entries_without_a_tensor(base: Path, tmp_path: Path, name: str) -> None:
    """Entries of unused tensors are noted; entries of needed tensors are faults."""
    tensors = tensors_of(base)
    tensors.pop(name, None)
    write(tmp_path, base, tensors)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys([*tensors, name], "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    if name == "model.norm.weight":
        with pytest.raises(CheckpointError, match=name):
            load(tmp_path)
    else:
        loaded = load(tmp_path)
        assert equal(loaded, load(base))
        assert any(name in line for line in loaded.lines())


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base_model.model.", "transformer.decoder."])
def test_unknown_prefix_is_one_fault(base: Path, tmp_path: Path, prefix: str) -> None:
    tensors = {prefix + name: array for name, array in tensors_of(base).items()}
    with pytest.raises(CheckpointError) as caught:
        load(write(tmp_path, base, tensors))
    assert len(caught.value.faults) == 1 and repr(prefix) in caught.value.faults[0]
    assert ("PEFT" in str(caught.value)) == (prefix == "base_model.model.")


def test_peft_wrapper_is_named(base: Path, tmp_path: Path) -> None:
    tensors = {f"base_model.model.{name}": array for name, array in tensors_of(base).items()}
    tensors["base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight"] = np.zeros((2, 2), np.float32)
    with pytest.raises(CheckpointError, match="merge_and_unload"):
        load(write(tmp_path, base, tensors))


@pytest.mark.parametrize("family", ["lfm2_base", "nemotron_latent", "mamba2_base"])
def test_names_of_the_model_below_the_head(family: str, tmp_path: Path) -> None:
    """`AutoModel` names lack the first part; a missing head is named."""
    golden = GOLDEN / family
    stripped = {name.partition(".")[2]: array for name, array in tensors_of(golden).items() if name != HEAD}
    head = {name: array for name, array in tensors_of(golden).items() if name == HEAD}
    config = json.loads((golden / "config.json").read_text())
    tied = not head
    assert equal(load(write(tmp_path, golden, stripped | head, **config)), load(golden))
    if not tied:
        (tmp_path / "bare").mkdir()
        with pytest.raises(CheckpointError, match=f"missing {HEAD}"):
            load(write(tmp_path / "bare", golden, stripped, **config))


def test_nemotron_under_the_names_of_transformers(tmp_path: Path) -> None:
    golden = GOLDEN / "nemotron_latent"
    tensors = {name.replace("backbone.", "model.", 1): array for name, array in tensors_of(golden).items()}
    assert equal(load(write(tmp_path, golden, tensors)), load(golden))


@pytest.mark.parametrize("described", [None, {}, {"quant_method": "fp8", "weight_block_size": [128, 128]}])
def test_codes_without_scales_are_never_weights(base: Path, tmp_path: Path, described: Any) -> None:
    tensors = tensors_of(base)
    name = next(tensor for tensor in tensors if tensor.endswith("gate_proj.weight"))
    tensors[name] = tensors[name].astype(ml_dtypes.float8_e4m3fn)
    config = {} if described is None else {"quantization_config": described}
    write(tmp_path, base, tensors, **config)
    with pytest.raises(CheckpointError, match=name):
        hybridlm.load(tmp_path, **SETTINGS)


def test_a_head_under_the_name_of_a_wrapper_is_refused_by_name(base: Path, tmp_path: Path) -> None:
    tensors = tensors_of(base)
    tensors["language_model.lm_head.weight"] = tensors.pop(HEAD, tensors[EMBEDDING]).copy()
    with pytest.raises(CheckpointError, match=r"language_model\.lm_head\.weight"):
        load(write(tmp_path, base, tensors, tie_word_embeddings=False))


@pytest.mark.parametrize(
    "pattern", ["unsloth-{:05}-of-00002.safetensors", "model.{}.safetensors", "part{}.safetensors"]
)
def test_names_of_shards_are_free(base: Path, tmp_path: Path, pattern: str) -> None:
    tensors = tensors_of(base)
    names = {name: pattern.format(1 + number % 2) for number, name in enumerate(sorted(tensors))}
    for file in set(names.values()):
        save_file({name: tensors[name] for name in tensors if names[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (tmp_path / "config.json").write_bytes((base / "config.json").read_bytes())
    assert equal(load(tmp_path), load(base))
    (tmp_path / pattern.format(2)).unlink()
    with pytest.raises(CheckpointError, match=re.escape(pattern.format(2))):
        load(tmp_path)


def test_mamba2_has_no_longest_context() -> None:
    fields = json.loads((GOLDEN / "mamba2_base" / "config.json").read_text())
    assert "max_position_embeddings" not in fields
    engine = planned_engine("mamba2_base", lanes=1, context=40_000, chunk=128)
    assert (engine.context, engine.chunk) == (40_000, 128)
