"""`hybridlm bench --start`: a cold and a warm start in separate processes, and the table."""

import json
from pathlib import Path
from typing import Any

import pytest
from text_checkpoint import write_text_checkpoint
from typer.testing import CliRunner

from hybridlm.bench.start import measure_starts
from hybridlm.cli import bench_start
from hybridlm.cli.main import app

PARTS = ["python", "import", "open", "weights", "engine", "memory", "first answer"]


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
    result = CliRunner().invoke(app, ["bench", "--start", *arguments])
    assert result.exit_code == 0, result.output
    settings = {"lanes": 8, "context": None, "dtype": None, "chunk": None, "kernels": None, "adapter": "LORA"}
    assert calls == [("MODEL", 9, settings, 3)]
    for text in ("7.12", "8.12", "3.00 (2.00-4.50)", "1.25", "2.50", "0.25", "compiled by the warm starts: 0 steps"):
        assert text in result.output, text
    report = json.loads(out.read_text())
    assert report["cold"] == made(False, 7.125) and [start["total"] for start in report["warm"]] == [2.0, 4.5, 3.0]
    assert report["settings"] == settings and report["prompt"] == 9


@pytest.mark.long
@pytest.mark.slow
def test_the_second_start_loads_the_steps_of_the_first(tmp_path: Path) -> None:
    directory = write_text_checkpoint(tmp_path)
    settings = {"lanes": 2, "context": 64, "chunk": 5, "dtype": "float32"}
    cold, (warm,) = measure_starts(str(directory), 4, settings, 1)
    for start, stored in ((cold, False), (warm, True)):
        assert list(start["parts"]) == PARTS and all(took >= 0 for took in start["parts"].values())
        assert start["total"] == sum(start["parts"].values())
        assert start["steps"]["generate 1x5 of 2"]["stored"] is stored
    assert {"trace", "prove", "lower", "compile", "audit", "keep"} <= set(cold["steps"]["generate 1x5 of 2"]["seconds"])
    assert set(warm["steps"]["generate 1x5 of 2"]["seconds"]) == {"load"}
    with pytest.raises(ChildProcessError, match="CheckpointError"):
        measure_starts(str(tmp_path / "none"), 4, settings, 0)
