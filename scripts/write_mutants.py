"""Write docs/mutants.md and docs/engine-mutants.md: every mutant and who finds it, of the steps from a run.

python scripts/write_mutants.py
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "tests" / "reference"


def main() -> None:
    """Run all mutants of steps and write the tables; an uncaught mutant is an error."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    sys.path[:0] = [str(ROOT), str(REFERENCE)]
    from engine_mutants.table import table as engine_table
    from mutants.catalogue import MUTANTS
    from mutants.verdict import kill, table

    (ROOT / "docs" / "engine-mutants.md").write_text(engine_table())
    mutants = list(MUTANTS.values())
    (ROOT / "docs" / "mutants.md").write_text(table(mutants, [kill(mutant) for mutant in mutants]))


if __name__ == "__main__":
    main()
