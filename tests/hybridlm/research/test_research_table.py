"""The table of docs/research.md: each model's readable and changeable values."""

from pathlib import Path

import jax
from random_checkpoint import FAMILIES
from tiny_variants import variant

from hybridlm.pictures import _recurrent
from hybridlm.steps.edit import EDITED
from models import family_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "research.md").read_text()
HEAD = "| model | " + " | ".join(
    ["`recurrent`", "`conv`", "heads of recurrence", "heads of attention", "experts", "`state_history`"]
) + " |"  # fmt: skip

LABELS = {"ling_lightning": "bailing_hybrid 2.5"}
"""Rows of a family with several kinds of layers."""


def row(name: str) -> str:
    text = {"model_type": variant(name).family, **variant(name).text, **FAMILIES[name]}
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


def test_the_page_says_which_model_has_what() -> None:
    table = [HEAD, "|---|" + "---|" * 6, *(row(name) for name in FAMILIES)]
    assert "\n".join(table) in PAGE, "\n".join(["expected in docs/research.md:", *table])
