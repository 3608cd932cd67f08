"""Write docs/tables/certificates.md: the verdict on every step of every family, from a run.

python scripts/write_certificates.py
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Compile every step and write the table; raise if a step is refused."""
    sys.path[:0] = [str(ROOT), *map(str, (ROOT / "tests" / "reference").glob("*/"))]
    from certificate_table import NAMES, certified, table

    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        rows = list(processes.map(certified, NAMES))
    (ROOT / "docs" / "tables" / "certificates.md").write_text(table(rows))


if __name__ == "__main__":
    main()
