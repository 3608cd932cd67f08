"""Checkpoint directories: one file or shards, the index, config.json, and refusals."""

import json
import math
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from hybridlm.checkpoint import CheckpointDirectory, CheckpointError, checkpoint_fingerprint, open_directory

ONE = np.ones((2, 3), np.float32)
INDEX = "model.safetensors.index.json"


def config(directory: Path, text: str = '{"model_type": "x"}') -> Path:
    (directory / "config.json").write_text(text)
    return directory


def index(directory: Path, weight_map: Any) -> None:
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def sharded(directory: Path) -> Path:
    config(directory)
    save_file({"a": ONE, "b": ONE * 2}, directory / "m-1.safetensors")
    save_file({"c": ONE * 3}, directory / "m-2.safetensors")
    index(directory, {"a": "m-1.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"})
    return directory


def refused(directory: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_directory(directory)
    return caught.value


def values(checkpoint: CheckpointDirectory) -> dict[str, float]:
    return {name: float(checkpoint.read(name)[0, 0]) for name in checkpoint.files}


def test_single_file(tmp_path: Path) -> None:
    save_file({"a": ONE, "b": ONE * 2}, config(tmp_path) / "model.safetensors")
    checkpoint = open_directory(str(tmp_path))
    assert checkpoint.config == {"model_type": "x"}
    assert values(checkpoint) == {"a": 1, "b": 2}
    assert checkpoint.info("a").shape == (2, 3)
    assert not checkpoint.notes


def test_links_out_of_the_directory_as_in_the_hub_cache(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for path in sharded(blobs).iterdir():
        os.symlink(path, snapshot / path.name)
    assert values(open_directory(snapshot)) == {"a": 1, "b": 2, "c": 3}


def test_a_single_file_precedes_an_index_with_a_warning(tmp_path: Path) -> None:
    save_file({"z": ONE}, sharded(tmp_path) / "model.safetensors")
    checkpoint = open_directory(tmp_path)
    assert list(checkpoint.files) == ["z"]
    assert INDEX in checkpoint.notes[0]


def test_tensors_outside_the_index_are_reported(tmp_path: Path) -> None:
    index(sharded(tmp_path), {"a": "m-1.safetensors", "c": "m-2.safetensors"})
    checkpoint = open_directory(tmp_path)
    assert list(checkpoint.files) == ["a", "c"]
    assert list(checkpoint.unindexed) == ["b"]
    assert checkpoint.notes == (f"m-1.safetensors holds b, which {INDEX} does not list",)


def test_a_second_copy_of_a_tensor_is_reported_and_the_index_decides(tmp_path: Path) -> None:
    save_file({"c": ONE * 3, "a": ONE * 9}, sharded(tmp_path) / "m-2.safetensors")
    checkpoint = open_directory(tmp_path)
    assert values(checkpoint)["a"] == 1
    assert "m-2.safetensors holds a" in checkpoint.notes[0]


@pytest.mark.parametrize("name", [
    "../m.safetensors", "sub/../../m.safetensors", "/etc/m.safetensors", "..\\m.safetensors", "C:m.safetensors",
    "\\\\host\\m.safetensors", "m.safetensors\0", "m.bin", "", 3, None,
])  # fmt: skip
def test_index_stays_inside_the_directory(tmp_path: Path, name: Any) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file({"a": ONE}, tmp_path / "m.safetensors")
    index(config(folder), {"a": name})
    (fault,) = refused(folder).faults
    assert "a: expected a safetensors file inside the directory" in fault


def test_index_faults_come_all_at_once(tmp_path: Path) -> None:
    index(
        sharded(tmp_path),
        {
            "a": "m-1.safetensors",
            "gone": "m-1.safetensors",
            "c": "m-3.safetensors",
            "d": "/m.safetensors",
            "e": "bad.safetensors",
        },
    )
    (tmp_path / "bad.safetensors").write_bytes(b"123")
    text = "\n".join(refused(tmp_path).faults)
    assert "gone: the index says m-1.safetensors, which has no tensor of that name" in text
    assert "m-3.safetensors: expected a safetensors file" in text
    assert "d: expected a safetensors file inside the directory" in text
    assert "bad.safetensors: truncated" in text
    assert len(refused(tmp_path).faults) == 4


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "{", '{"a": 1, "a": 2}'])
def test_bad_index(tmp_path: Path, content: str) -> None:
    (config(tmp_path) / INDEX).write_text(content)
    assert INDEX in str(refused(tmp_path))


def test_file_of_torch_without_safetensors(tmp_path: Path) -> None:
    """`pytorch_model.bin` counts only where no safetensors are."""
    source = Path(__file__).parents[2] / "golden_original" / "mamba2_base"
    checkpoint = open_directory(source)
    assert checkpoint.info("backbone.norm_f.weight").shape == (32,) and not checkpoint.notes
    assert len(checkpoint_fingerprint(checkpoint)) == 64
    shutil.copy(source / "pytorch_model.bin", tmp_path)
    save_file({"a": ONE}, config(tmp_path) / "model.safetensors")
    assert values(open_directory(tmp_path)) == {"a": 1}


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model.pth", "pytorch_model-00001-of-00002.bin"])
def test_pickles_are_refused_and_never_opened(tmp_path: Path, name: str) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    (config(tmp_path) / name).write_bytes(pickle.dumps(Bomb()))
    message = str(refused(tmp_path))
    assert (
        "pickle checkpoint" in message and name in message and "safetensors" in message and "save_pretrained" in message
    )
    assert not (tmp_path / "ran").exists()


def test_an_error_without_weights_lists_the_files(tmp_path: Path) -> None:
    (config(tmp_path) / "model.gguf").touch()
    (tmp_path / "onnx").mkdir()
    message = str(refused(tmp_path))
    assert "expected model.safetensors" in message and "config.json, model.gguf, onnx/" in message
    assert "pickle" not in message


def test_shards_without_an_index(tmp_path: Path) -> None:
    (sharded(tmp_path) / INDEX).unlink()
    assert "Shards need their" in str(refused(tmp_path))


def test_no_directory(tmp_path: Path) -> None:
    assert "expected a checkpoint directory" in str(refused(tmp_path / "no"))


def test_no_config(tmp_path: Path) -> None:
    assert "expected config.json, found an empty directory" in str(refused(tmp_path))
    (tmp_path / "other.txt").touch()
    assert "found other.txt" in str(refused(tmp_path))


def test_config_floats(tmp_path: Path) -> None:
    text = '{"limit": [0.0, {"__float__": "Infinity"}], "low": {"__float__": "-Infinity"}, "n": {"__float__": "NaN"}}'
    save_file({"a": ONE}, config(tmp_path, text) / "model.safetensors")
    result = open_directory(tmp_path).config
    assert result["limit"] == [0.0, math.inf] and result["low"] == -math.inf and math.isnan(result["n"])


@pytest.mark.parametrize(("content", "message"), [
    (b"[]", "expected a JSON object, found list"), (b"", "cannot be read"), (b"{", "cannot be read"),
    (b'{"a": 1, "a": 2}', "duplicate keys"), (b"\xff\xfe{}", "cannot be read"), (b'{"__float__": "12"}', "__float__"),
    (b'{"a": {"__float__": 1}}', "__float__"), (b'{"a":' * 100_000, "cannot be read"),
    (b" " * 16_000_001, "at most 16,000,000 bytes"),
])  # fmt: skip
def test_bad_config(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert message in str(refused(tmp_path)) and "config.json" in str(refused(tmp_path))


def test_config_that_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    assert "expected a regular file" in str(refused(tmp_path))


def test_long_lists_are_counted(tmp_path: Path) -> None:
    index(sharded(tmp_path), {f"t{i}": "m-1.safetensors" for i in range(100)})
    error = refused(tmp_path)
    assert len(error.faults) == 100
    assert "t39:" in str(error) and "t40:" not in str(error) and "and 60 more" in str(error)


def fingerprint(
    directory: Path, tensors: dict[str, np.ndarray], settings: str = '{"model_type": "x", "size": 3}'
) -> str:
    directory.mkdir()
    save_file(tensors, config(directory, settings) / "model.safetensors")
    return checkpoint_fingerprint(open_directory(directory))


def test_a_fingerprint_names_weights_and_configuration(tmp_path: Path) -> None:
    large = np.arange(5000, dtype=np.float32)
    base = fingerprint(tmp_path / "base", {"a": ONE, "b": large})
    assert base == fingerprint(tmp_path / "copy", {"b": large, "a": ONE}, '{"size":3,  "model_type": "x"}')
    small, last = ONE.copy(), large.copy()
    small[1, 1], last[-1] = 2, 0
    rest = [
        fingerprint(tmp_path / "1", {"a": small, "b": large}),
        fingerprint(tmp_path / "2", {"a": ONE, "b": last}),
        fingerprint(tmp_path / "3", {"a": ONE, "b": large + 1}),
        fingerprint(tmp_path / "4", {"a": ONE.reshape(3, 2), "b": large}),
        fingerprint(tmp_path / "5", {"c": ONE, "b": large}),
        fingerprint(tmp_path / "6", {"a": ONE.view(np.int32), "b": large}),
        fingerprint(tmp_path / "7", {"a": ONE, "b": large}, '{"model_type": "x", "size": 4}'),
    ]
    assert len({base, *rest}) == 8


def test_a_fingerprint_does_not_depend_on_how_tensors_are_put_into_files(tmp_path: Path) -> None:
    parts = checkpoint_fingerprint(open_directory(sharded(tmp_path)))
    assert parts == fingerprint(tmp_path / "one", {"a": ONE, "b": ONE * 2, "c": ONE * 3}, '{"model_type": "x"}')
