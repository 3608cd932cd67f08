"""The recipes of docs/steps/your-step.md, each run as it stands, in 10 to 25 lines."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "steps" / "your-step.md").read_text()
RECIPES = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


def test_every_section_has_one_recipe() -> None:
    assert list(RECIPES) == re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    assert TEXT.count("```python") == len(RECIPES)


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_runs_and_checks_itself(title: str) -> None:
    code = RECIPES[title]
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    assert "assert " in code
    exec(compile(code, f"docs/steps/your-step.md, {title}", "exec"), {"__name__": "recipe"})
