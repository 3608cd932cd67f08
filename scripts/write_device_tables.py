"""Write docs/tables/device-tables.md: memory, exchanges and time per device of the published models.

python scripts/write_device_tables.py    # twenty minutes on two cores
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Write the tables; raise if a step is refused, or exchanges something else than the formulas say."""
    sys.path[:0] = [str(ROOT), *map(str, (ROOT / "tests" / "reference").glob("*/"))]
    # Exchanges do not depend on the optimization level.
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16 --xla_backend_optimization_level=0"
    from device_table import compiled, compiled_on, config_of, meshes, page, row_of
    from published import PUBLISHED
    from rich.progress import track

    on = {name: compiled_on(config_of(name)) for name in PUBLISHED}
    tables = {name: [row_of(name, devices) for devices in meshes(config_of(name))] for name in PUBLISHED}
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        jobs = [
            (rows, i, processes.submit(compiled, name, row.devices))
            for name, rows in tables.items()
            for i, row in enumerate(rows)
            if row.devices in on[name]
        ]
        for rows, i, job in track(jobs, "compiling"):
            rows[i] = job.result()
    (ROOT / "docs" / "tables" / "device-tables.md").write_text(page(tables))


if __name__ == "__main__":
    main()
