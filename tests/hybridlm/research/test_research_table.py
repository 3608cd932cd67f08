"""The table of docs/research.md: each model's readable and changeable values."""

from pathlib import Path

import jax
import numpy as np
import pytest
from random_checkpoint import FAMILIES
from tiny_variants import variant

from hybridlm import Captured, Intervention
from hybridlm.pictures import _recurrent
from models import family_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "research.md").read_text()
HEAD = "| model | " + " | ".join(
    ["`recurrent`", "`conv`", "heads of recurrence", "heads of attention", "experts", "`state_history`"]
) + " |"  # fmt: skip

EDITED = ("recurrent", "conv")
"""Roles of states that can be changed, the first columns; tests/hybridlm/steps/test_steps_by_page.py compares them."""
LABELS = {"ling_lightning": "bailing_hybrid 2.5"}
"""Rows of a family with several kinds of layers."""


def row(name: str) -> str:
    text = {**variant(name).config, **FAMILIES[name]}
    family = family_of(text)
    model = family.abstract(family.read_config(text))
    arrays = {array.role for array in jax.tree.leaves(model.state_arrays())}
    kinds = {kind for each in model.sites() for kind in each}
    has = [item in arrays for item in EDITED] + [item in kinds for item in ("recurrent", "attention", "expert")]
    return (
        f"| {LABELS.get(name, family.name)} | "
        + " | ".join("✓" if item else "—" for item in [*has, bool(_recurrent(model))])
        + " |"
    )


def test_the_page_lists_the_parts_of_each_model() -> None:
    table = [HEAD, "|---|" + "---|" * 6, *(row(name) for name in FAMILIES)]
    assert "\n".join(table) in PAGE, "\n".join(["expected in docs/research.md:", *table])


@pytest.mark.parametrize("name", FAMILIES)
def test_every_read_state_is_put_back(name: str) -> None:
    """By the names of its layer and array, also inside a shared block of Zamba2."""
    text = {**variant(name).config, **FAMILIES[name]}
    family = family_of(text)
    arrays = family.abstract(family.read_config(text)).state_arrays()
    sites = {
        f"layers{jax.tree_util.keystr(path)}": (path[0].idx, path[-1].name)
        for path, array in jax.tree_util.tree_leaves_with_path(arrays)
        if array.role in EDITED
    }
    states = {site: np.full((1, 2), number) for number, site in enumerate(sites)}
    captured = Captured(np.array([5]), {}, states)
    changes = Intervention.patch(captured, 5)
    assert [(change.layer, change.array) for change in changes] == list(sites.values())
    for (layer, array), expected in zip(sites.values(), states.values(), strict=True):
        assert captured.state(layer, array) is expected
