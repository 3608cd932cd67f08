"""`hybridlm bench`: its tables, figures and pictures."""

import json
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import run_command

from hybridlm import demo
from hybridlm.cli import bench, bench_start


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that reads 1 GB in a second."""
    limits = replace(bench.measure_limits(read=1 << 16, square=16), read_bytes=1e9)
    monkeypatch.setattr(bench, "measure_limits", lambda: limits)


@pytest.mark.usefixtures("limits")
@pytest.mark.long
def test_bench_of_the_embedded_model(tmp_path: Path) -> None:
    picture, figures, copy = tmp_path / "picture.svg", tmp_path / "figures.json", tmp_path / "copy"
    shutil.copytree(demo.path(), copy)
    command = ["bench", "--model", demo.path(), "--lanes", "1", "--tokens", "4", "--rounds", "2", "--prompt", "8"]
    command += ["--prefill", "12", "--context", "64", "--chunk", "8", "--profile", "--plot", picture]
    command += ["--beside", copy, "--json", figures, "--kernels", "off"]
    result = run_command(*command)
    for expected in (
        "1.0 GB/s read",
        "1 lanes: floor",
        "decode",
        "ms of prefill by part",
        "ms of score",
        "Mlp projection",
        "host",
        "hybridlm copy",
    ):
        assert expected in result.output
    record = json.loads(figures.read_text())["measured"]
    assert [item["what"] for item in record] == ["decode", "prefill", "score"]
    for row in record:
        assert {name: len(rounds) for name, rounds in row["seconds"].items()} == {"hybridlm": 2, "hybridlm copy": 2}
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.usefixtures("limits")
@pytest.mark.slow
def test_a_peer_that_crashes_is_left_out_of_the_table(tmp_path: Path) -> None:
    program, figures, picture = tmp_path / "llama-batched-bench", tmp_path / "figures.json", tmp_path / "picture.svg"
    program.write_text("#!/bin/sh\nkill -ILL $$\n")
    program.chmod(0o755)
    command = ["bench", "--model", demo.path(), "--lanes", "1", "--tokens", "2", "--rounds", "1", "--prompt", "4"]
    command += [
        "--context", "32", "--chunk", "8", "--kernels", "off", "--against", "llama.cpp", "--llama-bench",
        str(program),
    ]  # fmt: skip
    command += ["--gguf", str(tmp_path / "demo-q8_0.gguf"), "--json", figures, "--plot", picture]
    result = run_command(*command, code=3)
    assert "llama.cpp q8_0 is left out" in result.stderr and "SIGILL" in result.stderr
    (measured,) = json.loads(figures.read_text())["measured"]
    assert list(measured["seconds"]) == ["hybridlm"] and picture.exists()


def made(stored: bool, seconds: float) -> dict[str, Any]:
    step = {"stored": stored, "seconds": {"load": 0.25} if stored else {"trace": 1.25, "compile": 2.5}}
    return {
        "parts": {"import": 1.0, "first answer": seconds},
        "total": 1.0 + seconds,
        "steps": {"generate 1x5 of 2": step},
    }


def test_table_and_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []

    def measured(*arguments: Any) -> tuple[Any, Any]:
        calls.append(arguments)
        return made(False, 7.125), [made(True, 1.0), made(True, 3.5), made(True, 2.0)]

    monkeypatch.setattr(bench_start, "measure_starts", measured)
    out = tmp_path / "found.json"
    arguments = ["-m", "MODEL", "--prompt", "9", "--json", str(out), "--adapter", "LORA"]
    result = run_command("bench", "--start", *arguments)
    settings = {"lanes": 8, "context": None, "dtype": None, "chunk": None, "kernels": None, "adapter": "LORA"}
    assert calls == [("MODEL", 9, settings, 3)]
    for text in ("7.12", "8.12", "3.00 (2.00-4.50)", "1.25", "2.50", "0.25", "compiled by the warm starts: 0 steps"):
        assert text in result.output, text
    report = json.loads(out.read_text())
    assert report["cold"] == made(False, 7.125) and [start["total"] for start in report["warm"]] == [2.0, 4.5, 3.0]
    assert report["settings"] == settings and report["prompt"] == 9
