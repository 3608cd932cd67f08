"""Run every step of every family and write the verdicts to certificates.md.

python scripts/write_certificates.py FOLDER    # some minutes; the site's build does it (scripts/mkdocs_hooks.py)
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from table_pages import import_references


def main() -> None:
    """Compile every step and write the table; a refusal or copied pool raises."""
    import_references()
    from certificate_table import NAMES, certified, table

    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        rows = list(processes.map(certified, NAMES))
    assert {verdict for row in rows for verdict in row.verdicts} == {"proved, audited"}, table(rows)
    Path(sys.argv[1], "certificates.md").write_text(table(rows))


if __name__ == "__main__":
    main()
