"""The recipes of docs/research.md, each run as it stands behind the page's beginning, in 25 lines at most."""

import re
from pathlib import Path
from typing import Any

import pytest

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "research.md").read_text()
RECIPES = dict(re.findall(r"^### ([^\n]+)\n(?:(?!^##).)*?^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def beginning() -> dict[str, Any]:
    """The names that the first block of the page defines."""
    names: dict[str, Any] = {"__name__": "recipe"}
    code = TEXT[TEXT.index("```python\n") + len("```python\n") :].partition("```")[0]
    exec(compile(code, "docs/research.md", "exec"), names)
    return names


def test_every_section_has_one_recipe() -> None:
    assert list(RECIPES) == re.findall(r"^### (.+)$", TEXT, re.MULTILINE)
    assert TEXT.count("```python") == len(RECIPES) + 1


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_runs_and_checks_itself(title: str, beginning: dict[str, Any]) -> None:
    code = RECIPES[title]
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    assert "assert " in code
    exec(compile(code, f"docs/research.md, {title}", "exec"), dict(beginning))
