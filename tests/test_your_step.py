"""The recipes of docs/steps/your-step.md and its second page run as printed."""

import re
from pathlib import Path

import pytest

STEPS = Path(__file__).resolve().parents[1] / "docs" / "steps"
TEXTS = {name: (STEPS / name).read_text() for name in ("your-step.md", "layouts-and-kernels.md")}
SECTION = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPES = {(name, title): code for name, text in TEXTS.items() for title, code in SECTION.findall(text)}
WITHOUT_RECIPE = {"The contract", "The stages", "Recipes"}


def test_every_section_has_one_recipe() -> None:
    titles = [(name, title) for name, text in TEXTS.items() for title in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    assert list(RECIPES) == [(name, title) for name, title in titles if title not in WITHOUT_RECIPE]
    assert sum(text.count("```python") for text in TEXTS.values()) == len(RECIPES)


@pytest.mark.parametrize(("name", "title"), RECIPES)
def test_a_recipe_runs_and_checks_itself(name: str, title: str) -> None:
    code = RECIPES[name, title]
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    assert "assert " in code
    exec(compile(code, f"docs/steps/{name}, {title}", "exec"), {"__name__": "recipe"})
