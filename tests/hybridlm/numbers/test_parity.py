"""`LM.score` and `LM.forward` give the same bits for every family, compiled for users."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from random_checkpoint import FAMILIES

SCRIPT = Path(__file__).resolve().parents[2] / "reference" / "scenes" / "parity.py"
ROUNDING = {"float32": 1e-4, "bfloat16": 0.1}
"""Largest change of log-probabilities by another chunk size, as in docs/research.md."""


def cases() -> list[object]:
    return [pytest.param(name, dtype, id=f"{name}-{dtype}") for name in FAMILIES for dtype in ROUNDING]


def compared(directory: Path, name: str, dtype: str, *args: str, **flags: str) -> dict[str, Any]:
    """Findings of the script, with no other flags of XLA than these."""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | flags
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), name, dtype, str(directory), *args],
        env=environment
        | {"PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[3]), str(SCRIPT.parents[1] / "checkpoints")])},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize("mesh", ["2x2x2", "1x4x1"])
@pytest.mark.parametrize("name", FAMILIES)
def test_they_are_equal_over_a_mesh(tmp_path: Path, name: str, mesh: str) -> None:
    flags = "--xla_force_host_platform_device_count=8"
    result = compared(tmp_path / "model", name, "float32", "gradient", mesh, XLA_FLAGS=flags)
    assert {label: count for label, count in result["different"].items() if count} == {}


@pytest.mark.long
@pytest.mark.parametrize(("name", "dtype"), cases())
def test_score_and_forward_are_equal_bit_for_bit(tmp_path: Path, name: str, dtype: str) -> None:
    result = compared(tmp_path / "model", name, dtype, *(["gradient"] if dtype == "float32" else []))
    assert {label: count for label, count in result["different"].items() if count} == {}
    assert result["another chunk"] < ROUNDING[dtype]
