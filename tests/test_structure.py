"""docs/structure.md has the line of every module."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_structure_is_what_the_docstrings_say():
    expected = runpy.run_path(str(ROOT / "scripts" / "write_structure.py"))["structure"]()
    found = (ROOT / "docs" / "structure.md").read_text()
    differing = sorted(set(expected.splitlines()) ^ set(found.splitlines()))
    assert found == expected, "run `python scripts/write_structure.py`; these lines differ:\n" + "\n".join(differing)
