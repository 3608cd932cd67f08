"""docs/tables/target-tables.md: rows name faults, and the page counts the sound steps.

.ci/long --all targets writes the tables anew.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from certificate_table import NAMES
from planned_engines import planned_engine
from target_table import (
    DECODING,
    MODEL_LANES,
    TARGETS,
    is_split,
    model_shapes,
    page,
    read,
    row_of,
    row_of_model,
)

from hybridlm.target_report import StepReport


def report(**fields: Any) -> StepReport:
    certificate = SimpleNamespace(not_audited=None, copies=(), seconds=SimpleNamespace(compile=2.5))
    results = {"name": "generate 4x1 of 4", "faults": (), "scratch": 1500, "moved": 30, "floor_moved": 20}
    return SimpleNamespace(**{**results, "certificate": certificate, **fields})  # type: ignore[return-value]


UNKNOWN = SimpleNamespace(not_audited="the audit does not know it", copies=(), seconds=SimpleNamespace(compile=1.0))
COPIES = SimpleNamespace(not_audited=None, copies=("1344 bytes",), seconds=SimpleNamespace(compile=1.0))


@pytest.mark.parametrize(("fields", "verdict", "good"), [
    ({}, "audited", True),
    ({"floor_moved": None}, "audited", True),
    ({"certificate": UNKNOWN}, "NOT AUDITED", False),
    ({"certificate": COPIES}, "COPIES A POOL", False),
    ({"floor_moved": 31}, "BELOW ITS FLOOR", False),
    ({"faults": ("overlap",)}, "REFUSED", False),
    ({"certificate": UNKNOWN, "faults": ("overlap",)}, "REFUSED", False),
    ({"certificate": None, "faults": ("not compiled",), "scratch": 0}, "NOT COMPILED", False),
])  # fmt: skip
def test_verdicts(fields: dict[str, Any], verdict: str, good: bool) -> None:
    row = row_of("olmo_base", "nvidia-h100", report(**fields))
    assert (row.verdict, row.good) == (verdict, good)


def test_page() -> None:
    rows = [
        row_of("olmo_base", "nvidia-h100", report()),
        row_of("olmo_base", "nvidia-h100", report(name="keep a state of 4", floor_moved=None, faults=("overlap",))),
        row_of("olmo_base", "tpu-v5e:4 data=2,model=2", report()),
        row_of("sparse_base", "tpu-v5e:4 model=2,expert=2", report()),
    ]
    text = page(rows)
    assert "## nvidia-h100: 1 of 2 steps without a finding" in text
    assert "## tpu-v5e:4 data=2,model=2: 1 of 1 steps without a finding" in text
    assert "| checkpoint | generate 4x1 of 4 | keep a state of 4 |" in text
    assert text.count("Not compiled: next_dense_layers, dense_interval, sparse_base, ") == 2
    single = "dense_interval, lfm2_base, mamba_base, falcon_mamba_base, mamba2_base, bamba_base, falcon_base, olmo_base"
    single += ", zamba2_base, lfm3_base"
    assert f"Without experts: {single}." in text
    assert "Not compiled: next_dense_layers, indexed_base, lfm2_moe_base, kimi_base, ling_base, " in text
    assert "| olmo_base | 1.5; 1.50; 2.5 | REFUSED: 1.5; -; 2.5 |" in text


def fitted(spare: int) -> SimpleNamespace:
    return SimpleNamespace(
        memory=16 * 10**9, left=spare, fits=spare >= 0, most_lanes=82, longest_context=6272, scratch=10**9
    )


@pytest.mark.parametrize(("fields", "remaining", "fit", "good"), [
    ({}, 10**9, "yes, 15.0 of 16.0 GB", True),
    ({}, -(10**9), "no, 17.0 of 16.0 GB", True),
    ({"faults": ("overlap",)}, 10**9, "yes, 15.0 of 16.0 GB", False),
    ({"certificate": None, "failed": "out | of memory"}, 10**9, "no, XLA: out / of memory", True),
    ({"certificate": None, "failed": "out of memory"}, -1, "no, 16.0 of 16.0 GB without scratch", True),
])  # fmt: skip
def test_rows_of_models(fields: dict[str, Any], remaining: int, fit: str, good: bool) -> None:
    item = report(**{"failed": None, "kernels": 1702, "scratch": 10**9, **fields})
    row = row_of_model("Kimi-Linear-48B", "nvidia-h200", SimpleNamespace(steps=(item,), fit=fitted(remaining)))  # type: ignore[arg-type]
    assert (row.fit, row.good, row.lanes, row.context) == (fit, good, "82", "6,272")
    assert ("faults" in fields) == (row.verdict == "REFUSED: overlap")


def test_page_is_read_back() -> None:
    rows = [
        row_of("olmo_base", "nvidia-h100", report()),
        row_of("lfm2_base", "nvidia-h100:4 data=2,model=2", report(floor_moved=None)),
    ]
    item = report(name="generate 64x1 of 64", failed=None, kernels=1702)
    models = [row_of_model("Kimi-Linear-48B", "tpu-v5e:8 model=8", SimpleNamespace(steps=(item,), fit=fitted(1)))]  # type: ignore[arg-type]
    assert read(page(rows, models)) == (rows, models)
    assert "Qwen3.5-35B-A3B generate 8x256 of 64 for nvidia-h200, Nemotron-3-Nano generate 64x1 of 64 for" in page(
        rows, models
    )
    assert page(*read(page(rows, models))) == page(rows, models)


def test_every_family_is_in_the_page_of_this_version(root: Path) -> None:
    text = (root / "docs" / "tables" / "target-tables.md").read_text()
    rows, models = read(text)
    assert page(rows, models) == text
    assert {row.verdict for row in rows} == {"audited"} and all(model.good for model in models)
    for target in TARGETS:
        expected = [name for name in NAMES if is_split(name, target) for _ in range(4)]
        assert [row.checkpoint for row in rows if row.target == target] == expected


def test_steps_of_published_models_have_the_pages_of_their_engine() -> None:
    engine = planned_engine("sparse_base", lanes=MODEL_LANES, context=512, dtype="bfloat16")
    decoding, scoring = model_shapes(engine, str(DECODING))
    assert (decoding.step, scoring.step) == ("generate", "score")
    assert decoding.pages == engine.pages(MODEL_LANES) > scoring.pages > 0
