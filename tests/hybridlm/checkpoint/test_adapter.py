"""LoRA adapters without PEFT: merged values, several adapters, saving, and refusals."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from random_checkpoint import FAMILIES, write_random_checkpoint
from safetensors.numpy import load_file, save_file
from text_checkpoint import SETTINGS, write_text_checkpoint

import hybridlm
from hybridlm.checkpoint import CheckpointError, bind, load_parameters, open_adapter
from hybridlm.checkpoint.model import open_model

pytestmark = pytest.mark.usefixtures("stored_steps")

MODULE = "base_model.model.model.layers.0.mlp.down_proj"
PARAMETER = "layers.0.branches.1.inner.down_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_checkpoint(tmp_path_factory.mktemp("base"))


def shape(base: Path, name: str) -> tuple[int, ...]:
    return load_file(base / "model.safetensors")[name].shape


def factors(base: Path, module: str = MODULE, seed: int = 0, rank: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    out, into = shape(base, module.removeprefix("base_model.model.") + ".weight")
    arrays = {"A": rng.normal(size=(rank, into)), "B": rng.normal(size=(out, rank))}
    return {f"{module}.lora_{factor}.weight": array.astype(np.float32) for factor, array in arrays.items()}


def write(directory: Path, tensors: Mapping[str, np.ndarray], **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    fields = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": ["down_proj"], "lora_dropout": 0.1}
    (directory / "adapter_config.json").write_text(json.dumps(fields | config))
    save_file(dict(tensors), directory / "adapter_model.safetensors")
    return directory


def product(tensors: Mapping[str, np.ndarray], module: str = MODULE) -> np.ndarray:
    return tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]


def same(first: hybridlm.LM, second: hybridlm.LM) -> bool:
    return all(np.array_equal(array, second.params[name]) for name, array in first.params.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_in_float32_and_rounded_once(base: Path, tmp_path: Path, dtype: str) -> None:
    options = factors(base)
    adapter = write(tmp_path / "adapter", options)
    settings = {**SETTINGS, "dtype": dtype}
    lm = hybridlm.load(base, adapter=adapter, **settings)
    full = load_file(base / "model.safetensors")["model.layers.0.mlp.down_proj.weight"] + product(options) * 1.5
    np.testing.assert_allclose(
        np.asarray(lm.params[PARAMETER], np.float32), np.asarray(full.astype(jnp.dtype(dtype)), np.float32), rtol=1e-6
    )
    plain = hybridlm.load(base, **settings)
    assert [name for name in plain.params if not np.array_equal(plain.params[name], lm.params[name])] == [PARAMETER]
    plain.merge_adapter(adapter)
    assert same(plain, lm) and plain.fingerprint == lm.fingerprint


def arrays(base: Path, adapter: Path | None = None) -> dict[Any, np.ndarray]:
    model = open_model(base)
    _, family, config = model
    weights = family.weights(config)
    bound = [] if adapter is None else [bind(open_adapter(adapter), family, weights, config.tied)]
    loaded = load_parameters(model, "float32", adapters=bound)
    return {path: np.asarray(array) for path, array in loaded.arrays.items()}


LAYER = "model.layers.0.linear_attn."


@pytest.mark.parametrize("modules", [
    ("in_proj_q", "in_proj_k", "in_proj_v"), ("in_proj_v", "in_proj_z"), ("in_proj_qkvz", "in_proj_ba"),
], ids=" ".join)  # fmt: skip
def test_split_and_fused_projections_of_other_frameworks(tmp_path: Path, modules: tuple[str, ...]) -> None:
    """The rows of three or of fused projections are the model's matrices in turn."""
    base = write_random_checkpoint("dense_base", tmp_path / "base", **FAMILIES["dense_base"])
    tensors = load_file(base / "model.safetensors")
    _, _, config = open_model(base)
    mixer: Any = next(mixer for mixer, _ in config.layers if hasattr(mixer, "key_heads"))
    keys, values, heads = mixer.key_heads * mixer.key_size, mixer.value_width, mixer.value_heads
    places = {
        "in_proj_q": {"in_proj_qkv": slice(0, keys)},
        "in_proj_k": {"in_proj_qkv": slice(keys, 2 * keys)},
        "in_proj_v": {"in_proj_qkv": slice(2 * keys, 2 * keys + values)},
        "in_proj_z": {"in_proj_z": slice(0, values)},
        "in_proj_qkvz": {"in_proj_qkv": slice(0, 2 * keys + values), "in_proj_z": slice(0, values)},
        "in_proj_ba": {"in_proj_b": slice(0, heads), "in_proj_a": slice(0, heads)},
    }
    rng, settings = np.random.default_rng(0), {}
    for module in modules:
        rows = sum(place.stop - place.start for place in places[module].values())
        down, up = (rng.normal(size=size).astype(np.float32) for size in ((2, config.hidden_size), (rows, 2)))
        settings |= {f"base_model.model.{LAYER}{module}.lora_{part}.weight": x for part, x in (("A", down), ("B", up))}
        change = 1.5 * (up @ down)
        for name, place in places[module].items():
            size = place.stop - place.start
            tensors[f"{LAYER}{name}.weight"][place] += change[:size]
            change = change[size:]
    adapter = write(tmp_path / "adapter", settings)
    save_file(tensors, base.parent / "model.safetensors")
    result = arrays(base, adapter)
    shutil.copy(base.parent / "model.safetensors", base / "model.safetensors")
    for path, array in arrays(base).items():
        np.testing.assert_allclose(result[path], array, rtol=1e-5, atol=1e-6, err_msg=str(path))


def test_one_matrix_under_the_names_of_two_frameworks_is_refused(tmp_path: Path) -> None:
    base = write_random_checkpoint("dense_base", tmp_path / "base", **FAMILIES["dense_base"])
    rows = load_file(base / "model.safetensors")[f"{LAYER}in_proj_z.weight"].shape
    qkvz = sum(
        load_file(base / "model.safetensors")[f"{LAYER}{name}.weight"].shape[0] for name in ("in_proj_qkv", "in_proj_z")
    )
    settings = {
        f"base_model.model.{LAYER}{module}.lora_{part}.weight": np.ones(size, np.float32)
        for module, out in (("in_proj_z", rows[0]), ("in_proj_qkvz", qkvz))
        for part, size in (("A", (2, rows[1])), ("B", (out, 2)))
    }
    with pytest.raises(CheckpointError) as caught:
        arrays(base, write(tmp_path / "adapter", settings))
    assert len(caught.value.faults) == 1
    assert all(name in caught.value.faults[0] for name in ("in_proj_z.weight", "in_proj_qkvz.weight"))


@pytest.mark.slow
def test_two_adapters_and_a_saved_model(base: Path, tmp_path: Path) -> None:
    item, two = (write(tmp_path / str(seed), factors(base, seed=seed)) for seed in (1, 2))
    lm = hybridlm.load(base, adapter=item, **SETTINGS)
    lm.merge_adapter(two)
    full = load_file(base / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    full = full + 1.5 * (product(factors(base, seed=1)) + product(factors(base, seed=2)))
    np.testing.assert_allclose(lm.params[PARAMETER], full, rtol=1e-5, atol=1e-5)
    lm.save(tmp_path / "saved")
    assert not (tmp_path / "saved" / "adapter_config.json").exists()
    saved = hybridlm.load(tmp_path / "saved", **SETTINGS)
    assert same(saved, lm) and saved.fingerprint == lm.fingerprint
    # A saved model takes adapters, too.
    first = hybridlm.load(base, adapter=item, **SETTINGS)
    first.save(tmp_path / "first")
    repeat = hybridlm.load(tmp_path / "first", adapter=two, **SETTINGS)
    np.testing.assert_allclose(repeat.params[PARAMETER], lm.params[PARAMETER], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_nothing_of_the_model_as_it_was_is_used(base: Path, tmp_path: Path) -> None:
    lm = hybridlm.load(base, prefix_cache="600kB", **SETTINGS)
    prompt = list(range(3, 40))
    prefix = lm.prefix(prompt[:20])
    completion = lm.generate([prompt], max_tokens=4)[0]
    adapter = write(tmp_path / "adapter", factors(base))
    lm.merge_adapter(adapter)
    final = lm.generate([prompt], max_tokens=4, logprobs=0)[0]
    fresh = hybridlm.load(base, adapter=adapter, **SETTINGS).generate([prompt], max_tokens=4, logprobs=0)[0]
    assert final.token_ids == fresh.token_ids != completion.token_ids
    assert lm.stats["prefix_hits"] == 0
    with pytest.raises(ValueError, match="another model"):
        lm.generate([prompt], prefix=prefix)
    assert np.isfinite(float(jnp.sum(lm.forward([prompt]).logits)))


def damaged(base: Path, factor: str, value: float) -> dict[str, np.ndarray]:
    tensors = factors(base)
    tensors[f"{MODULE}.lora_{factor}.weight"][1, 1] = value
    return tensors


@pytest.mark.parametrize(
    ("factor", "value"), [("A", np.nan), ("B", -np.inf), ("A", 3e38)], ids=["nan", "inf", "product"]
)
def test_numbers_that_are_not_finite_are_refused(base: Path, tmp_path: Path, factor: str, value: float) -> None:
    """Refusal by name before the model changes; 3e38 is finite, its product is not."""
    lm = hybridlm.load(base, **SETTINGS)
    clean = dict(lm.params)
    adapter = write(tmp_path / "adapter", damaged(base, factor, value), lora_alpha=1e3)
    for call in (lambda: hybridlm.load(base, adapter=adapter, **SETTINGS), lambda: lm.merge_adapter(adapter)):
        with pytest.raises(CheckpointError, match=r"down_proj.*expected finite numbers"):
            call()
    assert all(lm.params[name] is array for name, array in clean.items()) and lm.engine.params


def test_a_scale_that_overflows_is_refused(base: Path, tmp_path: Path) -> None:
    adapter = write(tmp_path / "adapter", factors(base), lora_alpha=1e300)
    with pytest.raises(CheckpointError, match=r"down_proj.*expected finite numbers"):
        hybridlm.load(base, adapter=adapter, **SETTINGS)


def test_a_whole_tensor_that_is_not_finite_is_refused(base: Path, tmp_path: Path) -> None:
    norm = np.full(shape(base, "model.norm.weight"), np.nan, np.float32)
    adapter = write(tmp_path / "adapter", {"base_model.model.model.norm.weight": norm}, modules_to_save=["norm"])
    with pytest.raises(CheckpointError, match=r"norm.*expected finite numbers"):
        hybridlm.load(base, adapter=adapter, **SETTINGS)


REFUSED: dict[str, dict[str, Any]] = {
    "use_dora": {"use_dora": True}, "peft_type": {"peft_type": "IA3"},
    "init_lora_weights": {"init_lora_weights": "pissa"}, "layer_replication": {"layer_replication": [[0, 2]]},
    "lora_bias": {"lora_bias": True}, "trainable_token_indices": {"trainable_token_indices": [3]},
    "rank_pattern": {"rank_pattern": {"q_proj": 0}}, "lora_alpha": {"lora_alpha": "8"},
    "alpha_pattern": {"alpha_pattern": {"(": 2}}, "some_later_field": {"some_later_field": "on"},
}  # fmt: skip


@pytest.mark.parametrize("field", REFUSED)
def test_fields_are_refused_by_name(base: Path, tmp_path: Path, field: str) -> None:
    adapter = write(tmp_path / "adapter", factors(base), **REFUSED[field])
    with pytest.raises(CheckpointError) as caught:
        hybridlm.load(base, adapter=adapter, **SETTINGS)
    assert len(caught.value.faults) == 1 and field in caught.value.faults[0]


def test_every_tensor_that_matches_nothing_is_named(base: Path, tmp_path: Path) -> None:
    good, rank = factors(base), np.zeros((2, 7), np.float32)
    odd = {
        "base_model.model.model.layers.9.mlp.down_proj.lora_A.weight": rank,
        "base_model.model.model.layers.9.mlp.down_proj.lora_B.weight": rank.T.copy(),
        "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": rank,
        "base_model.model.classifier.weight": rank,
        "base_model.model.model.norm.weight": rank,
        f"{MODULE}.lora_magnitude_vector": rank,
        "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight": rank,
        "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight": rank.T.copy(),
    }
    with pytest.raises(CheckpointError) as caught:
        hybridlm.load(base, adapter=write(tmp_path / "adapter", good | odd), **SETTINGS)
    faults = "\n".join(caught.value.faults)
    assert len(caught.value.faults) == 6
    for name in ("layers.9.mlp.down_proj", "layers.0.mlp.up_proj", "classifier", "model.norm", "DoRA", "layers.1.mlp"):
        assert name in faults


def test_vision_towers_are_left_out_and_nothing_else(base: Path, tmp_path: Path) -> None:
    vision = {"base_model.model.visual.blocks.0.lora_A.weight": np.ones((2, 3), np.float32)}
    vision |= {"base_model.model.visual.blocks.0.lora_B.weight": np.ones((3, 2), np.float32)}
    lm = hybridlm.load(base, adapter=write(tmp_path / "both", factors(base) | vision), **SETTINGS)
    assert not np.array_equal(lm.params[PARAMETER], hybridlm.load(base, **SETTINGS).params[PARAMETER])
    with pytest.raises(CheckpointError, match="changes nothing"):
        hybridlm.load(base, adapter=write(tmp_path / "vision", vision), **SETTINGS)


def test_no_adapter_there(base: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="adapter_config.json"):
        hybridlm.load(base, adapter=base, **SETTINGS)
    adapter = write(tmp_path / "adapter", factors(base))
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="pickle"):
        hybridlm.load(base, adapter=adapter, **SETTINGS)
    path = write(tmp_path / "alone", factors(base))
    with pytest.raises(CheckpointError, match="base_model_name_or_path"):
        hybridlm.load(path, **SETTINGS)


@pytest.mark.slow
def test_an_adapter_in_the_folder_and_another_one(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    shutil.copytree(base, folder)
    write(folder, factors(base))
    other = write(tmp_path / "other", factors(base, seed=1))
    with pytest.raises(ValueError, match="merge_adapter"):
        hybridlm.load(folder, adapter=other, **SETTINGS)
    assert not same(hybridlm.load(folder, **SETTINGS), hybridlm.load(folder, adapter=False, **SETTINGS))
    # A saved copy has the adapter inside, and none next to it.
    hybridlm.load(folder, **SETTINGS).save(tmp_path / "saved")
    assert same(hybridlm.load(tmp_path / "saved", **SETTINGS), hybridlm.load(folder, **SETTINGS))


@pytest.mark.parametrize("text", ["head", "embedding", "low rank", "both"])
def test_tied_models_stay_tied_or_are_refused(base: Path, tmp_path: Path, text: str) -> None:
    tied = tmp_path / "tied"
    shutil.copytree(base, tied)
    tensors = load_file(base / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    save_file(tensors, tied / "model.safetensors")
    config = json.loads((tied / "config.json").read_text())
    (tied / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    table = tensors["model.embed_tokens.weight"] + 1
    replaced = {"base_model.model.lm_head.weight": table, "base_model.model.model.embed_tokens.weight": table}
    if text != "both":
        replaced = {
            key: item
            for key, item in replaced.items()
            if {"head": "lm_head", "embedding": "embed"}.get(text, "?") in key
        }
    if text == "low rank":
        replaced["base_model.model.model.embed_tokens.lora_embedding_A"] = np.ones((2, table.shape[0]), np.float32)
        replaced["base_model.model.model.embed_tokens.lora_embedding_B"] = np.ones((table.shape[1], 2), np.float32)
    adapter = write(tmp_path / "adapter", factors(base) | replaced)
    if text == "both":
        np.testing.assert_array_equal(hybridlm.load(tied, adapter=adapter, **SETTINGS).params["embed_tokens"], table)
    else:
        with pytest.raises(CheckpointError, match="tie_word_embeddings"):
            hybridlm.load(tied, adapter=adapter, **SETTINGS)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_over_devices(name: str, tmp_path: Path) -> None:
    """Each device merges its shard; the saved model equals the model of one device."""
    original = write_random_checkpoint(name, tmp_path / "original", **FAMILIES[name])
    target = {key: item for file in original.glob("*.safetensors") for key, item in load_file(file).items()}
    matrices = [key.removesuffix(".weight") for key, a in target.items() if a.ndim == 2 and key.endswith(".weight")]
    if "lm_head" not in matrices:  # tied: neither of the two may change alone
        matrices = [name for name in matrices if "embed" not in name]
    assert len(matrices) > 4
    rng, tensors = np.random.default_rng(0), {}
    for key in matrices:
        out, into = target[f"{key}.weight"].shape
        tensors[f"base_model.model.{key}.lora_A.weight"] = rng.normal(size=(2, into)).astype(np.float32)
        tensors[f"base_model.model.{key}.lora_B.weight"] = rng.normal(size=(out, 2)).astype(np.float32)
    adapter = write(tmp_path / "adapter", tensors)
    settings: dict[str, Any] = {"lanes": 8, "context": 16, "chunk": 4, "compilation_cache": False}
    single = hybridlm.load(original, adapter=adapter, **settings)
    untouched = hybridlm.load(original, **settings)
    changed = [name for name, array in single.params.items() if not np.array_equal(array, untouched.params[name])]
    assert len(changed) > 4
    joint = hybridlm.load(original, adapter=adapter, mesh=hybridlm.mesh(2, 2, 2), **settings)
    second = hybridlm.load(original, mesh=hybridlm.mesh(2, 2, 2), **settings)
    second.merge_adapter(adapter)
    for number, lm in enumerate((joint, second)):
        lm.save(tmp_path / str(number))
        assert same(single, hybridlm.load(tmp_path / str(number), **settings))
