"""Imports, steps on absent machines, and lines between marks of a page, for scripts."""

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridlm.compiler import CompiledStep
    from hybridlm.engine.config import EngineConfig
    from hybridlm.target_report import StepReport

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "tests" / "reference"


def import_references() -> None:
    """Let a script import the package, tests/reference and benchmark models; run on CPUs."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path[:0] = [str(ROOT), *map(str, REFERENCE.glob("*/")), str(ROOT / "scripts" / "benchmarks")]


def fields_of(model: str) -> dict[str, Any]:
    """Return the config.json of a benchmark model or a published one."""
    from bench_models import BENCH_MODELS
    from published import PUBLISHED

    return BENCH_MODELS.get(model) or PUBLISHED[model]


def step_on(
    target: str,
    fields: dict[str, Any],
    options: "EngineConfig",
    tokens: int,
    lanes: int | None = None,
    **settings: Any,
) -> "tuple[CompiledStep, StepReport]":
    """Compile a generating step of a configuration for an absent machine.

    Args:
        tokens: of each lane.
        lanes: None for all lanes with one token, otherwise the lanes of prompts.
        settings: of `target_engine`.
    """
    from hybridlm.compiler.targets import read_target
    from hybridlm.target_report.step_report import step_report
    from hybridlm.target_report.target_report import target_engine

    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        config.write_text(json.dumps(fields), encoding="utf-8")
        engine = target_engine(read_target(target), options, config=config, **settings)
    if lanes is None:
        lanes = engine.lanes if tokens == 1 else engine.prefill_lanes
    shape = engine.shape("generate", lanes, tokens)
    step = engine.program(shape)
    return step, step_report(engine, shape, step, engine.context)


def parts_of(page: str, mark: str) -> tuple[str, str, str]:
    """Return a page before, between and after two marks; raises ValueError without them."""
    first, last = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    start, end = page.index(first) + len(first), page.index(last)
    return page[:start], page[start:end], page[end:]


def rows_in(page: str, mark: str) -> list[list[str]]:
    """Return the rows of a marked table, without its head."""
    lines = [line for line in parts_of(page, mark)[1].splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def with_rows(page: str, mark: str, columns: str, rows: Iterable[Sequence[str]]) -> str:
    """Return the page with another marked table; `columns` are separated by bars."""
    head = [f"| {columns} |", "|---" * len(columns.split("|")) + "|"]
    begin, _, end = parts_of(page, mark)
    return begin + "\n".join(["", *head, *(f"| {' | '.join(row)} |" for row in rows), "", ""]) + end


def replace_lines(page: Path, mark: str, lines: Iterable[str]) -> None:
    """Replace the lines between two marks of a page."""
    head, _, tail = parts_of(page.read_text(encoding="utf-8"), mark)
    page.write_text(head + "".join(f"{line}\n" for line in lines) + tail, encoding="utf-8")
