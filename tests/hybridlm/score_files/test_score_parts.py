"""Parts of an interrupted run: allowed continuations, and nothing lost, doubled or damaged."""

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_scorer import TOY, interrupted, read_lines, run_toy, score, toy, write_lines

import hybridlm
from hybridlm.score_files.task import RowTask

REFERENCE = Path(__file__).resolve().parents[2] / "reference"


class Stopped(BaseException):
    """An interruption as by Ctrl-C."""


LINES = [{"id": i, "text": str(i)} for i in range(9)]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nine lines in three windows of three; tests need no fsync."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return write_lines(tmp_path / "in.jsonl", LINES)


def stopping(windows: int, error: BaseException | None = None) -> RowTask:
    """Raises after so many windows."""
    return toy(interrupted(score, windows, error=error or Stopped()))


def interrupt(texts: Path, output: Path, windows: int = 2, **settings: Any) -> Path:
    """Score so many windows; returns the folder of the parts."""
    with pytest.raises(Stopped):
        run_toy(stopping(windows), texts, output, window=3, **settings)
    return output.with_name(output.name + ".parts")


@pytest.mark.long
def test_killed_at_every_moment(tmp_path: Path):
    command = [sys.executable, REFERENCE / "processes" / "kill_scoring.py", tmp_path]
    package = str(Path(hybridlm.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package, "PYTHONWARNINGS": "ignore", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0 and int(process.stdout) > 40, process.stdout + process.stderr


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize("windows", [1, 2])
def test_continues(texts: Path, output: str, windows: int):
    run_toy(TOY, texts, texts.with_name(f"whole-{output}"), window=3)
    path = texts.with_name(output)
    path.write_text("older")
    folder = interrupt(texts, path, windows)
    assert path.read_text() == "older" and len(list(folder.glob("part-*"))) == windows
    scored = []
    rest = toy(lambda texts: [scored.append(text) or score([text])[0] for text in texts])
    report = run_toy(rest, texts, path, window=3)
    assert (report.kept, report.texts, len(scored)) == (3 * windows, 9, 9 - 3 * windows)
    assert path.read_bytes() == texts.with_name(f"whole-{output}").read_bytes() and not folder.exists()


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "input": ({"lines": LINES[:-1]}, r"input: sha256 \w+ there, sha256 \w+ now"),
    "model": ({"origin": {"model": "other"}}, "model: toy there, other now"),
    "another setting": ({"origin": {"model": "toy", "lanes": 3}}, "lanes: None there, 3 now"),
    "window": ({"window": 4}, "window: 3 rows, 1048576 bytes there, 4 rows, 1048576 bytes now"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_refuses_to_continue(texts: Path, case: str):
    changes, message = CHANGES[case]
    output = texts.with_name("out.jsonl")
    folder = interrupt(texts, output)
    initial = {path.name: path.read_bytes() for path in folder.glob("[pm]*")}
    write_lines(texts, changes.get("lines", LINES))
    scorer = replace(TOY, origin=changes.get("origin", TOY.origin))
    window = changes.get("window", 3)
    with pytest.raises(ValueError, match=message) as raised:
        run_toy(scorer, texts, output, window=window)
    assert "--restart" in str(raised.value) and not hasattr(raised.value, "__notes__")
    assert {path.name: path.read_bytes() for path in folder.glob("[pm]*")} == initial
    report = run_toy(scorer, texts, output, window=window, restart=True)
    assert report.kept == 0 and len(read_lines(output)) == report.texts and not folder.exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_parts_that_others_may_write_are_not_continued(texts: Path, mode: int):
    output = texts.with_name("out.jsonl")
    parts = interrupt(texts, output)
    assert parts.stat().st_mode & 0o777 == 0o700
    parts.chmod(mode)
    with pytest.raises(ValueError, match=f"mode {mode:o}.*chmod go-w"):
        run_toy(TOY, texts, output, window=3)
    assert not output.exists()
    parts.chmod(0o700)
    run_toy(TOY, texts, output, window=3)
    assert len(read_lines(output)) == len(LINES)


def test_parts_by_a_link_are_not_continued(texts: Path):
    """In a shared folder anybody can make a link of that name."""
    output = texts.with_name("out.jsonl")
    parts = interrupt(texts, output)
    parts.rename(parts.with_name("moved"))
    parts.symlink_to("moved")
    with pytest.raises(ValueError, match="is a link; rm"):
        run_toy(TOY, texts, output, window=3)


def test_touched_input_continues(texts: Path):
    interrupt(texts, texts.with_name("out.jsonl"))
    os.utime(texts, (1, 1))
    assert run_toy(TOY, texts, texts.with_name("out.jsonl"), window=3).kept == 6


def test_input_changed_meanwhile(texts: Path):
    def changing(ids: Sequence[tuple[int, ...]]) -> list[hybridlm.Score]:
        write_lines(texts, reversed(LINES))
        return score(ids)

    with pytest.raises(ValueError, match=r"in\.jsonl: was changed during the run"):
        run_toy(toy(changing), texts, texts.with_name("out.jsonl"), window=3)
    assert not texts.with_name("out.jsonl").exists()


def test_one_process_at_a_time(texts: Path):
    output = texts.with_name("out.jsonl")
    messages = []

    def second(ids: Sequence[tuple[int, ...]]) -> list[hybridlm.Score]:
        with pytest.raises(ValueError) as raised:
            run_toy(TOY, texts, output, window=3, restart=True)
        messages.append(str(raised.value))
        return score(ids)

    assert run_toy(toy(second), texts, output, window=3).texts == 9
    assert len(messages) == 3 and all("another process is writing" in message for message in messages)


def test_strict_stops_and_continues(texts: Path):
    """Rows before a bad row stay; strict runs refuse it again, others continue."""
    write_lines(texts, [*LINES[:4], {"id": "long", "text": "123456789"}, *LINES[4:]])
    output = texts.with_name("out.jsonl")
    with pytest.raises(ValueError, match="line 5: text: has 9 tokens") as raised:
        run_toy(TOY, texts, output, strict=True, window=3)
    assert raised.value.__notes__ == [f"3 rows are kept in {output}.parts: the same command continues"]
    interrupt(texts, output, windows=1)
    with pytest.raises(ValueError, match="line 5: text: has 9 tokens"):
        run_toy(TOY, texts, output, strict=True, window=3)
    report = run_toy(TOY, texts, output, window=3)
    assert (report.kept, report.texts, report.errors) == (6, 9, 1)


def test_nothing_is_left_of_nothing(texts: Path):
    with pytest.raises(Stopped) as raised:
        run_toy(stopping(0), texts, texts.with_name("out.jsonl"))
    assert not hasattr(raised.value, "__notes__") and [path.name for path in texts.parent.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_damaged_part(texts: Path, damage: str):
    part = interrupt(texts, texts.with_name("out.jsonl")) / "part-000001.jsonl"
    content = part.read_bytes()
    part.write_bytes(content[:-1] if damage == "cut" else content.replace(b"3", b"4"))
    if damage == "gone":
        part.unlink()
    with pytest.raises(ValueError, match=r"part-000001\.jsonl: is not what was written"):
        run_toy(TOY, texts, texts.with_name("out.jsonl"), window=3)
    assert run_toy(TOY, texts, texts.with_name("out.jsonl"), window=3, restart=True).texts == 9


def test_torn_manifest(texts: Path):
    """A torn line is cut off and its part remade; other formats are refused."""
    output = texts.with_name("out.jsonl")
    manifest = interrupt(texts, output) / "manifest.jsonl"
    full = manifest.read_bytes()
    manifest.write_bytes(full[:-9])
    assert run_toy(TOY, texts, output, window=3).kept == 3
    interrupt(texts, output)
    for content in (full.replace(b'"format": 1', b'"format": 2'), b"no json\n" + full):
        manifest.write_bytes(content)
        with pytest.raises(ValueError, match=r"format of the manifest: 2 there, 1 now|manifest\.jsonl: cannot be read"):
            run_toy(TOY, texts, output, window=3)
    assert run_toy(TOY, texts, output, window=3, restart=True).kept == 0


def test_somebody_elses_folder(texts: Path):
    folder = texts.with_name("out.jsonl.parts")
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    for restart in (False, True):
        with pytest.raises(ValueError, match=r"found notes\.txt and no manifest"):
            run_toy(TOY, texts, texts.with_name("out.jsonl"), restart=restart)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_finished_run_is_not_done_again(texts: Path, monkeypatch: pytest.MonkeyPatch):
    """After a kill between output and cleanup, a repeat only cleans up."""
    output, folder = texts.with_name("out.jsonl"), texts.with_name("out.jsonl.parts")
    for origin in ("toy", "other"):
        with monkeypatch.context() as patch:
            patch.setattr("hybridlm.files.parts.Parts.leave", lambda self: None)
            run_toy(TOY, texts, output, window=3)
        (folder / "part-000000.jsonl").unlink()
        report = run_toy(
            replace(stopping(0 if origin == "toy" else 9), origin={"model": origin}), texts, output, window=3
        )
        assert (report.texts, report.kept) == (9, 9 if origin == "toy" else 0) and not folder.exists()


def test_no_room(texts: Path):
    """A part that does not fit: the ones before it stay, the older output stays."""
    write_lines(texts, [*LINES, {"id": "x" * 5000, "text": "a"}])
    output = texts.with_name("out.jsonl")
    output.write_text("older")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limit[1]))
    try:
        with pytest.raises(OSError) as raised:
            run_toy(TOY, texts, output, window=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert raised.value.errno == errno.EFBIG and Path(raised.value.filename).name == "part-000003.jsonl"
    assert "9 rows are kept in" in raised.value.__notes__[-1] and output.read_text() == "older"
    assert run_toy(TOY, texts, output, window=3).kept == 9


def test_full_disk(texts: Path, monkeypatch: pytest.MonkeyPatch):
    """Whichever write fails."""
    complete = texts.with_name("whole.jsonl")
    run_toy(TOY, texts, complete, window=3)
    fsync = os.fsync
    for failing in range(20):
        calls = iter(range(100))

        def full(descriptor: int, calls: Iterator[int] = calls, failing: int = failing) -> None:
            if next(calls) == failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", full)
        output = texts.with_name("out.jsonl")
        try:
            run_toy(TOY, texts, output, window=3)
            break
        except OSError as error:
            assert error.errno == errno.ENOSPC and error.filename is not None
        monkeypatch.setattr(os, "fsync", fsync)
        assert run_toy(TOY, texts, output, window=3).texts == 9 and output.read_bytes() == complete.read_bytes()
        output.unlink()
    assert 8 < failing < 19


def test_parts_reach_the_disk_before_the_manifest_names_them(texts: Path, monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []

    def sync(descriptor: int) -> None:
        results = [path.name for path in (texts.parent, *texts.parent.rglob("*")) if is_same(path, descriptor)]
        order.extend(results)

    is_same = lambda path, descriptor: os.path.samestat(path.stat(), os.fstat(descriptor))
    monkeypatch.setattr(os, "fsync", sync)
    rename = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("rename"), rename(*paths)))
    run_toy(TOY, texts, texts.with_name("out.jsonl"), window=5)
    folder = "out.jsonl.parts"
    assert order[:8] == [
        "manifest.jsonl", folder,
        "part-000000.jsonl", folder, "manifest.jsonl",
        "part-000001.jsonl", folder, "manifest.jsonl",
    ]  # fmt: skip
    assert order[8:] == ["whole", "rename", texts.parent.name, "manifest.jsonl"]


def test_manifest_describes_the_parts(texts: Path):
    folder = interrupt(texts, texts.with_name("out.jsonl"))
    head, first, _ = map(json.loads, (folder / "manifest.jsonl").read_text().splitlines())
    assert head["origin"]["model"] == "toy" and set(head["origin"]) == {
        "input", "model", "window", "sort window", "shard", "output",
    }  # fmt: skip
    assert (first["rows"], first["tokens"], first["errors"]) == (3, 3, 0)
