"""Run all mutants and write mutants.md and engine-mutants.md, with the finder of each mutant.

python scripts/write_mutants.py FOLDER    # half a minute; the site's build does it (scripts/mkdocs_hooks.py)
"""

import os
import sys
from pathlib import Path

from table_pages import import_references


def pages() -> dict[str, str]:
    """Run all mutants of steps; raise for an undetected mutant."""
    import_references()
    from engine_mutants.table import table as engine_table
    from mutants.catalogue import MUTANTS
    from mutants.verdict import kill, table

    mutants = list(MUTANTS.values())
    return {"engine-mutants.md": engine_table(), "mutants.md": table(mutants, [kill(mutant) for mutant in mutants])}


if __name__ == "__main__":
    # Mutants of steps over meshes need devices; how fast a step runs does not matter.
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    for name, text in pages().items():
        Path(sys.argv[1], name).write_text(text)
