"""Saved models with quantised weights: the same bits, packed again or as plain numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from packed_weights import packed_names
from random_checkpoint import write_random_checkpoint

import hybridlm
from hybridlm.checkpoint import CheckpointError, weights
from hybridlm.checkpoint.quantise import quantise_checkpoint
from hybridlm.checkpoint.saved import index as format

GOLDEN = Path(__file__).resolve().parents[3] / "golden"
SETTINGS: dict[str, Any] = {"lanes": 2, "context": 32, "chunk": 5}
MODELS = [
    ("lfm2_base", "nvfp4", None),
    ("nemotron_latent", "int4", 8),
    pytest.param("dense_interval", "fp8-block", None, marks=pytest.mark.long),
    pytest.param("granite_experts", "int8", 16, marks=pytest.mark.long),
    pytest.param("zamba2_base", "int8", 16, marks=pytest.mark.long),
    pytest.param("minimax_base", "int4", 8, marks=pytest.mark.long),
    pytest.param("indexed_base", "int8", 8, marks=pytest.mark.long),
]


def saved(tmp_path: Path, golden: str | Path, scheme: str, group: int | None) -> hybridlm.LM:
    """Load and save a quantised copy; its headers are checked once."""
    quantise_checkpoint(GOLDEN / golden, tmp_path / "quantised", scheme=scheme, group_size=group)
    with mock.patch.object(weights, "check", wraps=weights.check) as repeat:
        lm = hybridlm.load(tmp_path / "quantised", **SETTINGS)
    repeat.assert_called_once()
    lm.save(tmp_path / "saved")
    return lm


@pytest.mark.slow
@pytest.mark.parametrize(("golden", "scheme", "group"), MODELS)
def test_the_same_bits(tmp_path: Path, golden: str, scheme: str, group: int | None) -> None:
    lm = saved(tmp_path, golden, scheme, group)
    repeat = hybridlm.load(tmp_path / "saved", **SETTINGS)
    packed = packed_names(lm.params)
    assert packed and repeat.fingerprint == lm.fingerprint and list(repeat.params) == list(lm.params)
    assert jax.tree.structure(dict(repeat.params)) == jax.tree.structure(dict(lm.params))
    for array, other in zip(jax.tree.leaves(dict(lm.params)), jax.tree.leaves(dict(repeat.params)), strict=True):
        assert array.dtype == other.dtype and np.asarray(array).tobytes() == np.asarray(other).tobytes()
    repeat.save(tmp_path / "twice")
    indices = [json.loads((tmp_path / folder / format.INDEX).read_text()) for folder in ("saved", "twice")]
    assert indices[0]["packed"] == indices[1]["packed"] and set(indices[0]["packed"]) == set(packed)
    # As plain numbers they equal the packed form.
    plain = hybridlm.load(tmp_path / "saved", dequantise="bfloat16", **SETTINGS)
    array: Any
    for name, array in lm.params.items():
        item: Any = array
        expected = item.numbers() if name in packed else item
        np.testing.assert_array_equal(np.asarray(plain.params[name]), np.asarray(expected), err_msg=name)


@pytest.mark.slow
def test_on_a_mesh(tmp_path: Path) -> None:
    """Arrays of one device load on a mesh and back; `test_packed_mesh` compares numbers."""
    write_random_checkpoint("sparse_base", tmp_path / "model")
    lm = saved(tmp_path, tmp_path / "model", "int8", None)
    mesh = hybridlm.mesh(model=2, expert=2)
    item = hybridlm.load(tmp_path / "saved", mesh=mesh, **SETTINGS)
    other = hybridlm.load(tmp_path / "quantised", mesh=mesh, **SETTINGS)
    assert packed_names(item.params) and lm.fingerprint == item.fingerprint
    for a, b in zip(jax.tree.leaves(dict(item.params)), jax.tree.leaves(dict(other.params)), strict=True):
        assert a.sharding == b.sharding
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    item.save(tmp_path / "twice")
    repeat = hybridlm.load(tmp_path / "twice", mesh=mesh, **SETTINGS)
    for a, b in zip(jax.tree.leaves(dict(item.params)), jax.tree.leaves(dict(repeat.params)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def edited(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    index = json.loads((folder / format.INDEX).read_text())
    del index["sha256"]
    change(index)
    (folder / format.INDEX).write_bytes(format.dump_index({**index, "sha256": format.digest(format.dump_index(index))}))


def first(index: dict[str, Any]) -> str:
    return next(iter(index["packed"]))


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "other kind": (lambda i: i["packed"][first(i)].update(kind="e2m1"), "expected"),
    "unknown kind": (lambda i: i["packed"][first(i)].update(kind="e5m2"), "e5m2"),
    "wider": (lambda i: i["packed"][first(i)].update(inputs=64), "expected"),
    "no scale": (lambda i: i["parameters"].pop(first(i) + ".scale"), "KeyError"),
    "no codes": (lambda i: i["parameters"].pop(first(i) + ".codes"), "groups of"),
    "not described": (lambda i: i["packed"].pop(first(i)), "missing"),
    "plain, too": (lambda i: i["parameters"].update({first(i): i["parameters"][first(i) + ".codes"]}), "entries"),
}


def test_damage_is_named(tmp_path: Path) -> None:
    saved(tmp_path, "dense_interval", "int8", None)
    intact = (tmp_path / "saved" / format.INDEX).read_bytes()
    for case, (damage, message) in DAMAGES.items():
        (tmp_path / "saved" / format.INDEX).write_bytes(intact)
        edited(tmp_path / "saved", damage)
        with pytest.raises(CheckpointError) as caught:
            hybridlm.load(tmp_path / "saved", **SETTINGS)
        assert message in str(caught.value), case
