"""Signals that end a command: it reports, exits with the signal's status, and continues later."""

import gc
import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import give_classifier, load_in_commands, run_command
from stopped_runs import stop_after_parts

import hybridlm
from hybridlm import Event
from hybridlm.cli import generate
from hybridlm.cli.main import main
from hybridlm.cli.signals import Ended, ended_by_signals

QUESTIONS = {"tone": {"type": "choice", "instructions": "Tone?", "criteria": {"calm": None, "pushy": None}}}
ROWS = [{"id": i, "text": f"text {i}", "custom_id": str(i)} for i in range(7)]
REQUESTS = [{"id": i, "state": str(i), "questions": QUESTIONS} for i in range(7)]


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """SIGHUP ends the process even if nohup started the tests."""
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, inherited)


@pytest.fixture
def lm(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> hybridlm.LM:
    """The model of all commands: a head of two classes, parts of three lines."""
    weight = np.ones((2, text_lm.config.hidden_size), np.float32)
    give_classifier(monkeypatch, text_lm, weight, "good", "bad")
    load_in_commands(monkeypatch, text_lm)
    monkeypatch.setattr("hybridlm.openai_batch.batch_task.LINES_PER_LANE", 1)
    return text_lm


def command(name: str, folder: Path) -> list[str | Path]:
    settings = REQUESTS if name == "decide" else ROWS
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in settings))
    paths: list[str | Path] = [folder / "in.jsonl", folder / "out.jsonl"]
    if name == "batch":  # of faulty lines, which no step answers
        return [name, "-m", "tiny", "-i", *paths[:1], "-o", *paths[1:]]
    return [name, "-m", "tiny", *(["--other", "tiny"] if name == "divergence" else []), "--window", "3", *paths]


@pytest.mark.each_value
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("name", ["score", "decide", "classify", "embed", "divergence", "batch"])
def test_files(lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: signal.Signals):
    """After a signal in the second part, the same command writes the undisturbed output."""
    arguments = command(name, tmp_path)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    try:
        with monkeypatch.context() as patch:
            stop_after_parts(patch, act=lambda: os.kill(os.getpid(), number))
            result = run_command(*arguments, code=128 + number)
    finally:
        signal.signal(signal.SIGINT, handler)
    unit = "lines" if name == "batch" else "rows"
    *ended, saved = result.stderr.splitlines()
    assert f"3 {unit} are kept in {tmp_path / 'out.jsonl.parts'}: the same command continues" in saved
    assert number == signal.SIGINT or f"ended by {number.name}" in ended
    assert signal.getsignal(number) in (signal.SIG_DFL, handler)
    repeat = run_command(*arguments, code=3 if name == "batch" else 0)
    assert len((tmp_path / "out.jsonl").read_text().split("\n")) == 8
    assert "3 rows were done by an earlier run" in repeat.stderr or name == "batch"


def test_nothing_is_kept_before_the_first_part(lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stop_after_parts(monkeypatch, 0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    result = run_command(*command("score", tmp_path), code=143)
    assert result.stderr.splitlines()[-2:] == [
        "ended by SIGTERM", "no rows are kept: the same command begins again"
    ]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_during_a_collection_of_garbage(
    lm: hybridlm.LM,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    """Python ignores the exception there; the signal comes again."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)

    def callback(phase: str, info: dict[str, int]) -> None:
        gc.callbacks.remove(callback)
        os.kill(os.getpid(), number)

    def collect() -> None:
        gc.callbacks.append(callback)
        gc.collect()
        time.sleep(10)

    stop_after_parts(monkeypatch, act=collect)
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(sys, "argv", ["hybridlm", *map(str, command("score", tmp_path))])
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert end.value.code == 128 + number
    assert f"3 rows are kept in {tmp_path / 'out.jsonl.parts'}: the same command continues" in capfd.readouterr().err


def test_an_interrupted_write_is_not_repeated(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the text may be printed, and the rest is in the stream's buffer."""
    texts = [f"text {index}" for index in range(3)]

    def events(*args: Any, **settings: Any) -> Any:
        for index in (1, 0, 2):
            yield Event(index, 7, "x", hybridlm.Completion(texts[index], [7], None, None, "stop", [1]))

    printed: list[str] = []

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            printed.extend(text.splitlines()[1:])
            if len(printed) == 1:
                raise KeyboardInterrupt
            return len(text)

    monkeypatch.setattr(hybridlm.LM, "stream", events)
    monkeypatch.setattr(generate, "sys", SimpleNamespace(stdout=Interrupted(), stdin=sys.stdin, stderr=sys.stderr))
    result = run_command("generate", "-m", "tiny", "A", "B", "C", code=130)
    assert printed == texts[:2]
    assert result.stderr.splitlines() == ["2 of 3 completions were finished and are printed"]


def test_generate(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    def events(*args: Any, **settings: Any) -> Any:
        yield Event(1, 7, "x", hybridlm.Completion("text 1", [7], None, None, "stop", [1]))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(hybridlm.LM, "stream", events)
    result = run_command("generate", "-m", "tiny", "A", "B", code=143)
    assert result.stdout == "==> prompt 2 <==\ntext 1\n"
    assert result.stderr.splitlines() == ["ended by SIGTERM", "1 of 2 completions were finished and are printed"]


def test_a_signal_that_is_ignored_stays_so() -> None:
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(Ended), ended_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)  # as under nohup
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, handler)


def test_outputs_that_are_streams_are_refused(lm: hybridlm.LM, tmp_path: Path) -> None:
    """Under the name that was given: a pipe behind /dev/stdout has one that nobody knows."""
    reading, writing = os.pipe()
    names = ["-", f"/dev/fd/{writing}"]
    (tmp_path / "in.txt").write_text("text\n")
    source = tmp_path / "in.txt"
    try:
        for name in names:
            for arguments in (
                ("score", source, name), ("embed", source, name), ("classify", source, name),
                ("decide", source, name), ("divergence", "--other", "x", source, name),
                ("batch", "-i", source, "-o", name), ("bench", "--json", name), ("inspect", "--html", name),
            ):  # fmt: skip
                result = run_command(arguments[0], "-m", "tiny", *arguments[1:], code=1)
                assert result.stderr.startswith(f"error: {name}: expected a regular file"), result.stderr
    finally:
        os.close(reading)
        os.close(writing)
