"""Parameters from checkpoints: all faults at once from headers, then values, dtypes and memory."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hybridlm.checkpoint import (
    CheckpointDirectory,
    CheckpointError,
    LoadedWeights,
    OpenModel,
    cast,
    load_parameters,
    open_directory,
)
from hybridlm.checkpoint.model import open_model
from hybridlm.checkpoint.safetensors import ArrayFile
from hybridlm.checkpoint.shards import dotted
from hybridlm.families import expert_matrices, rows
from models import Family, Weight, WeightSource

E, F, H = 3, 4, 2
GOLDEN = Path(__file__).resolve().parents[2] / "golden"
FUSED, EXPERT = "model.mlp.experts.gate_up", "model.mlp.experts"
SPLIT = [[f"model.mlp.experts.{e}.{part}.weight" for part in ("gate", "up")] for e in range(E)]


def _experts() -> Weight:
    return Weight(("mlp", 0, "gate_up"), (E, 2 * F, H), expert_matrices(FUSED, EXPERT, ("gate", "up"), E, (F, H)))


def _weights(_: Any) -> list[Weight]:
    return [
        Weight(("embed",), (5, H), (WeightSource({"model.embed.weight": (5, H)}),)),
        Weight(("norm",), (H,), (WeightSource({"model.norm.weight": (H,)}),), float32=True),
        _experts(),
        Weight(("q",), (2, H), (rows("model.qkv", (6, H), np.arange(2)),)),
        Weight(("kv",), (4, H), (WeightSource({"model.qkv": (6, H)}, take=lambda qkv, window: qkv[:1:-1][window]),)),
    ]


FAMILY = Family(
    name="toy",
    model_types=("toy",),
    read_config=lambda _: _config(),
    weights=_weights,
    skipped=(r"mtp\..*", r"model\.visual\..*"),
    prefixes=("model.language_model.",),
)


def _config() -> Any:
    raise AssertionError("not read here")


def tensors(split: bool = False, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    result = {
        "model.embed.weight": rng.normal(size=(5, H)),
        "model.norm.weight": rng.normal(size=(H,)),
        "model.qkv": rng.normal(size=(6, H)),
        FUSED: rng.normal(size=(E, 2 * F, H)),
    }
    if split:
        fused = result.pop(FUSED)
        for e, (gate, up) in enumerate(SPLIT):
            result[gate], result[up] = fused[e, :F].copy(), fused[e, F:].copy()
    return {name: array.astype(dtype) for name, array in result.items()}


NO_CONFIG: Any = None
"""The functions of these families ignore the configuration."""


def save(directory: Path, arrays: Mapping[str, np.ndarray], **config: Any) -> CheckpointDirectory:
    (directory / "config.json").write_text(json.dumps({"model_type": "toy", **config}))
    save_file(dict(arrays), directory / "model.safetensors")
    return open_directory(directory)


def load(checkpoint: CheckpointDirectory, dtype: str = "float32", **options: Any) -> LoadedWeights:
    return load_parameters(OpenModel(checkpoint, FAMILY, NO_CONFIG), dtype, **options)


def faults(checkpoint: CheckpointDirectory) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint)
    return caught.value.faults


@pytest.mark.parametrize("split", [False, True])
def test_values_of_both_layouts(tmp_path: Path, split: bool) -> None:
    report = load(save(tmp_path, tensors(split)))
    arrays, expected = report.arrays, tensors()
    assert list(arrays) == [("embed",), ("norm",), ("mlp", 0, "gate_up"), ("q",), ("kv",)]
    np.testing.assert_array_equal(arrays[("embed",)], expected["model.embed.weight"])
    np.testing.assert_array_equal(arrays[("mlp", 0, "gate_up")], expected[FUSED])
    np.testing.assert_array_equal(arrays[("q",)], expected["model.qkv"][:2])
    np.testing.assert_array_equal(arrays[("kv",)], expected["model.qkv"][:1:-1])
    assert report.parameters == sum(array.size for array in expected.values())
    assert report.bytes == 4 * report.parameters
    assert report.lines() == []


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("wanted", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("split", [False, True])
def test_dtypes(tmp_path: Path, stored: Any, wanted: str, split: bool) -> None:
    source = tensors(split, stored)
    arrays = load(save(tmp_path, source), wanted).arrays
    for path, array in arrays.items():
        assert array.dtype == (jnp.float32 if path == ("norm",) else jnp.dtype(wanted))
    expected = source["model.embed.weight"].astype(jnp.dtype(wanted))
    assert np.asarray(arrays[("embed",)]).tobytes() == expected.tobytes()
    assert np.asarray(arrays[("norm",)]).tobytes() == source["model.norm.weight"].astype(np.float32).tobytes()


def test_mixed_dtypes_in_one_parameter_lose_nothing(tmp_path: Path) -> None:
    source = tensors(split=True)
    exact = source[SPLIT[0][1]]
    source[SPLIT[0][0]] = source[SPLIT[0][0]].astype(ml_dtypes.bfloat16)
    arrays = load(save(tmp_path, source)).arrays
    np.testing.assert_array_equal(arrays[("mlp", 0, "gate_up")][0, F:], exact)


def test_conversion_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cast, "_BLOCK", 3)
    arrays = load(save(tmp_path, tensors(dtype=ml_dtypes.bfloat16))).arrays
    expected = tensors(dtype=ml_dtypes.bfloat16)
    np.testing.assert_array_equal(arrays[("embed",)], expected["model.embed.weight"].astype(np.float32))
    np.testing.assert_array_equal(arrays[("kv",)], expected["model.qkv"][:1:-1].astype(np.float32))


@pytest.mark.parametrize(
    ("stored", "wanted", "large"), [(ml_dtypes.bfloat16, "float16", 1e5), (np.float32, "bfloat16", 3.4e38)]
)
def test_values_beyond_the_dtype_are_an_error(tmp_path: Path, stored: Any, wanted: str, large: float) -> None:
    source = tensors(dtype=stored)
    source["model.embed.weight"][1, 1] = -large
    checkpoint = save(tmp_path, source)
    with pytest.raises(CheckpointError, match=f"model.embed.weight: holds .* beyond the range of {wanted}"):
        load(checkpoint, wanted)
    assert load(checkpoint, "float32").arrays


def test_infinity_in_the_checkpoint_stays(tmp_path: Path) -> None:
    source = tensors()
    source["model.embed.weight"][1, 1] = np.inf
    assert jnp.isinf(load(save(tmp_path, source), "float16").arrays[("embed",)]).sum() == 1


@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
def test_arrays_share_nothing_with_the_file(tmp_path: Path, wanted: str) -> None:
    checkpoint = save(tmp_path, tensors())
    arrays = load(checkpoint, wanted).arrays
    initial = {path: np.array(array) for path, array in arrays.items()}
    file = checkpoint.files["model.qkv"]
    assert isinstance(file, ArrayFile)
    mapped = np.frombuffer(file._map, np.uint8)
    assert not any(np.may_share_memory(np.asarray(array), mapped) for array in arrays.values())
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as handle:
        handle.seek(-200, 2)
        handle.write(b"\xaa" * 200)
    assert (checkpoint.read("model.qkv").view(np.uint8) == 0xAA).any(), "the map must show the change"
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.asarray(array), initial[name])


def test_aligned_data_is_copied_too(tmp_path: Path) -> None:
    """XLA takes over aligned memory without a copy, so a file mapping must be copied."""
    header = json.dumps({"s": {"dtype": "F32", "shape": [1024], "data_offsets": [0, 4096]}}).encode().ljust(120)
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4096))
    (tmp_path / "config.json").write_text("{}")
    weight = Weight(("s",), (1024,), (WeightSource({"s": (1024,)}),))
    family = Family("s", ("s",), lambda _: _config(), lambda _: [weight], (), ())
    array = load_parameters(OpenModel(open_directory(tmp_path), family, NO_CONFIG), "float32").arrays[("s",)]
    with path.open("r+b") as handle:
        handle.seek(128)
        handle.write(b"\xaa" * 4096)
    assert not np.asarray(array).any()


def test_every_fault_at_once(tmp_path: Path) -> None:
    source = tensors(split=True)
    del source["model.norm.weight"], source[SPLIT[1][0]]
    source["model.embed.weight"] = np.zeros((H, 5), np.float32)
    source["model.bias"] = np.zeros(7, np.float32)
    source["model.qkv"] = np.zeros((6, H), np.int32)
    messages = faults(save(tmp_path, source))
    assert "mis-shaped model.embed.weight: expected (5, 2), found (2, 5)" in messages
    assert "missing model.norm.weight: expected shape (2,), found no tensor of that name" in messages
    assert f"missing {SPLIT[1][0]}: expected shape (4, 2), found no tensor of that name" in messages
    assert "unexpected model.bias: found F32 (7,), family toy reads no such tensor" in messages
    assert any(fault.startswith("unreadable model.qkv: dtype I32 is not read") for fault in messages)
    assert len(messages) == 5


def test_missing_tensors_are_named_in_the_usual_layout(tmp_path: Path) -> None:
    source = tensors()
    del source[FUSED]
    (fault,) = faults(save(tmp_path, source))
    assert fault.startswith(f"missing {FUSED}:") and f"nor the other layout, {SPLIT[0][0]}" in fault


def test_both_layouts_at_once_are_refused(tmp_path: Path) -> None:
    messages = faults(save(tmp_path, tensors() | tensors(split=True)))
    assert len(messages) == 2 * E and all("beside another layout" in fault for fault in messages)


def test_a_missing_tensor_that_only_the_index_forgot(tmp_path: Path) -> None:
    save(tmp_path, {})
    (tmp_path / "model.safetensors").unlink()
    save_file(tensors(), tmp_path / "m.safetensors")
    index = {name: "m.safetensors" for name in tensors() if name != "model.qkv"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (fault,) = faults(open_directory(tmp_path))
    assert "missing model.qkv" in fault and "but in m.safetensors" in fault


def test_two_names_for_one_tensor(tmp_path: Path) -> None:
    messages = faults(save(tmp_path, tensors() | {"model.language_model.qkv": np.zeros((6, H), np.float32)}))
    assert len(messages) == 1 and messages[0].startswith("ambiguous model.qkv: found both")


@pytest.mark.parametrize("config", [
    {"quantization_config": {"quant_method": "quark"}},
    {"text_config": {"quantization_config": {"quant_method": "quark"}}},
])  # fmt: skip
def test_unknown_quantisation_is_named_first(tmp_path: Path, config: dict[str, Any]) -> None:
    source = tensors() | {"model.qkv": np.zeros((6, H), np.int8), "model.qkv_scale": np.ones(1, np.float32)}
    messages = faults(save(tmp_path, source, **config))
    assert "'quark'" in messages[0] and "hybridlm quantise" in messages[0]


def test_skipped_tensors_are_reported_once(tmp_path: Path) -> None:
    extra = {f"mtp.layers.{i}.w": np.zeros(2, np.int8) for i in range(3)} | {"model.visual.x": np.zeros(1, np.float32)}
    report = load(save(tmp_path, tensors() | extra))
    assert report.skipped == {r"mtp\..*": 3, r"model\.visual\..*": 1}
    (line,) = report.lines()
    assert "4 tensors are not used" in line and r"3 of mtp\..*" in line and r"1 of model\.visual\..*" in line


def test_nothing_is_read_before_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tensors()
    del source["model.qkv"]
    checkpoint = save(tmp_path, source)
    monkeypatch.setattr(CheckpointDirectory, "read", lambda *_: pytest.fail("read before the check"))
    assert len(faults(checkpoint)) == 1


def test_progress(tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    report = load(save(tmp_path, tensors()), "bfloat16", progress=lambda *call: calls.append(call))
    assert [call[2] for call in calls] == ["", "embed", "norm", "mlp.0.gate_up", "q", "kv"]
    assert [call[0] for call in calls] == sorted({call[0] for call in calls})
    assert {call[1] for call in calls} == {report.bytes} and calls[-1][0] == report.bytes


def test_scalars(tmp_path: Path) -> None:
    family = Family(
        "s", ("s",), lambda _: _config(), lambda _: [Weight(("s",), (), (WeightSource({"s": ()}),))], (), ()
    )
    checkpoint = save(tmp_path, {"s": np.array(2.5, np.float32)})
    assert load_parameters(OpenModel(checkpoint, family, NO_CONFIG), "bfloat16").arrays[("s",)] == 2.5


@pytest.mark.parametrize(
    ("name", "end", "path"),
    [(name, "gate.weight", "router.weight") for name in ("nemotron_latent", "kimi_base", "ling_base")]
    + [("ling_base", "conv1d.weight", "conv1d")],
)
def test_matrices_stay_in_float32_as_in_transformers(name: str, end: str, path: str, tmp_path: Path) -> None:
    tensors = load_file(GOLDEN / name / "model.safetensors")
    stored = [file for file in tensors if file.endswith(end)]
    for file in stored:
        tensors[file] = tensors[file].astype(np.float32) * np.float32(1 + 2**-12)
    save_file(tensors, tmp_path / "model.safetensors")
    shutil.copy(GOLDEN / name / "config.json", tmp_path)
    arrays = load_parameters(open_model(tmp_path), "bfloat16").arrays
    matrices = [np.asarray(array) for key, array in arrays.items() if dotted(key).endswith(path)]
    assert stored and all(matrix.dtype == np.float32 for matrix in matrices)
    numbers, expected = (
        np.sort(np.concatenate([np.ravel(array) for array in each]))
        for each in (matrices, [tensors[file] for file in stored])
    )
    assert np.array_equal(numbers, expected)
