"""docs/target-tables.md: rows say what is wrong with a step, and the page counts what is not.

.ci/long targets writes the tables anew.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from target_table import page, row_of

from hybridlm.target_report import StepReport


def report(**fields: Any) -> StepReport:
    certificate = SimpleNamespace(not_audited=None, seconds=SimpleNamespace(compile=2.5))
    found = {"name": "generate 4x1", "faults": (), "scratch": 1500, "moved": 30, "floor_moved": 20}
    return SimpleNamespace(**{**found, "certificate": certificate, **fields})  # type: ignore[return-value]


PROVED = SimpleNamespace(not_audited="the audit does not know it", seconds=SimpleNamespace(compile=1.0))


@pytest.mark.parametrize(
    ("fields", "verdict", "good"),
    [
        ({}, "audited", True),
        ({"certificate": PROVED}, "proved", True),
        ({"faults": ("overlap",)}, "REFUSED", False),
        ({"certificate": PROVED, "faults": ("overlap",)}, "REFUSED", False),
        ({"certificate": None, "faults": ("not compiled",), "scratch": 0}, "NOT COMPILED", False),
    ],
)
def test_verdicts(fields: dict[str, Any], verdict: str, good: bool) -> None:
    row = row_of("olmo_base", "nvidia-h100", report(**fields))
    assert (row.verdict, row.good) == (verdict, good)


def test_page() -> None:
    rows = [
        row_of("olmo_base", "nvidia-h100", report()),
        row_of("olmo_base", "nvidia-h100", report(name="copy 4 to 4", floor_moved=None, faults=("overlap",))),
        row_of("olmo_base", "tpu-v5e", report(certificate=PROVED)),
    ]
    text = page(rows)
    assert "## nvidia-h100: 1 of 2 steps without a finding" in text
    assert "## tpu-v5e: 1 of 1 steps without a finding" in text
    assert "| olmo_base | generate 4x1 | audited | 1.5 | 1.50 | 2.5 |" in text
    assert text.count("Not compiled in this run: next_dense_layers, ") == 2 and "falcon_base." in text
    assert "| olmo_base | copy 4 to 4 | REFUSED | 1.5 |  | 2.5 |" in text
