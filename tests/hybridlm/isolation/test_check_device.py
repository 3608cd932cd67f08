"""scripts/check_device.py: its report after faults, crashes and lack of time, and checks that find what is wrong.

.ci/run runs it whole on the CPU (`--small`).
"""

import argparse
import json
import runpy
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import device_kernels
import jax
import numpy as np
import pytest
from device_checks import Case, certificates, parity

import hybridlm

CASE = Case("one", Path(), {"dtype": "bfloat16"}, exact=False)


@pytest.fixture(scope="module")
def script(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "scripts" / "check_device.py"))


def test_what_was_found_is_written_after_every_check(script: dict[str, Any], tmp_path: Path) -> None:
    planned = [("one", "parity"), ("one", "isolation"), ("two", "speed")]
    report = script["Report"](tmp_path, planned)
    step = {"step": "generate 4x1", "seconds": 2e-3, "floor_seconds": 1e-3, "moved_seconds": 1e-3}
    report.run(
        "one", "parity", lambda: {"error": 0.125, "decode": step | {"tokens_per_second": 9.0, "over_floor": 2.0}}
    )
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["verdict"] == "incomplete"
    assert [one["verdict"] for one in found["checks"]] == ["passed", "not run", "not run"]

    def wrong() -> dict[str, Any]:
        raise ValueError("lane 1 | ``` \n changed")

    report.run("one", "isolation", wrong)
    found = json.loads((tmp_path / "report.json").read_text())
    assert (found["verdict"], found["checks"][1]["why"]) == ("FAILED", "ValueError: lane 1 | ``` \n changed")
    page = (tmp_path / "report.md").read_text()
    assert "| one | parity | passed |" in page and "error 0.125" in page and "| two | speed | not run |" in page
    assert "| one | generate 4x1 | 2.000 | 1.000 | 2.00 | 1.000 | 9 |" in page
    assert page.count("```") == 2, "what an error says ends no block"


def test_a_cpu_is_no_device_to_check(
    script: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = argparse.Namespace(small=False, out=tmp_path / "out", seconds=1.0)
    assert script["check"](options, tmp_path, time.monotonic() + 1) == 2
    assert "no GPU or TPU" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_missing_wheels_are_named(script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[Any]] = []

    def run(command: list[Any]) -> Any:
        asked.append(command)
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("venv.create", lambda folder, with_pip: None)
    with pytest.raises(SystemExit, match=r"wheels are missing for flax.*jax\[cuda13\]"):
        script["install"](tmp_path / "wheels", "cuda", tmp_path / "environment")
    assert "--no-index" in asked[0] and str(tmp_path / "wheels") in asked[0]


def model(numbers: Any = (), **parts: Any) -> hybridlm.LM:
    """A stand-in that scores every text with the same numbers."""
    score = SimpleNamespace(logprobs=np.array(numbers, np.float32))
    config = SimpleNamespace(vocab_size=9)
    return SimpleNamespace(config=config, score=lambda texts: [score], **parts)  # type: ignore[return-value]


@pytest.mark.parametrize(("error", "good"), [(0.02, True), (0.05, False), (np.nan, False)])
def test_numbers_as_far_from_float32_as_a_cpus(error: float, good: bool, tmp_path: Path) -> None:
    exact = np.array([np.nan, -1, -2, -3], np.float32)
    np.savez(tmp_path / "one.npz", float32=exact, bfloat16=exact + np.float32(0.01))
    lm = model(exact + np.float32(error))
    if good:
        assert parity(lm, CASE, tmp_path / "one.npz")["error beside float32"] == pytest.approx(error, rel=1e-3)
        return
    with pytest.raises(AssertionError):
        parity(lm, CASE, tmp_path / "one.npz")


@pytest.mark.parametrize(
    ("faults", "absent", "said"),
    [
        ((), None, None),
        (("in-place: pool",), None, "in-place: pool"),
        ((), "no buffer assignment", "no buffer assignment"),
    ],
)
def test_steps_that_are_refused_or_not_audited_are_faults(
    faults: tuple[str, ...], absent: str | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = SimpleNamespace(faults=faults, not_audited=absent, is_proof=not faults, copies=(), state="")
    lm = model(certificates={"generate 4x1": one}, engine=SimpleNamespace(program=lambda shape: None))
    monkeypatch.setattr("device_checks.all_shapes", lambda *_, **__: [])
    if said is None:
        assert certificates(lm, CASE, Path()) == {"steps": 1, "pool-sized copies": 0}
        return
    with pytest.raises(AssertionError, match=said):
        certificates(lm, CASE, Path())


def test_kernels_are_measured_beside_their_plain_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_kernels, "ROUNDS", 1)
    some = [one for one in device_kernels.operations("cpu", device_kernels.TINY) if one[0] in ("SSD, 1", "SSD, 40")]
    monkeypatch.setattr(device_kernels, "operations", lambda platform, sizes: iter(some))
    found = device_kernels.measured("cpu", "interpret", device_kernels.TINY)
    assert set(found) == {f"{name}, {figure}" for name, *_ in some for figure in ("error", "ms", "plain ms")}
    with pytest.raises(AssertionError, match="no kernel for cpu"):
        device_kernels.measured("cpu", "auto", device_kernels.TINY)
    name, right, operands = some[0]
    monkeypatch.setattr(
        device_kernels,
        "operations",
        lambda platform, sizes: [(name, lambda *x, kernels: _wrong(right(*x, kernels=kernels), kernels), operands)],
    )
    with pytest.raises(AssertionError, match="SSD, 1"):
        device_kernels.measured("cpu", "interpret", device_kernels.TINY)


def _wrong(found: Any, kernels: str) -> Any:
    return jax.tree.map(lambda x: 1.01 * x, found) if kernels == "interpret" else found
