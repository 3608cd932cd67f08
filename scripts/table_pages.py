"""Scripts that write tables: imports of tests/reference, and lines between marks of a page."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "tests" / "reference"


def import_references() -> None:
    """Let a script import the package, tests/reference and benchmark models; run on CPUs."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path[:0] = [str(ROOT), *map(str, REFERENCE.glob("*/")), str(ROOT / "scripts" / "benchmarks")]


def parts_of(page: str, mark: str) -> tuple[str, str, str]:
    """Return a page before, between and after two marks; raises ValueError without them."""
    first, last = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    start, end = page.index(first) + len(first), page.index(last)
    return page[:start], page[start:end], page[end:]


def rows_in(page: str, mark: str) -> list[list[str]]:
    """Return the rows of a marked table, without its head."""
    lines = [line for line in parts_of(page, mark)[1].splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def with_rows(page: str, mark: str, columns: str, rows: Iterable[Sequence[str]]) -> str:
    """Return the page with another marked table; `columns` are separated by bars."""
    head = [f"| {columns} |", "|---" * len(columns.split("|")) + "|"]
    begin, _, end = parts_of(page, mark)
    return begin + "\n".join(["", *head, *(f"| {' | '.join(row)} |" for row in rows), "", ""]) + end


def replace_lines(page: Path, mark: str, lines: Iterable[str]) -> None:
    """Replace the lines between two marks of a page."""
    head, _, tail = parts_of(page.read_text(encoding="utf-8"), mark)
    page.write_text(head + "".join(f"{line}\n" for line in lines) + tail, encoding="utf-8")
