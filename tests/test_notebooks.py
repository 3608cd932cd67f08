"""Every notebook runs from a fresh kernel in time and matches its outputs."""

import os
import re
import runpy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.notebooks

MAX_CELL_SECONDS = 120
"""Most time that a notebook may take, its kernel's start included; on two free cores each takes a third of it."""


def texts(notebook: Any) -> Iterator[str]:
    """Text of each cell without machine, compiler and clock dependent parts.

    Whole numbers below ten stay, because readers look at counts of copies, violations and errors. Shares in
    percent, longer numbers, fractions, hashes and how much white space stands next to them do not.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code":
            output = (out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs)
            # A fraction before a hash: 2.384185791015625e-07 has one after its point.
            text = re.sub(r"(?<![\w.])-?\d+(,\d{3})*\.\d+(e[+-]?\d+)?", "N", "".join(output))
            text = re.sub(r"\b[0-9a-f]{12,}\b", "HASH", text)
            text = re.sub(r"(?<![\w.])-?\d+(,\d{3})*(e[+-]?\d+|%)", "N", text)
            text = re.sub(r"\d+(,\d{3})+|\d{2,}", "N", text)
            yield " ".join(text.split())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_in_time_with_the_stored_outputs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat

    run = runpy.run_path(str(ROOT / "scripts" / "run_notebooks.py"))["run"]
    # The kernel is the interpreter of the tests and sees the devices that a user would.
    flags = os.environ["XLA_FLAGS"].split()
    monkeypatch.setenv("XLA_FLAGS", " ".join(flag for flag in flags if "device_count" not in flag))
    start = time.monotonic()
    process = run(path)
    seconds = time.monotonic() - start
    assert any(cell.get("outputs") for cell in process.cells)
    for number, (saved, out) in enumerate(zip(texts(nbformat.read(path, as_version=4)), texts(process), strict=True)):
        assert saved == out, f"cell of code {number} differs: run scripts/run_notebooks.py notebooks/{path.name}"
    assert seconds < MAX_CELL_SECONDS


def test_a_stale_output_is_seen() -> None:
    """Words and small numbers count; times, sizes and hashes do not."""
    import nbformat

    def shown(text: str) -> list[str]:
        outputs = [nbformat.v4.new_output("stream", text=text)]
        return list(texts(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=outputs)])))

    saved = "generate 8x1: 730 equations, 2 copies, 0.245 s, 9% of 1.5e-06, hlo ee43268994875e92\n"
    equal = "generate 8x1:  1,733 equations, 2 copies, 12.1 s, 14% of -2.75e+00, hlo 00b77ac5b1d11cf1"
    assert shown(saved) == shown(equal)
    assert shown(saved) == shown(equal.replace("-2.75e+00", "2.384185791015625e-07").replace("12.1", "1,012.1"))
    assert shown(saved) != shown(saved.replace("2 copies", "0 copies"))
    assert shown(saved) != shown(saved.replace("equations", "statements"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_with_its_outputs(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count is not None for cell in code), "run scripts/run_notebooks.py"
    assert not [out for cell in code for out in cell.outputs if out.get("name") == "stderr" or "/home" in str(out)]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
