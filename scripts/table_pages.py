"""Scripts that write tables: imports of tests/reference, and lines between marks of a page."""

import os
import sys
from collections.abc import Iterable
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


def replace_lines(page: Path, mark: str, lines: Iterable[str]) -> None:
    """Replace the lines between two marks of a page."""
    head, _, tail = parts_of(page.read_text(encoding="utf-8"), mark)
    page.write_text(head + "".join(f"{line}\n" for line in lines) + tail, encoding="utf-8")
