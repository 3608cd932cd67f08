"""The recipes of docs/research.md run as printed, some after a given beginning."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "research.md").read_text()
BLOCKS = dict(re.findall(r"^##+ ([^\n]+)\n(?:(?!^##).)*?^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
BEGINNING = "Beginning of the recipes below"
RECIPES = {title: code for title, code in BLOCKS.items() if title != BEGINNING}
BEHIND = list(BLOCKS)[list(BLOCKS).index(BEGINNING) + 1 :]
"""Recipes that run after the beginning."""
AS_FOR_USERS = {"The equality gate"}
"""Recipes that need XLA's programs for users; other tests compile faster ones."""


@pytest.fixture(scope="module")
def beginning(stored_steps: None) -> dict[str, Any]:
    """The names that the beginning defines."""
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(BLOCKS[BEGINNING], "docs/research.md", "exec"), names)
    return names


def test_every_recipe_has_a_title() -> None:
    assert TEXT.count("```python") == len(BLOCKS) and len(RECIPES) >= 10
    assert AS_FOR_USERS <= RECIPES.keys() and set(BEHIND) < RECIPES.keys()


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_checks_itself(title: str) -> None:
    assert len([line for line in RECIPES[title].splitlines() if line.strip()]) <= 25
    assert "assert " in RECIPES[title]


@pytest.mark.slow
@pytest.mark.usefixtures("stored_steps")
@pytest.mark.parametrize("title", sorted(RECIPES.keys() - AS_FOR_USERS))
def test_a_recipe_runs(title: str, beginning: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = dict(beginning) if title in BEHIND else {"__name__": "recipe"}
    exec(compile(RECIPES[title], f"docs/research.md, {title}", "exec"), names)


@pytest.mark.long
@pytest.mark.parametrize("title", sorted(AS_FOR_USERS))
def test_a_recipe_runs_as_for_users(title: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", RECIPES[title]], cwd=tmp_path, env=environment, check=True)
