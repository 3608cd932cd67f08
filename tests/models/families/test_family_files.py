"""A family is a short file over shared layers; a longer one gives the reason."""

import ast
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[3] / "models"
MAX_LINES = 150
LONG = [
    path
    for path in sorted(MODELS.rglob("*.py"))
    if "import ConfigReader" in path.read_text() and len(path.read_text().splitlines()) > MAX_LINES
]
"""Long files that read configs: of families, and of what several families have in common."""


@pytest.mark.parametrize("path", LONG, ids=lambda path: path.stem)
def test_a_long_file_warns_about_unshared_prefixes(path: Path) -> None:
    assert "Not shared with other families:" in (ast.get_docstring(ast.parse(path.read_text())) or "")


def test_the_long_files_are_known() -> None:
    names = {"bailing_hybrid", "kimi", "nemotron_h", "qwen", "qwen4_exp"}
    assert {path.stem for path in LONG} == names
