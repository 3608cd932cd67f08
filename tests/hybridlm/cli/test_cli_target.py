"""`hybridlm verify` and `inspect` for a target."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import run_command
from virtual_targets import decode_and_keep, golden_engine, read_report, virtual_targets

from hybridlm.cli import verify, verify_report
from hybridlm.compiler.targets import KernelResources
from hybridlm.progress import counting_progress
from hybridlm.target_report import report_on
from ir_passes.targets import read_target

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path) -> Iterator[None]:
    with virtual_targets(tmp_path / "cache"):
        yield


def run(*options: str | Path, code: int = 0) -> str:
    sizes = ("--lanes", "4", "--context", "256", "--chunk", "8", "--dtype", "float32")
    return run_command("verify", *options, *sizes, code=code).output


CONFIG = ("--config", GOLDEN / "sparse_base" / "config.json")


@pytest.mark.slow
def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_report, "shapes_of", decode_and_keep)
    output = run(*CONFIG, "--target", "nvidia-h100", "--out", tmp_path / "certificates")
    assert "generate 4x1 of 4" in output and "NVIDIA H100 80GB HBM3" in output and "left" in output
    assert "GFLOP" in output and "…" not in output
    assert sorted(path.name for path in (tmp_path / "certificates").iterdir()) == [
        "generate-4x1-of-4.json",
        "keep-a-state-of-4.json",
    ]
    report = read_report(run(*CONFIG, "--target", "nvidia-h100", "--json"))
    assert report.good and len(report.steps) == 2
    small = replace(read_target("nvidia-h100"), memory=1000)
    monkeypatch.setattr(verify_report, "read_target", lambda name: small)
    assert json.loads(run(*CONFIG, "--target", "nvidia-h100", "--json", code=1))["fit"]["left"] < 0


@pytest.mark.parametrize(("spilled", "status"), [(0, 0), (64, 0), (132, 1)])
def test_kernels_that_spill_are_named_and_refused_above_the_limit(
    spilled: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = golden_engine()
    report = report_on(engine, decode_and_keep(engine)[:1])
    kernels = (KernelResources("small_kernel", 128, 40, 0), KernelResources("wide_kernel", 128, 255, spilled))
    step = replace(report.steps[0], resources=kernels)
    monkeypatch.setattr(verify_report, "report_on", lambda *args: replace(report, steps=(step,)))
    output = run(*CONFIG, "--target", "nvidia-h100", code=status)
    assert "small_kernel" not in output
    line = f"wide_kernel stores {spilled} bytes of 255 registers of each of 128 threads to memory"
    assert (line in output) == (spilled > 0)
    assert ("wide_kernel: 132 spilled bytes of a thread, expected at most 128" in output) == (status == 1)


@pytest.mark.parametrize(("options", "message"), [
    (("--target", "nvidia-h100"), "--model or --config, got neither"),
    ((*CONFIG, "--model", "m", "--target", "nvidia-h100"), "got both"),
    ((*CONFIG, "--target", "h100"), "expected one of nvidia-a100"),
    ((*CONFIG, "--target", "nvidia-h100", "--explain"), "--explain: not with --target"),
    ((*CONFIG, "--abstract", "--json"), "--json: needs --target"),
])  # fmt: skip
def test_options_that_do_not_go_together(options: tuple[str, ...], message: str) -> None:
    assert message in run(*options, code=1)


def test_largest_kernels_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, page, labels = GOLDEN / "sparse_base", tmp_path / "step.html", list[str]()

    def noted(show: bool | None, label: str, total: int) -> Any:
        labels.append(label)
        return counting_progress(show, label, total)

    monkeypatch.setattr(sys.modules["hybridlm.cli.inspect"], "counting_progress", noted)
    command = ["inspect", "--model", path, "--target", "nvidia-h100:2", "--mesh", "expert=2", "--html", page]
    run_command(*command, "--lanes", "4", "--context", "256", "--chunk", "8", "--dtype", "float32")
    assert labels == ["compiling generate 4x1 of 4 for nvidia-h100:2"]
    text = page.read_text()
    assert "<h2>Kernels</h2>" in text and "args[1].layers[1][0].key" in text
    assert "<h2>Collectives, in the order of" in text, "by default lanes are split, which exchange nothing"


def test_plans_of_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step is proved; the others equal any abstract model's."""

    shapes = lambda engine, *_, **__: [engine.moves.shapes(engine.rows, engine.pages(engine.rows))[0]]
    monkeypatch.setattr(verify, "all_shapes", shapes)
    sizes = ("--lanes", "4", "--context", "64", "--chunk", "8", "--abstract", "--target", "nvidia-h100")
    command, int4 = ("verify", *CONFIG, *sizes), ("--scheme", "int4", "--group-size", "8")
    options = ((), int4, (*int4, "--mixers"), (*int4, "--head"))
    outputs = {run_command(*command, *each).output for each in options}
    assert len(outputs) == len(options)
    assert all("on each NVIDIA H100" in output and "are left" in output for output in outputs)
    small = replace(read_target("nvidia-h100"), memory=1000)
    monkeypatch.setattr(verify, "read_target", lambda name: small)
    assert "DOES NOT FIT" in run_command(*command, code=1).output


def test_a_scheme_is_of_a_plan() -> None:
    for options in (
        (*CONFIG, "--abstract", "--mixers"),
        ("--model", "m", "--scheme", "int8"),
        ("--model", "m", "--target", "nvidia-h100", "--scheme", "int8"),
    ):
        assert "--scheme" in run_command("verify", *options, code=1).output
