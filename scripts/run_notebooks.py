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
"""Most time that a cell may take: one that hangs ends. The test measures that a whole notebook takes no more."""


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a new run.

    Raises:
        CellExecutionError: at the first cell that fails.
        CellTimeoutError: at one that takes longer than `MAX_CELL_SECONDS`.
    """
    notebook = nbformat.read(path, as_version=4)
    # Source lines in the outputs then name the cell instead of a temporary file.
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
