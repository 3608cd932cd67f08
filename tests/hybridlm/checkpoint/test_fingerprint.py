"""Fingerprints of checkpoints: every byte counts, files are read lazily and may change later."""

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gguf_checkpoint import write_gguf
from quantised_checkpoint import write_tensors
from safetensors.numpy import save_file

from hybridlm.checkpoint import (
    Checkpoint,
    Fingerprint,
    checkpoint_fingerprint,
    fingerprint,
    fingerprint_of,
    open_checkpoint,
    open_directory,
)
from hybridlm.checkpoint.given_tensors import array_digest

SIZE = 3 * fingerprint.BLOCK + 5
"""Bytes of a tensor of several blocks, with a partial last block."""


def write(directory: Path, tensors: dict[str, np.ndarray], **config: Any) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "lfm2", **config}))
    save_file(tensors, directory / "model.safetensors")
    return directory


def flip(path: Path, position: int) -> None:
    """Change a byte in place; the time of the last write is set back."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def of(path: Path) -> str:
    return str(fingerprint_of(open_checkpoint(path), "float32"))


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take files of this moment for old ones."""
    monkeypatch.setattr("hybridlm.files.atomic.SETTLED_NS", 0)


def test_every_block_of_a_tensor_counts(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", {"a": np.zeros(SIZE, np.uint8), "b": np.zeros(7, np.uint8)})
    path, calls = folder / "model.safetensors", [of(folder)]
    begin, _ = open_directory(folder).files["a"].place("a")  # type: ignore[attr-defined]
    for position in (0, 257, SIZE // 2, fingerprint.BLOCK - 1, fingerprint.BLOCK, SIZE - 1, SIZE):
        flip(path, begin + position)
        calls.append(of(folder))
    assert len(set(calls)) == len(calls)


def test_a_byte_of_a_later_shard_counts(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "lfm2"}')
        for i in range(2):
            array = np.zeros(20_000, np.uint8)
            array[10_000] = i * (name == "two")
            save_file({f"t{i}": array}, folder / f"m-{i}.safetensors")
        index = {f"t{i}": f"m-{i}.safetensors" for i in range(2)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    assert of(tmp_path / "one") != of(tmp_path / "two")


def test_a_scale_of_a_quantised_weight_and_its_second_description_count(tmp_path: Path) -> None:
    codes, scale = np.zeros((64, 96), np.uint8), np.ones((64, 96), np.float32)
    calls = []
    for change in ("none", "scale", "beside"):
        folder, moved = tmp_path / change, scale.copy()
        folder.mkdir()
        moved[40, 41] += change == "scale"
        (folder / "config.json").write_text('{"model_type": "lfm2"}')
        if change == "beside":
            (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
        tensors = {"a.weight": ("F8_E4M3", codes), "a.weight_scale": ("F32", moved)}
        write_tensors(folder / "model.safetensors", tensors)
        calls.append(of(folder))
    assert len(set(calls)) == 3


def test_a_byte_of_a_gguf_file_counts(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = write_gguf(tmp_path / "m.gguf", "lfm2")
    initial, checkpoint = of(path), open_checkpoint(path)
    name = "model.embed_tokens.weight"
    flip(path, checkpoint.info(name).begin + 700)  # type: ignore[union-attr]
    assert of(path) != initial


@pytest.mark.usefixtures("settled")
def test_nothing_is_read_before_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "m", {"a": np.zeros(9, np.uint8)})
    read: list[Path] = []
    full = checkpoint_fingerprint
    monkeypatch.setattr(fingerprint, "checkpoint_fingerprint", lambda item: read.append(item.path) or full(item))
    first, second = (fingerprint_of(open_directory(folder), "float32") for _ in range(2))
    assert first == second and first is not second and not read
    assert str(first) == full(open_directory(folder)) and first == str(first) and len(read) == 1
    assert str(first) == str(second) and len(read) == 2


def test_files_of_this_moment_are_read_at_once(tmp_path: Path) -> None:
    """Two writes in one tick of the file system's clock leave the same times."""
    folder = write(tmp_path / "m", {"a": np.zeros(9, np.uint8)})
    fingerprint = fingerprint_of(open_directory(folder), "float32")
    expected = checkpoint_fingerprint(open_directory(folder))
    shutil.rmtree(folder)
    assert str(fingerprint) == expected


def edited(folder: Path) -> None:
    flip(folder / "model.safetensors", os.stat(folder / "model.safetensors").st_size - 1)


def replaced(folder: Path) -> None:
    save_file({"a": np.ones(9, np.uint8)}, folder / "new")
    os.replace(folder / "new", folder / "model.safetensors")


def shorter(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 70)


def deleted(folder: Path) -> None:
    shutil.rmtree(folder)


def configured(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "lfm2", "norm_eps": 1}')


CHANGES = [edited, replaced, shorter, deleted, configured]


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("change", CHANGES, ids=lambda function: function.__name__)
def test_files_that_changed_since_they_were_opened(
    tmp_path: Path, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The fingerprint of replaced content equals no other, not even the new content's."""
    folder = write(tmp_path / "m", {"a": np.zeros(9, np.uint8)})
    initial = checkpoint_fingerprint(open_directory(folder))
    old = fingerprint_of(open_directory(folder), "float32")
    change(folder)
    with caplog.at_level(logging.WARNING, "hybridlm"):
        assert str(old) == str(old) != initial
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == [str(folder)]
    if change not in (shorter, deleted):
        new = fingerprint_of(open_directory(folder), "float32")
        assert old != new and str(new) == checkpoint_fingerprint(open_directory(folder))


@pytest.mark.usefixtures("settled")
def test_a_file_that_changes_while_it_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "m", {"a": np.zeros(9, np.uint8)})
    result, full = fingerprint_of(open_directory(folder), "float32"), checkpoint_fingerprint

    def slow(directory: Any) -> str:
        text = full(directory)
        edited(folder)
        return text

    monkeypatch.setattr(fingerprint, "checkpoint_fingerprint", slow)
    assert str(result) != full(open_directory(folder))


@pytest.mark.usefixtures("settled")
def test_a_link_of_a_snapshot_that_points_elsewhere(tmp_path: Path) -> None:
    """As in the Hub's cache, where each file is a link to its content."""
    for name, value in (("one", 0), ("two", 1)):
        write(tmp_path / name, {"a": np.full(9, value, np.uint8)})
    folder = tmp_path / "snapshot"
    folder.mkdir()
    shutil.copyfile(tmp_path / "one" / "config.json", folder / "config.json")
    link = folder / "model.safetensors"
    link.symlink_to(tmp_path / "one" / "model.safetensors")
    first = fingerprint_of(open_directory(folder), "float32")
    assert first == fingerprint_of(open_directory(folder), "float32")
    assert fingerprint_of(open_directory(tmp_path / "one"), "float32") == first  # by content: another path
    fingerprint = fingerprint_of(open_directory(folder), "float32")
    link.unlink()
    link.symlink_to(tmp_path / "two" / "model.safetensors")
    assert fingerprint != fingerprint_of(open_directory(folder), "float32") and fingerprint != of(tmp_path / "two")


def test_forms_in_memory_are_told_apart(tmp_path: Path) -> None:
    """Packed weights and dequantised ones are rounded at other places."""
    checkpoint: Checkpoint = open_directory(write(tmp_path / "m", {"a": np.zeros(9, np.uint8)}))
    forms: list[tuple[str, ...]] = [(), ("a",), ("b",), ("a", "b")]
    results = [fingerprint_of(checkpoint, "float32", packed=form) for form in forms]
    assert len(set(results)) == 4 and results[3] == fingerprint_of(checkpoint, "float32", packed=("b", "a"))


def test_a_fingerprint_is_computed_once() -> None:
    calls: list[int] = []
    fingerprint = Fingerprint(lambda: calls.append(1) or "text")
    assert fingerprint == fingerprint and not calls
    assert (
        {fingerprint: 1}[fingerprint] == 1
        and fingerprint == Fingerprint("text")
        and fingerprint != Fingerprint("other")
        and f"{fingerprint}" == "text"
    )
    assert len(calls) == 1 and fingerprint != "other"


def test_a_digest_knows_places_and_dtypes() -> None:
    x = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    digest = lambda x: array_digest(jnp.asarray(x)).tolist()
    assert digest(x) == digest(x.copy()) and len(set(digest(x))) == 4
    assert len({tuple(digest(each)) for each in (x, x[::-1], x[:, ::-1], -x, x.astype(np.float16))}) == 5
