"""`LM.score` and `LM.forward` of the same texts are the same bits, for every family, with XLA's programs for users."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from random_checkpoint import FAMILIES

SCRIPT = Path(__file__).resolve().parents[1] / "reference" / "parity.py"
QUICK = [("dense_base", "float32")]
ROUNDING = {"float32": 1e-4, "bfloat16": 0.1}
"""Most that another chunk size changes log-probabilities by; what docs/research.md says."""


def cases() -> list[object]:
    every = [(name, dtype) for name in FAMILIES for dtype in ROUNDING]
    return [
        pytest.param(*case, marks=pytest.mark.slow if case in QUICK else pytest.mark.long, id="-".join(case))
        for case in every
    ]


@pytest.mark.parametrize(("name", "dtype"), cases())
def test_score_and_forward_are_equal_bit_for_bit(tmp_path: Path, name: str, dtype: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    more = ["gradient"] if dtype == "float32" else []
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), name, dtype, str(tmp_path / "model"), *more],
        env=environment | {"PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[2]), str(SCRIPT.parent)])},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    assert {what: count for what, count in found["different"].items() if count} == {}
    assert found["another chunk"] < ROUNDING[dtype]
