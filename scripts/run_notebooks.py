"""Execute the notebooks and write their outputs into them.

    python scripts/run_notebooks.py [NOTEBOOK...]

Needs the extra `notebooks`. Without arguments every notebook below notebooks/ is run.
"""

import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
MAX_CELL_SECONDS = 120
"""Timeout of a cell. The test requires that a whole notebook takes no longer."""


def run(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of a new run.

    Raises:
        CellExecutionError: a cell fails.
        CellTimeoutError: a cell takes longer than `MAX_CELL_SECONDS`.
    """
    notebook = nbformat.read(path, as_version=4)
    # Names the cell instead of a temporary file in source lines of the outputs.
    environment = os.environ | {"IPYKERNEL_CELL_NAME": "cell"}
    resources = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=MAX_CELL_SECONDS, resources=resources, coalesce_streams=True).execute(
        env=environment
    )
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    return notebook


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        start = time.monotonic()
        nbformat.write(run(path), path)
        print(f"{path.name}: {time.monotonic() - start:.0f} s")
