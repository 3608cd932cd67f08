"""Models saved under one mesh load under another with the same bits, for every family."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from random_checkpoint import FAMILIES, MESHES, write_random_checkpoint

import hybridlm
from hybridlm.checkpoint.saved import index as format
from hybridlm.checkpoint.saved.pieces import saved_pieces
from models import Segment, ShardedDim

REFERENCE = Path(__file__).resolve().parents[3] / "reference"
SMALL: dict[str, Any] = {"lanes": 8, "context": 16, "chunk": 4, "compilation_cache": False}
Sizes = tuple[int, int, int]


def load(directory: Path, sizes: Sizes | None) -> hybridlm.LM:
    return hybridlm.load(directory, mesh=None if sizes is None else hybridlm.mesh(*sizes), **SMALL)


def same(lm: hybridlm.LM, expected: hybridlm.LM) -> bool:
    """Whether every device has the same bits of every parameter."""
    assert list(lm.params) == list(expected.params)
    for array, other in zip(lm.params.values(), expected.params.values(), strict=True):
        assert (array.shape, array.dtype, array.sharding) == (other.shape, other.dtype, other.sharding)
        for a, b in zip(array.addressable_shards, other.addressable_shards, strict=True):
            if a.device != b.device or np.asarray(a.data).tobytes() != np.asarray(b.data).tobytes():
                return False
    return True


def checkpoint(name: str, directory: Path) -> Path:
    return write_random_checkpoint(name, directory / "original", **FAMILIES[name])


def chain(name: str, folder: Path, meshes: list[Sizes | None]) -> None:
    """Save under each mesh the model that was restored from the previous mesh."""
    original = checkpoint(name, folder)
    directory = original
    for number, sizes in enumerate(meshes):
        lm = load(directory, sizes)
        assert same(lm, load(original, sizes)), (name, sizes)
        directory = folder / str(number)
        lm.save(directory)
    assert same(load(directory, None), load(original, None))


@pytest.mark.slow
def test_from_mesh_to_mesh(tmp_path: Path):
    """Heads in several parts, experts, and key heads repeated over devices."""
    original, saved = checkpoint("sparse_base", tmp_path), tmp_path / "saved"
    load(original, (1, 4, 1)).save(saved)
    assert same(load(saved, (2, 2, 2)), load(original, (2, 2, 2)))
    index = json.loads((saved / format.INDEX).read_text())
    tiles = {name: [tile["at"] for tile in row["tiles"]] for name, row in index["parameters"].items()}
    assert max(map(len, tiles.values())) >= 12  # three parts of four devices


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_and_mesh(name: str, tmp_path: Path):
    chain(name, tmp_path, [None, *MESHES[:4], None, *MESHES[4:]])


@pytest.mark.long
@pytest.mark.parametrize("name", ["sparse_base", "bamba_one_group"])
def test_every_mesh_and_every_other(name: str, tmp_path: Path):
    """Models saved on each mesh load on all others: heads, repeated groups, experts."""
    original = checkpoint(name, tmp_path)
    meshes: list[Sizes | None] = [None, *MESHES]
    expected = {sizes: load(original, sizes) for sizes in meshes}
    for number, saved in enumerate(meshes):
        expected[saved].save(tmp_path / str(number))
        for restored in (sizes for sizes in meshes if sizes != saved):
            assert same(load(tmp_path / str(number), restored), expected[restored]), (saved, restored)


def test_one_unit_on_several_devices():
    """Eight devices: eight separate units, two units shared by four neighbours, one shared by all."""
    parts = (Segment(16, 8), Segment(4, 2, replicable=True), Segment(3, 1, replicable=True))
    cut = ShardedDim(1, "model", parts)
    full = np.arange(2 * 23, dtype=np.float32).reshape(2, 23)
    mesh = hybridlm.mesh(model=8)
    local = [np.concatenate([full[:, item] for item in cut.slices(i, 8)], axis=1) for i in range(8)]
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "model"))
    array = jax.device_put(np.concatenate(local, axis=1), sharding)
    shape, pieces = saved_pieces(array, (cut,))
    assert shape == (2, 23) and [start for start, _ in pieces] == [(0, 0), (0, 16), (0, 20)]
    assert np.array_equal(np.concatenate([np.asarray(piece) for _, piece in pieces], axis=1), full)
    assert [len({str(s.index) for s in piece.addressable_shards}) for _, piece in pieces] == [8, 2, 1]  # type: ignore[union-attr]  # arrays


@pytest.mark.long
def test_several_processes(tmp_path: Path):
    """Two processes with four devices each write one checkpoint, and read it under another mesh."""
    (tmp_path / "config.json").write_text("{}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(hybridlm.__file__).parents[1]),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, REFERENCE / "processes" / "save_processes.py", str(port), "2"]
    running = [
        subprocess.Popen(
            [*command, str(number), tmp_path], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for number in range(2)
    ]
    messages = [process.communicate(timeout=120)[0].decode() for process in running]
    assert [process.returncode for process in running] == [0, 0], messages
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "saved"]
    assert all("different parts here" in item for item in messages), messages
