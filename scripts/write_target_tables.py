"""Write docs/target-tables.md: verdict, scratch, bytes over the floor, compile time of each family's steps on targets.

    python scripts/write_target_tables.py [--targets nvidia-h100 tpu-v5e] [--out FILE]

Takes the extras target-cuda and target-tpu, and twenty minutes on two cores; steps without a fault that were compiled
before are not compiled again. The exit status is 1 if a step has a finding.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Write the tables; return 1 if a step has a finding."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "reference")]
    from certificate_table import NAMES
    from rich.progress import track
    from target_table import TARGETS, page, rows_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--checkpoints", nargs="+", default=list(NAMES))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "target-tables.md")
    options = parser.parse_args()
    pairs = [(name, target) for target in options.targets for name in options.checkpoints]
    rows = [row for name, target in track(pairs, "compiling") for row in rows_of(name, target)]
    options.out.write_text(page(rows), encoding="utf-8")
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
