"""Every notebook runs from a fresh kernel and is kept with its outputs."""

import os
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.notebooks


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runpy.run_path(str(ROOT / "scripts" / "run_notebooks.py"))["run"]
    # The kernel is the interpreter of the tests and sees the devices that a user would.
    flags = os.environ["XLA_FLAGS"].split()
    monkeypatch.setenv("XLA_FLAGS", " ".join(flag for flag in flags if "device_count" not in flag))
    done = run(path)
    assert any(cell.get("outputs") for cell in done.cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_with_its_outputs(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count is not None for cell in code), "run scripts/run_notebooks.py"
    assert not [out for cell in code for out in cell.outputs if out.get("name") == "stderr" or "/home" in str(out)]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
