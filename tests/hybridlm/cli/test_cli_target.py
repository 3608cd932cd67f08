"""`hybridlm verify` and `inspect` for a target."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import pytest
from jax.experimental import topologies
from jax_settings import jax_settings
from typer.testing import CliRunner, Result

from hybridlm.cli import verify_report
from hybridlm.cli.main import app
from hybridlm.compiler.targets import KernelResources
from hybridlm.progress import counting_progress
from hybridlm.target_report import TargetReport, report_on
from ir_passes.files.record import from_json
from ir_passes.targets import read_target

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("jax_plugins.xla_cuda13", "jax_cuda13_plugin", "libtpu"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)

    def topology(topology: str = "1", **_: Any) -> Any:
        return SimpleNamespace(devices=jax.devices()[1 : 1 + int(topology.split("x")[-1])])

    monkeypatch.setattr(topologies, "get_topology_desc", topology)
    with jax_settings(jax_compilation_cache_dir=str(tmp_path / "cache")):
        yield


def run(*options: str) -> Result:
    sizes = ("--lanes", "4", "--context", "256", "--chunk", "8", "--dtype", "float32")
    return CliRunner().invoke(app, ["verify", *options, *sizes], catch_exceptions=False)


CONFIG = ("--config", str(GOLDEN / "sparse_base" / "config.json"))


@pytest.mark.slow
def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    monkeypatch.setattr(verify_report, "shapes_of", lambda engine: SHAPES)
    result = run(*CONFIG, "--target", "nvidia-h100", "--out", str(tmp_path / "certificates"))
    assert result.exit_code == 0, result.output
    assert "generate 4x1 of 4" in result.output and "NVIDIA H100 80GB HBM3" in result.output and "left" in result.output
    assert "GFLOP" in result.output and "…" not in result.output
    assert sorted(path.name for path in (tmp_path / "certificates").iterdir()) == [
        "generate-4x1-of-4.json",
        "keep-a-state-of-4.json",
    ]
    result = run(*CONFIG, "--target", "nvidia-h100", "--json")
    report = from_json(TargetReport, result.output)
    assert result.exit_code == 0 and report.good and len(report.steps) == 2
    small = replace(read_target("nvidia-h100"), memory=1000)
    monkeypatch.setattr(verify_report, "read_target", lambda name: small)
    result = run(*CONFIG, "--target", "nvidia-h100", "--json")
    assert result.exit_code == 1 and json.loads(result.output)["fit"]["left"] < 0


@pytest.mark.parametrize(("spilled", "status"), [(0, 0), (64, 0), (132, 1)])
def test_kernels_that_spill_are_named_and_refused_above_the_limit(
    spilled: int, status: int, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    report = report_on(engine(), SHAPES[:1])
    kernels = (KernelResources("small_kernel", 128, 40, 0), KernelResources("wide_kernel", 128, 255, spilled))
    step = replace(report.steps[0], resources=kernels)
    monkeypatch.setattr(verify_report, "report_on", lambda *args: replace(report, steps=(step,)))
    result = run(*CONFIG, "--target", "nvidia-h100")
    assert result.exit_code == status and "small_kernel" not in result.output
    line = f"wide_kernel stores {spilled} bytes of 255 registers of each of 128 threads to memory"
    assert (line in result.output) == (spilled > 0)
    assert ("wide_kernel: 132 spilled bytes of a thread, expected at most 128" in result.output) == (status == 1)


@pytest.mark.parametrize(("options", "message"), [
    (("--target", "nvidia-h100"), "--model or --config, got neither"),
    ((*CONFIG, "--model", "m", "--target", "nvidia-h100"), "got both"),
    ((*CONFIG, "--target", "h100"), "expected one of nvidia-a100"),
    ((*CONFIG, "--target", "nvidia-h100", "--explain"), "--explain: not with --target"),
    ((*CONFIG, "--abstract", "--json"), "--json: needs --target"),
])  # fmt: skip
def test_options_that_do_not_go_together(options: tuple[str, ...], message: str) -> None:
    result = run(*options)
    assert result.exit_code == 1 and message in result.output


def test_largest_kernels_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, page, labels = GOLDEN / "sparse_base", tmp_path / "step.html", list[str]()

    def noted(show: bool | None, label: str, total: int) -> Any:
        labels.append(label)
        return counting_progress(show, label, total)

    monkeypatch.setattr(sys.modules["hybridlm.cli.inspect"], "counting_progress", noted)
    result = CliRunner().invoke(
        app,
        ["inspect", "--model", str(path), "--target", "nvidia-h100:2", "--mesh", "expert=2", "--html", str(page)]
        + ["--lanes", "4", "--context", "256", "--chunk", "8", "--dtype", "float32"],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    assert labels == ["compiling generate 4x1 of 4 for nvidia-h100:2"]
    text = page.read_text()
    assert "<h2>Kernels</h2>" in text and "args[1].layers[1][0].key" in text
    assert "<h2>Collectives, in the order of" in text, "by default lanes are split, which exchange nothing"
