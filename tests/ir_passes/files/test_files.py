"""Strict JSON, atomic writes and the store of files by key."""

import os
from functools import partial
from pathlib import Path

import pytest

from ir_passes.files.atomic import whole_file
from ir_passes.files.record import RecordError
from ir_passes.files.store import FileStore
from ir_passes.files.strict_json import parse_json


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a": 1, "a": 2}', '[{"a": {"b": 1, "b": 1}}]', "NaN", "-Infinity", "[" * 100_000, "9" * 5000, b"\xff"],
    ids=["empty", "cut off", "duplicate", "nested duplicate", "NaN", "infinity", "deep", "digits", "not UTF-8"],
)
def test_what_readers_disagree_about_is_refused(text: str | bytes):
    with pytest.raises(ValueError):
        parse_json(text)


def test_plain_settings_are_read():
    assert parse_json('{"a": [1, 2.5, null, "\u00e9"]}'.encode()) == {"a": [1, 2.5, None, "\u00e9"]}
    assert parse_json("[Infinity]", constants=True) == [float("inf")]
    assert parse_json('{"a": 1, "a": 2}', pairs_hook=list) == [("a", 1), ("a", 2)]


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"older")
    with pytest.raises(KeyError), whole_file(path) as file:
        file.write(b"half")
        assert path.read_bytes() == b"older"
        raise KeyError
    assert path.read_bytes() == b"older" and [path.name for path in tmp_path.iterdir()] == ["file"]
    with whole_file(path, tmp_path / "partial") as file:
        file.write(b"new")
        assert (tmp_path / "partial").exists()
    assert path.read_bytes() == b"new" and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_partial_file_of_somebody_else_is_neither_used_nor_deleted(tmp_path: Path):
    (tmp_path / "partial").write_bytes(b"theirs")
    with pytest.raises(FileExistsError), whole_file(tmp_path / "file", tmp_path / "partial"):
        pass
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("partial", b"theirs")]


def test_a_store_finds_what_is_whole_and_no_longer_than_asked(tmp_path: Path):
    store = FileStore(tmp_path / "new" / "folder")
    assert store.read_file("a", 5) is None
    store.write_file("a", b"12345")
    assert store.read_file("a", 5) == b"12345" and store.read_file("a", 4) is None
    (store.directory / "folder").mkdir()
    os.mkfifo(store.directory / "pipe")
    (store.directory / "link").symlink_to("a")
    assert [store.read_file(name, 5) for name in ("folder", "pipe", "link")] == [None] * 3

    def parse(content: bytes) -> int:
        if content != b"12345":
            raise RecordError("another")
        return int(content)

    assert store.read_record("a", parse) == 12345 and store.read_record("b", parse) is None
    store.write_file("a", b"54321")
    assert store.read_record("a", partial(parse)) is None
    assert sorted(path.name for path in store.directory.iterdir()) == ["a", "folder", "link", "pipe"]


def test_a_store_deletes_the_least_recently_used_steps(tmp_path: Path):
    store = FileStore(tmp_path / "store")
    assert store.files() == [] and store.forget() == (0, 0)
    for number, name in enumerate("abc"):
        store.write_file(name, b"12345")
        os.utime(store.directory / name, (1000 + number, 1000 + number))
    assert store.read_start("b", 2) == b"12" and store.read_file("a", 5) == b"12345"  # the latter is used last
    assert [(file.name, file.bytes) for file in store.files()] == [("b", 5), ("c", 5), ("a", 5)]
    assert store.forget(11, but="b") == (1, 5)
    assert [file.name for file in store.files()] == ["b", "a"]
    with pytest.raises(FileNotFoundError):
        store.require_file("c", 5)
    with pytest.raises(ValueError, match="it has 5 bytes, more than 4"):
        store.require_file("a", 4)
