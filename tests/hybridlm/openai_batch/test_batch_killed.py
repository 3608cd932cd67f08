"""Killed and continued batch runs write the undisturbed output, without loss or duplicates."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from text_checkpoint import write_text_checkpoint
from toy_scorer import NO_MODEL, run_toy

import hybridlm
from hybridlm.files.parts import Parts
from hybridlm.progress import progress_line

REFERENCE = Path(__file__).resolve().parents[2] / "reference"
ROOT = Path(hybridlm.__file__).parents[1]
LINES, KILLS = 400, 4


@pytest.mark.long
def test_killed_at_every_moment(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, REFERENCE / "processes" / "kill_batch.py", tmp_path]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(result.stdout) > 20


def write_bad_lines(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps({"custom_id": str(i)}) + "\n" for i in range(count)))
    return path


def test_another_input_or_model_is_refused_and_restart_begins_again(tmp_path: Path):
    source, output = write_bad_lines(tmp_path / "in.jsonl", 6), tmp_path / "out.jsonl"

    add = Parts.add

    def interrupted(parts: Parts, *arguments: Any, **counts: Any) -> None:
        add(parts, *arguments, **counts)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parts, "add", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            run_toy(NO_MODEL, source, output, window=2)
    assert any("2 lines are kept" in note for note in caught.value.__notes__)
    write_bad_lines(source, 7)
    with pytest.raises(ValueError, match="input: sha256"):
        run_toy(NO_MODEL, source, output, window=2)
    with pytest.raises(ValueError, match="window: 2 lines"):
        run_toy(NO_MODEL, write_bad_lines(source, 6), output, window=3)
    assert run_toy(NO_MODEL, source, output, window=3, restart=True).kept == 0
    assert len(output.read_text().splitlines()) == 6 and not list(tmp_path.glob("*.parts"))


def test_a_pipe_is_read_once(tmp_path: Path):
    source = write_bad_lines(tmp_path / "in.jsonl", 5)
    run_toy(NO_MODEL, source, tmp_path / "file.jsonl", window=2)
    read, write = os.pipe()
    os.write(write, source.read_bytes())
    os.close(write)
    report = run_toy(NO_MODEL, f"/dev/fd/{read}", tmp_path / "pipe.jsonl", window=2)
    os.close(read)
    assert report.bad_lines == 5 and len(report.first_errors) == 3
    assert (tmp_path / "pipe.jsonl").read_bytes() == (tmp_path / "file.jsonl").read_bytes()


def test_shards_and_strict_runs(tmp_path: Path):
    """Shards hold the lines of the whole output; strict runs stop at the first fault."""
    source = write_bad_lines(tmp_path / "in.jsonl", 5)
    run_toy(NO_MODEL, source, tmp_path / "out.jsonl", window=2)
    for i in range(2):
        assert run_toy(NO_MODEL, source, tmp_path / "out.jsonl", window=2, shard=f"{i}/2").bad_lines == (2, 3)[i]
    shards = [tmp_path / f"out-0000{i}-of-00002.jsonl" for i in range(2)]
    assert b"".join(path.read_bytes() for path in shards) == (tmp_path / "out.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"in\.jsonl: line 1: method: is missing"):
        run_toy(NO_MODEL, source, tmp_path / "strict.jsonl", window=2, strict=True)
    source.write_text(source.read_text() + source.read_text())
    with pytest.raises(ValueError, match=r"line 6: custom_id: is used twice, first in line 1"):
        run_toy(NO_MODEL, source, tmp_path / "strict.jsonl", window=2, strict=True)


def test_a_changed_input_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source, add = write_bad_lines(tmp_path / "in.jsonl", 5), Parts.add

    def changing(parts: Parts, *arguments: Any, **counts: Any) -> None:
        add(parts, *arguments, **counts)
        source.touch()

    monkeypatch.setattr(Parts, "add", changing)
    with pytest.raises(ValueError, match="was changed while it was read"):
        run_toy(NO_MODEL, source, tmp_path / "out.jsonl", window=2)


def test_line_of_progress():
    assert progress_line("answering", 0, 100, 0.2) == "answering: 0% after 0 s"
    assert progress_line("answering", 25, 100, 1000.0) == "answering: 25% after 1,000 s, 0:50:00 left"
    assert progress_line("answering", 75, 100, 10.0, stored=75) == "answering: 75% after 10 s"
    assert progress_line("answering", 80, 100, 10.0, stored=75) == "answering: 80% after 10 s, 0:00:40 left"


@pytest.mark.long
def test_killed_command(tmp_path: Path):
    chance = random.Random(0)
    bodies = [{"prompt": "Ada " * chance.randrange(1, 5), "max_tokens": 12, "logprobs": 1} for _ in range(LINES)]
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": b} for i, b in enumerate(bodies)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = write_text_checkpoint(tmp_path)

    def start(output: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "hybridlm", "batch", "--model", model, "--chunk", "16", "--context", "64"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        command += ["--lanes", "2", "-i", tmp_path / "in.jsonl", "-o", tmp_path / output]
        return subprocess.Popen(command, env=environment)

    assert start("whole.jsonl").wait() == 0
    progress: list[int] = []
    for number in range(KILLS):
        process = start("out.jsonl")
        until = (progress[-1] if progress else 0) + 1 + number % 2
        while len(list(tmp_path.glob("out.jsonl.parts/part-*"))) < until and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
        progress.append(len(list(tmp_path.glob("out.jsonl.parts/part-*"))))
    assert start("out.jsonl").wait() == 0
    outputs = [[json.loads(row) for row in (tmp_path / name).read_text().splitlines()] for name in _OUTPUTS]
    created = [{row["response"]["body"].pop("created") for row in output} for output in outputs]
    assert outputs[0] == outputs[1] and [len(output) for output in outputs] == [LINES, LINES]
    assert [len(item) for item in created] == [1, 1] and not list(tmp_path.glob("*.parts"))


_OUTPUTS = ("whole.jsonl", "out.jsonl")
