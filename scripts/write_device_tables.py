"""Write docs/device-tables.md: what devices hold, exchange and need the time for, of the published models.

python scripts/write_device_tables.py
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Write the tables; a step that is refused, or exchanges what the formulas do not say, is an error."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "reference")]
    from device_table import page, rows_of
    from published import PUBLISHED

    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        rows = list(processes.map(rows_of, PUBLISHED))
    (ROOT / "docs" / "device-tables.md").write_text(page(dict(zip(PUBLISHED, rows, strict=True))))


if __name__ == "__main__":
    main()
