"""`lm.save`: reopened models give the same bits, partial models are refused, crashes leave nothing."""

import json
import os
import pickletools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_checkpoints import GOLDEN as WITH_HEAD
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm import CheckpointError, UnsupportedModel
from hybridlm.checkpoint.saved import index as format
from hybridlm.checkpoint.saved import write
from hybridlm.checkpoint.saved.read import _Reading

GOLDEN = Path(__file__).resolve().parents[3] / "golden"
SMALL: dict[str, Any] = {"lanes": 1, "context": 16, "chunk": 4}


@pytest.fixture(scope="module")
def saved(text_lm: hybridlm.LM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model that reads and writes text, saved."""
    directory = tmp_path_factory.mktemp("saved") / "model"
    text_lm.save(directory)
    assert [path.name for path in directory.parent.iterdir()] == ["model"]
    return directory


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """One that may be changed."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def same(a: hybridlm.LM, b: hybridlm.LM) -> bool:
    """Whether all parameters are, bit for bit."""
    return list(a.params) == list(b.params) and all(
        x.dtype == y.dtype and x.shape == y.shape and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(a.params.values(), b.params.values(), strict=True)
    )


@pytest.mark.long
def test_the_same_bits(text_lm: hybridlm.LM, saved: Path):
    lm = hybridlm.load(saved, **SETTINGS)
    assert same(lm, text_lm) and lm.fingerprint == text_lm.fingerprint and lm.eos_token_ids == text_lm.eos_token_ids
    assert lm.text_model.origin() == text_lm.text_model.origin() and lm.config == text_lm.config
    assert lm.path == saved and lm.tokenizer is not None and text_lm.tokenizer is not None
    # The steps are the same, and take the parameters as arguments.
    lm.engine.runner.programs = text_lm.engine.programs
    texts = ["Ada has the kite.", "B", "Ben has"]
    for score, reference in zip(lm.score(texts), text_lm.score(texts), strict=True):
        assert np.array_equal(score.logprobs, reference.logprobs, equal_nan=True)
    settings: dict[str, Any] = {"max_tokens": 6, "temperature": 1.0, "seed": 3, "logprobs": 0}
    assert lm.generate(texts, **settings) == text_lm.generate(texts, **settings)
    message = [{"role": "user", "content": "Who?"}]
    assert lm.tokenizer.apply_chat_template(message) == text_lm.tokenizer.apply_chat_template(message)


def test_saved_again(saved: Path, tmp_path: Path):
    hybridlm.load(saved, **SETTINGS).save(tmp_path / "again")
    first, second = ((path / format.INDEX).read_bytes() for path in (saved, tmp_path / "again"))
    assert first == second


def test_orbax_reads_it_itself(text_lm: hybridlm.LM, saved: Path):
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        names = checkpointer.metadata(saved / format.WEIGHTS).item_metadata.tree
        host = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        state = checkpointer.restore(saved / format.WEIGHTS, args=ocp.args.PyTreeRestore(restore_args=host))
    name = "layers.0.branches.0.inner.in_proj_qkv"
    parts = [state[f"{name}.{i}"] for i in range(3)]
    assert np.array_equal(np.concatenate(parts), text_lm.params[name]) and parts[0].shape != parts[2].shape
    assert np.array_equal(state["embed_tokens"], text_lm.params["embed_tokens"])


def test_arrays_and_json_only(saved: Path):
    index = json.loads((saved / format.INDEX).read_text())
    tiles = {tile["file"] for row in index["parameters"].values() for tile in row["tiles"]}
    for path in saved.rglob("*"):
        name = path.relative_to(saved).as_posix()
        if path.is_dir() or name in tiles or path.suffix == ".txt":
            continue
        json.loads(path.read_text())
        with pytest.raises(ValueError):
            list(pickletools.genops(path.read_bytes()))


def first_tile(directory: Path) -> Path:
    index = json.loads((directory / format.INDEX).read_text())
    return directory / index["parameters"]["embed_tokens"]["tiles"][0]["file"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Changes the index."""

    def damage(directory: Path) -> None:
        index = json.loads((directory / format.INDEX).read_text())
        del index["sha256"]
        change(index)
        sealed = {**index, "sha256": format.digest(format.dump_index(index))}
        (directory / format.INDEX).write_bytes(format.dump_index(sealed))

    return damage


def tile_of(index: dict[str, Any]) -> dict[str, Any]:
    return index["parameters"]["embed_tokens"]["tiles"][0]


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing tile": (lambda d: first_tile(d).unlink(), r"missing weights/embed_tokens/0\.0"),
    "cut tile": (lambda d: os.truncate(first_tile(d), 100), r"embed_tokens/0\.0: expected \d+ bytes, found 100"),
    "one bit": (lambda d: flip(first_tile(d)), r"embed_tokens/0\.0: is not what was saved, by its checksum"),
    "other config": (lambda d: (d / "config.json").write_text("{}"), r"config\.json: is not what was saved"),
    "other tokenizer": (lambda d: flip(d / "tokenizer.json"), r"tokenizer\.json: is not what was saved"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), r"missing tokenizer\.json"),
    "no index": (lambda d: (d / format.INDEX).unlink(), r"expected model\.safetensors, "),
    "half an index": (lambda d: os.truncate(d / format.INDEX, 1000), "expected a JSON object, but it cannot be read"),
    "another number": (
        lambda d: (d / format.INDEX).write_text((d / format.INDEX).read_text().replace('"at": [0, 0]', '"at": [1, 0]')),
        r"hybridlm\.json: is not what was saved, by its checksum",
    ),
    "other format": (edit(lambda i: i.update(format=2)), r"expected format 1, found 2 \(written by hybridlm '"),
    "no parameters": (edit(lambda i: i.pop("parameters")), "is not what LM.save writes: KeyError: 'parameters'"),
    "other family": (edit(lambda i: i.update(family="mamba2")), "expected the family qwen3_5.*one saved of mamba2"),
    "one parameter less": (
        edit(lambda i: i["parameters"].pop("embed_tokens")),
        r"missing embed_tokens: expected shape \(",
    ),
    "one more": (edit(lambda i: i["parameters"].update(x=i["parameters"]["embed_tokens"])), "unexpected x"),
    "another shape": (
        edit(lambda i: (i["parameters"]["embed_tokens"].update(shape=[32, 97]), tile_of(i).update(shape=[32, 97]))),
        r"mis-shaped embed_tokens: expected \(97, 32\), found \(32, 97\)",
    ),
    "a hole": (edit(lambda i: tile_of(i).update(shape=[96, 32])), r"tiles do not cover \(97, 32\)"),
    "outside": (edit(lambda i: tile_of(i).update(file="weights/../../x")), "is not below weights"),
    "beyond": (edit(lambda i: tile_of(i).update(at=[1, 0])), r"\(97, 32\) at \(1, 0\) is not within \(97, 32\)"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_refused(copied: Path, case: str):
    damage, message = DAMAGES[case]
    damage(copied)
    with pytest.raises(CheckpointError, match=message):
        hybridlm.load(copied, **SETTINGS)


def test_all_faults_at_once(copied: Path):
    first_tile(copied).unlink()
    (copied / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError) as raised:
        hybridlm.load(copied, **SETTINGS)
    assert raised.value.faults == ("missing tokenizer.json", "missing weights/embed_tokens/0.0")


def test_nothing_is_replaced(text_lm: hybridlm.LM, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("empty", "file", "link"):
        with pytest.raises(FileExistsError, match="exists already"):
            text_lm.save(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no such directory"):
        text_lm.save(tmp_path / "nowhere" / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "link"]


@pytest.mark.parametrize("step", ["_write_arrays", "_tiles", "sync"])
def test_a_failure_leaves_nothing(text_lm: hybridlm.LM, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch):
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, step, full)
    with pytest.raises(OSError, match="No space left"):
        text_lm.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_each_process_is_not_saved(text_lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with pytest.raises(ValueError, match="save: each process has a model of its own"):
        text_lm.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


class Killed(BaseException):
    """A kill without cleanup."""


def test_a_kill_leaves_no_model(text_lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before all bytes are on disk no folder has the model's name."""

    def killed(path: Path) -> None:
        raise Killed

    monkeypatch.setattr(write, "sync", killed)
    monkeypatch.setattr(shutil, "rmtree", lambda *arguments, **settings: None)
    with pytest.raises(Killed):
        text_lm.save(tmp_path / "model")
    assert [path.name.split(".")[1] for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(CheckpointError, match="no such directory"):
        hybridlm.load(tmp_path / "model")


def test_of_a_checkpoint_that_has_changed(text_lm: hybridlm.LM, tmp_path: Path):
    shutil.copytree(text_lm.path, tmp_path / "original")
    lm = hybridlm.load(tmp_path / "original", **SETTINGS)
    config = tmp_path / "original" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token_id": 5}))
    with pytest.raises(CheckpointError, match="has changed since it was loaded"):
        lm.save(tmp_path / "model")
    shutil.rmtree(tmp_path / "original")
    with pytest.raises(CheckpointError, match="expected a checkpoint directory, found none"):
        lm.save(tmp_path / "model")


def test_in_another_dtype(tmp_path: Path):
    """A wider dtype keeps narrow numbers exactly; a label names the original dtype."""
    lm = hybridlm.load(GOLDEN / "sparse_base", dtype="bfloat16", **SMALL)
    lm.save(tmp_path / "narrow")
    assert same(narrow := hybridlm.load(tmp_path / "narrow", **SMALL), lm) and narrow.fingerprint == lm.fingerprint
    wide = hybridlm.load(tmp_path / "narrow", dtype="float32", **SMALL)
    assert wide.fingerprint != lm.fingerprint
    assert all(
        np.array_equal(np.asarray(item, np.float32), other) and other.dtype == np.float32
        for item, other in zip(lm.params.values(), wide.params.values(), strict=True)
    )


def test_with_a_head(saved: Path, tmp_path: Path):
    """Saved with it, loaded with or without; saved without, refused where it is asked for."""
    lm = hybridlm.load(WITH_HEAD, speculate="mtp", **SMALL)
    lm.save(tmp_path / "whole")
    assert same(hybridlm.load(tmp_path / "whole", speculate="mtp", **SMALL), lm)
    bare = hybridlm.load(tmp_path / "whole", **SMALL)
    assert {name for name in lm.params if not name.startswith("mtp.")} == set(bare.params) < set(lm.params)
    assert all(np.array_equal(array, lm.params[name]) for name, array in bare.params.items())
    with pytest.raises(CheckpointError, match="speculate='mtp' needs the multi-token-prediction head"):
        hybridlm.load(saved, speculate="mtp", **SETTINGS)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
def test_every_family(name: str, tmp_path: Path):
    lm = hybridlm.load(GOLDEN / name, **SMALL)
    lm.save(tmp_path / "model")
    assert same(hybridlm.load(tmp_path / "model", **SMALL), lm)


def test_a_number_is_read_into_its_place(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    model = {"hybridlm": "0", "family": "none", "dtype": "float32", "fingerprint": "none"}
    write.save_checkpoint(tmp_path / "saved", tmp_path, model, {"number": ((), [((), np.array(2.5, np.float32))])})
    reading = _Reading(format.open_saved(tmp_path / "saved"), "number")
    for dtype in (np.float32, np.float16):
        result = np.zeros((), dtype)
        reading.fill((), result)
        assert result == 2.5
    reading.verify()


def test_checksum():
    """Any bit, any end, any shape; zeros after it are as good as none."""
    content = np.random.default_rng(0).integers(0, 256, 37, np.uint8)
    words = int.from_bytes(content.tobytes() + bytes(3), "little")
    assert format.checksum(content) == sum(words >> 64 * i & 2**64 - 1 for i in range(5)) % 2**64
    for i in range(37 * 8):
        other = content.copy()
        other[i // 8] ^= 1 << i % 8
        assert format.checksum(other) != format.checksum(content)
    square = np.arange(36, dtype=np.float32).reshape(6, 6)
    assert format.checksum(square[:, ::2]) == format.checksum(square[:, ::2].copy())


def test_templates_of_a_folder_are_saved_and_checked(tmp_path: Path) -> None:
    source, saved = tmp_path / "source", tmp_path / "saved"
    (source / "additional_chat_templates").mkdir(parents=True)
    saved.mkdir()
    for name in ("config.json", "added_tokens.json", "additional_chat_templates/tool_use.jinja", "run.py"):
        (source / name).write_text(name)
    files = write.copy_small_files(source, saved)
    assert set(files) == {"config.json", "added_tokens.json", "additional_chat_templates/tool_use.jinja"}
    assert [format._small_fault(saved, name, expected) for name, expected in files.items()] == [None] * 3
    (saved / "additional_chat_templates/tool_use.jinja").write_text("x")
    assert [format._small_fault(saved, name, expected) for name, expected in files.items()].count(None) == 2
    for name in ("../config.json", "/etc/passwd", "a/b/c", ""):
        assert "expected a file of this folder" in str(format._small_fault(saved, name, ""))


def test_saved_model_of_another_class(tmp_path: Path) -> None:
    """As an earlier version saved one."""
    settings: dict[str, Any] = {"lanes": 1, "context": 32, "chunk": 5}
    hybridlm.load(GOLDEN / "lfm2_base", **settings).save(tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["Lfm2BidirectionalModel"]}))
    index = json.loads((tmp_path / "m" / format.INDEX).read_text())
    del index["sha256"]
    index["files"]["config.json"] = format.digest(config.read_bytes())
    sealed = {**index, "sha256": format.digest(format.dump_index(index))}
    (tmp_path / "m" / format.INDEX).write_bytes(format.dump_index(sealed))
    with pytest.raises(UnsupportedModel, match="Lfm2BidirectionalModel"):
        hybridlm.load(tmp_path / "m", **settings)
