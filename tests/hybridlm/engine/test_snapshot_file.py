"""Prefixes in files: equal bits, no other sequence's data, and changed files refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors import safe_open
from text_checkpoint import SETTINGS

import hybridlm

IDS = np.random.default_rng(0).integers(3, 90, 40).tolist()
CONTINUATIONS = [[70], [71, 72, 73], [74] * 9]
Header = dict[str, Any]


@pytest.fixture(scope="module")
def saved(text_lm: hybridlm.LM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prefix") / "nine.safetensors"
    text_lm.prefix(IDS[:9]).save(path)
    return path


@pytest.mark.parametrize("length", [1, 2, 9, 40])
def test_what_is_saved_comes_back(text_lm: hybridlm.LM, length: int, tmp_path: Path) -> None:
    prefix = text_lm.prefix(IDS[:length])
    prefix.save(tmp_path / "p.safetensors")
    loaded = text_lm.load_prefix(tmp_path / "p.safetensors")
    assert loaded.token_ids == prefix.token_ids
    for field in ("kind", "position", "tokens", "epoch"):
        assert getattr(loaded.snapshot, field) == getattr(prefix.snapshot, field), field
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "p.safetensors").read_bytes()
    want = text_lm.generate(CONTINUATIONS, prefix=prefix, max_tokens=5, ignore_eos=True)
    assert text_lm.generate(CONTINUATIONS, prefix=loaded, max_tokens=5, ignore_eos=True) == want
    for got, expected in zip(
        text_lm.score(CONTINUATIONS, prefix=loaded), text_lm.score(CONTINUATIONS, prefix=prefix), strict=True
    ):
        assert got.logprobs.tobytes() == expected.logprobs.tobytes()


def test_the_file_is_safetensors_and_holds_the_positions_in_use(text_lm: hybridlm.LM, saved: Path) -> None:
    with safe_open(saved, "np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
        assert json.loads(file.metadata()["token_ids"]) == IDS[:9]
    layout = {part.path: part for part in text_lm.engine.kind.layout}
    assert set(shapes) == set(layout)
    keys = [name for name in shapes if name.endswith((".key", ".value"))]
    assert len(keys) == 2 and all(shapes[name][1] == 8 and layout[name].shape[1] == 256 for name in keys)
    assert all(shapes[name] == list(layout[name].shape) for name in shapes if name not in keys)


def test_nothing_of_another_sequence_is_written(text_lm: hybridlm.LM, saved: Path, tmp_path: Path) -> None:
    """Keys and values are equal although a longer sequence used the row before."""
    engine, tokens = text_lm.engine, IDS[:9]
    files = []
    for earlier_prompt in (IDS[10:40], IDS[20:25] * 6):
        text_lm.generate([earlier_prompt], max_tokens=1)
        with text_lm.session() as session:
            session.submit(tokens[:8], max_tokens=2, ignore_eos=True)
            session.step()
            session.step()
            (sequence,), pool = session._scheduler.joined, session._scheduler._pool
            assert pool is not None and sequence.slot is not None
            count = pool.consumed(sequence.slot)
            sampled = jax.device_get(pool.look().token)[pool.rows_of([sequence.slot])[0]].tolist()
            consumed = (*tokens[:8], *sampled)[:count]
            snapshot = engine.moves.take(pool, sequence.slot, consumed, owner=sequence)
        prefix = hybridlm.Prefix((*consumed, 5), snapshot)
        prefix.save(tmp_path / "row.safetensors")
        with safe_open(tmp_path / "row.safetensors", "np") as file:
            files.append({name: file.get_tensor(name).tobytes() for name in file.keys() if name != "token"})
    assert files[0] == files[1]


def test_a_prefix_of_another_model_is_not_loaded(text_lm: hybridlm.LM, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(text_lm.path, tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    for message, lm in (
        ("model: expected", hybridlm.load(tmp_path / "other", **SETTINGS)),
        (
            "dtype: expected 'bfloat16', found 'float32'",
            hybridlm.load(text_lm.path, **{**SETTINGS, "dtype": "bfloat16"}),
        ),
        ("context: expected 200, found 256", hybridlm.load(text_lm.path, **{**SETTINGS, "context": 200})),
    ):
        with pytest.raises(hybridlm.SnapshotError, match=message):
            lm.load_prefix(saved)


def metadata(name: str, change: Callable[[Any], Any]) -> Callable[[Header, bytearray], None]:
    def apply(header: Header, data: bytearray) -> None:
        values = header["__metadata__"]
        values[name] = json.dumps(change(json.loads(values[name])))

    return apply


def flipped(header: Header, data: bytearray) -> None:
    data[len(data) // 2] ^= 1


def without_an_array(header: Header, data: bytearray) -> None:
    name = max((key for key in header if key != "__metadata__"), key=lambda key: header[key]["data_offsets"][1])
    del data[header.pop(name)["data_offsets"][0] :]


def other_dtype(header: Header, data: bytearray) -> None:
    next(entry for name, entry in header.items() if name.endswith("key"))["dtype"] = "I32"


def other_shape(header: Header, data: bytearray) -> None:
    next(entry for name, entry in header.items() if name.endswith("key"))["shape"].reverse()


def other_format(header: Header, data: bytearray) -> None:
    header["__metadata__"]["format"] = "hybridlm snapshot 1"


def more_metadata(header: Header, data: bytearray) -> None:
    header["__metadata__"]["more"] = ""


def no_json(header: Header, data: bytearray) -> None:
    header["__metadata__"]["label"] = "{"


def past_the_end(header: Header, data: bytearray) -> None:
    del data[-4:]


@pytest.mark.parametrize(("change", "message"), [
    (flipped, "its content is not what was saved"),
    (without_an_array, r"arrays \['.*'\]: expected .*, found \[None\]"),
    (other_dtype, r"arrays \['layers.*key'\]: expected \[\('F32', .*found \[\('I32'"),
    (other_shape, r"arrays \['layers.*key'\]: expected"),
    (other_format, "found .* the format 'hybridlm snapshot 1'; compute it again"),
    (more_metadata, "expected a state saved as"),
    (no_json, "label cannot be read as JSON"),
    (past_the_end, "no saved state can be read: .*truncated"),
    (metadata("label", lambda label: label | {"position": 7}), "position: expected 8, found 7"),
    (metadata("label", lambda label: label | {"position": True}), "position: expected 8, found True"),
    (metadata("label", lambda label: label | {"tokens": "00"}), "tokens: expected '.*', found '00'"),
    (metadata("label", lambda label: label | {"layout": []}), r"layout: expected .*, found \[\]"),
    (metadata("label", lambda label: label | {"epoch": -1}), "epoch: expected a whole number of at least 0"),
    (metadata("label", lambda label: label | {"epoch": 9}), "its content is not what was saved"),
    (metadata("label", lambda label: [label]), "label: expected an object of model, dtype"),
    (metadata("token_ids", lambda ids: ids[:-1]), "position: expected 7, found 8"),
    (metadata("token_ids", lambda ids: [4, *ids[1:]]), "tokens: expected"),
    (metadata("token_ids", lambda ids: [*ids[:-1], 4]), "its content is not what was saved"),
    (metadata("token_ids", lambda ids: []), "token_ids: is empty"),
    (metadata("token_ids", lambda ids: [10**9]), "token id 1000000000 at index 0 is outside the vocabulary"),
    (metadata("token_ids", lambda ids: ids * 100), "has 900 tokens, the context holds 256"),
])  # fmt: skip
def test_a_changed_file_is_refused(
    text_lm: hybridlm.LM, saved: Path, change: Callable[[Header, bytearray], None], message: str, tmp_path: Path
) -> None:
    content = saved.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8:start]), bytearray(content[start:])
    change(header, data)
    text = json.dumps(header).encode()
    path = tmp_path / "changed.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    with pytest.raises(ValueError, match=message):
        text_lm.load_prefix(path)


def test_no_file_and_other_files_are_refused(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    with pytest.raises(hybridlm.SnapshotError, match="expected a safetensors file, found no regular file"):
        text_lm.load_prefix(tmp_path / "none")
    with pytest.raises(
        hybridlm.SnapshotError, match="expected a state saved as 'hybridlm snapshot 2', found the metad"
    ):
        text_lm.load_prefix(text_lm.path / "model.safetensors")
    with pytest.raises(FileNotFoundError):
        text_lm.prefix([5, 6]).save(tmp_path / "no" / "folder")


@pytest.mark.long
def test_the_sanitizer_follows_a_loaded_state(saved: Path, text_lm: hybridlm.LM, sanitized_lm: hybridlm.LM) -> None:
    loaded = sanitized_lm.load_prefix(saved)
    want = text_lm.generate(CONTINUATIONS, prefix=text_lm.load_prefix(saved), max_tokens=5, ignore_eos=True)
    got = sanitized_lm.generate(CONTINUATIONS, prefix=loaded, max_tokens=5, ignore_eos=True)
    assert [completion.token_ids for completion in got] == [completion.token_ids for completion in want]
