"""Write device-tables.md into a folder: memory, exchanges and time per device of the published models.

python scripts/write_device_tables.py FOLDER    # a minute; the site's build does it (scripts/mkdocs_hooks.py)
python scripts/write_device_tables.py --compile # twenty minutes: compile both steps on the meshes marked "compiled"
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from table_pages import import_references


def main() -> None:
    """Write the tables, or compile; raise for a refused step, or exchanges unlike the formulas."""
    import_references()
    # Exchanges do not depend on the optimization level.
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16 --xla_backend_optimization_level=0"
    from device_table import compiled, compiled_on, config_of, page, rows_of
    from published import PUBLISHED
    from rich.progress import track

    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        if sys.argv[1] == "--compile":
            jobs = [
                processes.submit(compiled, name, devices)
                for name in PUBLISHED
                for devices in sorted(compiled_on(config_of(name)))
            ]
            for job in track(jobs, "compiling"):
                job.result()
            return
        tables = dict(zip(PUBLISHED, processes.map(rows_of, PUBLISHED), strict=True))
    Path(sys.argv[1], "device-tables.md").write_text(page(tables))


if __name__ == "__main__":
    main()
