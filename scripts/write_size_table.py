"""Write the table of sizes in memory into docs/tables/packed-weights.md.

    python scripts/write_size_table.py

Takes a minute; nothing is compiled, and no weight is needed.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tables" / "packed-weights.md"


def main() -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path[:0] = [str(ROOT), *map(str, (ROOT / "tests" / "reference").glob("*/"))]
    from size_table import BEGIN, END, table

    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}{table()}{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
