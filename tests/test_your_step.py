"""Recipes of docs/steps/your-step.md and its second page, and blocks of the runtime contract, run as printed."""

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from hybridlm.compiler import IsolationError

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


def test_the_wrong_step_raises_the_printed_error() -> None:
    (code,) = re.findall(r"^```py\n(.*?)^```$", TEXTS["your-step.md"], re.MULTILINE | re.DOTALL)
    printed, *_ = re.findall(r"^```text\n(.*?)^```$", TEXTS["your-step.md"], re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(code, "step.py", "exec"), names)
    with pytest.raises(IsolationError) as raised:
        names["step"](jnp.zeros((3, 4)), jnp.ones((3, 4)))
    assert f"IsolationError: {raised.value}\n" == printed


def test_the_blocks_of_the_runtime_contract_run_in_order() -> None:
    text, names = (STEPS / "runtime-contract.md").read_text(), {"__name__": "recipe"}
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, "docs/steps/runtime-contract.md", "exec"), names)
