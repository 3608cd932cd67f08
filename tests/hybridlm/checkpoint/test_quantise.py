"""Quantised copies of checkpoints: nearest numbers, plain tensors, and files that load again."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_command
from packed_weights import packed_names
from safetensors.numpy import load_file, save_file

import hybridlm
import hybridlm.checkpoint.quantise as module
from hybridlm.checkpoint import CheckpointDirectory, CheckpointError, open_checkpoint
from hybridlm.checkpoint.header_check import check
from hybridlm.checkpoint.model import open_model
from hybridlm.checkpoint.quantise import quantise_checkpoint

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
SCHEMES = [("fp8-block", None), ("int8", None), ("int8", 16), ("int4", 8), ("nvfp4", None)]


def opened(path: Path) -> CheckpointDirectory:
    checkpoint = open_checkpoint(path)
    assert isinstance(checkpoint, CheckpointDirectory)
    return checkpoint


@pytest.mark.parametrize("golden", [
    "dense_interval", "sparse_multimodal", "nemotron_latent", "granite_experts",
    pytest.param("zamba2_base", marks=pytest.mark.long), pytest.param("indexed_base", marks=pytest.mark.long),
    pytest.param("minimax_base", marks=pytest.mark.long),
])  # fmt: skip
@pytest.mark.parametrize(("name", "group"), SCHEMES)
def test_copies_load(tmp_path: Path, golden: str, name: str, group: int | None) -> None:
    events: list[tuple[int, int, str]] = []
    report = quantise_checkpoint(
        GOLDEN / golden, tmp_path / "out", scheme=name, group_size=group, progress=lambda *event: events.append(event)
    )
    original = opened(GOLDEN / golden)
    copy, family, config = open_model(tmp_path / "out")
    assert isinstance(copy, CheckpointDirectory)
    plan = check(copy, family, config)
    assert report.quantised == len(copy.grouped.quantised) > 0 and report.bytes_after < report.bytes_before
    assert events[-1][0] == events[-1][1] == report.bytes_before
    assert report.bytes_after == sum(copy.info(name).end - copy.info(name).begin for name in copy.files)
    for tensor_name in copy.names:
        if tensor_name in copy.grouped.quantised:
            continue
        np.testing.assert_array_equal(copy.read_part(tensor_name), original.read_part(tensor_name))
    leaves = {choice.weight.path[-1] for choice in plan.choices for raw in choice.names.values()
              if raw in copy.grouped.quantised}  # fmt: skip
    assert leaves <= (module.FEED_FORWARD if name in ("int4", "nvfp4") else module.FEED_FORWARD | module.MIXERS)
    assert not any(
        part in tensor for tensor in copy.grouped.quantised for part in ("lm_head", "embed", "norm", "conv", "mtp")
    )
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    plain = {key for key in copy.files if key.endswith(".weight") and key not in copy.grouped.quantised}
    matrices = {key for key in plain if "conv" not in key and "embed" not in key and len(copy.shape(key)) == 2}
    matrices = {key.removesuffix(".weight") for key in matrices}
    assert matrices <= set(settings["ignore"])
    worst = {"fp8-block": 0.04, "int8": 0.005, "int4": 0.08, "nvfp4": 0.2}[name]
    for tensor_name in copy.grouped.quantised:
        if tensor_name in original.files:
            expected = original.read(tensor_name).astype(np.float32)
            assert np.abs(copy.read(tensor_name) - expected).max() <= worst * np.abs(expected).max()


@pytest.mark.slow
def test_head_and_embedding_where_they_are_asked_for(tmp_path: Path) -> None:
    report = quantise_checkpoint(GOLDEN / "dense_interval", tmp_path / "out", scheme="int8", head=True)
    without = quantise_checkpoint(GOLDEN / "dense_interval", tmp_path / "plain", scheme="int8")
    copy, original = opened(tmp_path / "out"), opened(GOLDEN / "dense_interval")
    vocabulary = [name for name in original.files if "embed_tokens" in name or "lm_head" in name]
    assert vocabulary and set(vocabulary) <= set(copy.grouped.quantised)
    assert report.quantised == without.quantised + len(vocabulary)
    for tensor_name in vocabulary:
        expected = original.read(tensor_name).astype(np.float32)
        assert np.abs(copy.read(tensor_name) - expected).max() <= 0.005 * np.abs(expected).max()
    settings: Any = {"lanes": 2, "context": 32, "chunk": 8, "dtype": "float32", "compilation_cache": False}
    packed = hybridlm.load(tmp_path / "out", **settings)
    plain = hybridlm.load(tmp_path / "out", dequantise="float32", **settings)
    assert "embed_tokens" in packed_names(packed.params) and "embed_tokens" not in packed_names(plain.params)
    for score, other in zip(packed.score([[3, 5, 7, 9], [8, 1]]), plain.score([[3, 5, 7, 9], [8, 1]]), strict=True):
        np.testing.assert_allclose(score.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "group", "form"), [("int4", 8, "pack-quantized"), ("nvfp4", None, "mixed-precision")])
@pytest.mark.parametrize("golden", ["dense_interval", "mamba2_base"])
def test_every_matrix_in_four_bits_and_the_head_in_eight(
    tmp_path: Path, golden: str, name: str, group: int | None, form: str
) -> None:
    quantise_checkpoint(GOLDEN / golden, tmp_path / "out", scheme=name, group_size=group, mixers=True, head=True)
    copy, original = opened(tmp_path / "out"), opened(GOLDEN / golden)
    quantised = copy.grouped.quantised
    leaves = {name.removesuffix(".weight").rpartition(".")[2] for name in quantised}
    expected = {"in_proj", "out_proj"} if golden == "mamba2_base" else module.FEED_FORWARD | module.MIXERS
    assert leaves - {"embed_tokens", "embeddings", "lm_head"} == expected & {
        name.removesuffix(".weight").rpartition(".")[2] for name in original.files
    }
    vocabulary = [name for name in original.files if "embed" in name or "lm_head" in name]
    assert vocabulary and set(vocabulary) <= set(quantised)
    for tensor_name, tensor in quantised.items():
        assert (tensor.scheme, tensor.bits) == (
            ("int-packed", 8) if tensor_name in vocabulary else ("int-packed", 4) if name == "int4" else ("nvfp4", 8)
        ), tensor_name
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert settings["format"] == form and not {"lm_head", *leaves} & set(settings["ignore"])
    options: Any = {"lanes": 2, "context": 32, "chunk": 8, "dtype": "float32", "compilation_cache": False}
    packed, plain = (hybridlm.load(tmp_path / "out", dequantise=dtype, **options) for dtype in (None, "float32"))
    for score, other in zip(packed.score([[3, 5, 7, 9], [8, 1]]), plain.score([[3, 5, 7, 9], [8, 1]]), strict=True):
        np.testing.assert_allclose(score.logprobs, other.logprobs, atol=1e-4)


def test_experts_of_one_tensor_become_tensors_of_their_own(tmp_path: Path) -> None:
    original = opened(GOLDEN / "sparse_multimodal")
    fused = next(name for name in original.files if name.endswith("experts.gate_up_proj"))
    quantise_checkpoint(GOLDEN / "sparse_multimodal", tmp_path / "out", scheme="nvfp4")
    copy, expected = opened(tmp_path / "out"), original.read(fused).astype(np.float32)
    stem = fused.removesuffix("gate_up_proj")
    for expert, matrix in enumerate(expected):
        for part, rows in zip(("gate_proj", "up_proj"), np.split(matrix, 2), strict=True):
            copied = copy.read(f"{stem}{expert}.{part}.weight")
            assert np.abs(copied - rows).max() <= 0.2 * np.abs(rows).max()
        # Engines multiply both at once, with one scale.
        scales = [copy.read_part(f"{stem}{expert}.{part}.weight_global_scale") for part in ("gate_proj", "up_proj")]
        assert float(scales[0][0]) == float(scales[1][0])
    assert len({float(copy.read_part(name)[0]) for name in copy.files if name.endswith("global_scale")}) > 2


def refused(**settings: Any) -> str:
    with pytest.raises((ValueError, OSError)) as caught:
        quantise_checkpoint(**settings)
    return str(caught.value)


def test_what_is_refused(tmp_path: Path) -> None:
    dense, out = GOLDEN / "dense_interval", tmp_path / "out"
    assert "fp8-block" in refused(source=dense, target=out, scheme="fp4")
    assert "group_size" in refused(source=dense, target=out, scheme="nvfp4", group_size=16)
    assert "group_size" in refused(source=dense, target=out, scheme="int4", group_size=12)
    assert "ragged" in refused(source=dense, target=out, scheme="int4")
    assert "mixers" in refused(source=GOLDEN / "mamba2_base", target=out, scheme="nvfp4")
    assert not out.exists() and not list(tmp_path.iterdir())
    quantise_checkpoint(dense, out, scheme="int8")
    assert "exists" in refused(source=dense, target=out, scheme="int8")
    assert "already" in refused(source=out, target=tmp_path / "twice", scheme="int8")


@pytest.mark.parametrize("named", [None, "decision.json", "judge_config.json"])
def test_a_copy_that_would_be_without_the_adapter(tmp_path: Path, named: str | None) -> None:
    """The adapter is in the checkpoint's folder, or in a decision model's folder."""
    source, out = Path(shutil.copytree(GOLDEN / "dense_interval", tmp_path / "in")), tmp_path / "out"
    place = source if named is None else source / "adapter"
    if named is None:
        (source / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    else:
        (source / named).write_text('{"adapter": "adapter"}')
    with pytest.raises(CheckpointError) as caught:
        quantise_checkpoint(source, out, scheme="int8")
    assert caught.value.where == str(place) and not out.exists()
    if named is None:
        return
    (source / named).write_text('{"adapter": null, "adapter_subfolder": null}')
    assert quantise_checkpoint(source, out, scheme="int8").quantised > 0


@pytest.mark.parametrize("scheme", ["int8", "nvfp4"])
def test_damaged_numbers_leave_nothing_behind(tmp_path: Path, scheme: str) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "config.json").write_bytes((GOLDEN / "lfm2_base" / "config.json").read_bytes())
    tensors = load_file(GOLDEN / "lfm2_base" / "model.safetensors")
    name = next(name for name in sorted(tensors, reverse=True) if name.endswith("w2.weight"))
    tensors[name] = tensors[name].copy()
    tensors[name][3, 5] = np.inf
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        quantise_checkpoint(source, tmp_path / "out", scheme=scheme)
    assert name in str(caught.value) and [path.name for path in tmp_path.iterdir()] == ["in"]


def test_command(tmp_path: Path) -> None:
    out = tmp_path / "out"
    model, options = GOLDEN / "dense_interval", ("--scheme", "int4", "--group-size", "16")
    assert "9 matrices" in run_command("quantise", model, out, *options).output
    assert len(opened(out).grouped.quantised) == 9
    assert "9 matrices" not in run_command("quantise", model, tmp_path / "all", *options, "--mixers", "--head").output
