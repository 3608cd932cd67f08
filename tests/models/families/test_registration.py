"""Families from outside: registered by a process, or by the entry points of a distribution."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from random_checkpoint import FAMILIES as CHECKPOINTS
from tiny_variants import variant

from hybridlm.families import Stateful
from models import FAMILIES, Family, FamilyError, UnsupportedModel, families, family_of, register_family
from models.families import registry
from models.families.registry import family_named

OUTSIDE = replace(FAMILIES[0], name="outside", model_types=("outside",), architectures=("OutsideForCausalLM",))
MODULE = """
from dataclasses import replace
from hybridlm.families import Family, families
from models import FAMILIES
OUTSIDE = replace(FAMILIES[0], name="outside", model_types=("outside",), architectures=("OutsideForCausalLM",))
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {})
    registry._read_entry_points.cache_clear()
    yield
    registry._read_entry_points.cache_clear()


def distribution(folder: Path, value: str = "outside_family:OUTSIDE", module: str = MODULE) -> Path:
    """Write an installed distribution with one entry point."""
    info = folder / "outside-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[hybridlm.families]\noutside = {value}\n")
    (folder / "outside_family.py").write_text(module)
    return folder


def test_a_registered_family_is_found() -> None:
    with pytest.raises(UnsupportedModel):
        family_of({"model_type": "outside"})
    register_family(OUTSIDE, "test 1.0")
    register_family(OUTSIDE)
    assert family_of({"model_type": "outside"}) is OUTSIDE
    assert families()[OUTSIDE] == "test 1.0" and families()[FAMILIES[0]] == registry.BUILT_IN


@pytest.mark.parametrize("family", [
    replace(OUTSIDE, name="lfm2"),
    replace(OUTSIDE, model_types=("outside", "lfm2_vl")),
    replace(OUTSIDE, architectures=("Lfm2ForCausalLM",)),
], ids=["name", "wrapper", "class"])  # fmt: skip
def test_names_of_others_are_refused(family: Family) -> None:
    with pytest.raises(FamilyError):
        register_family(family)
    assert list(families()) == list(FAMILIES)


@pytest.mark.slow
def test_commands_read_entry_points_but_not_of_the_working_directory(tmp_path: Path) -> None:
    folder = distribution(tmp_path / "site")
    command = [sys.executable, "-m", "hybridlm", "families"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    installed = subprocess.run(
        command, cwd=tmp_path, env=env | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=True
    )
    assert "outside 1.2" in installed.stdout and "lfm2_vl" in installed.stdout
    run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    assert "outside" not in run.stdout and "lfm2_moe" in run.stdout


@pytest.mark.parametrize("module", ["raise RuntimeError('broken')", "OUTSIDE = 3"], ids=["raises", "no family"])
def test_a_broken_entry_point_names_its_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str):
    monkeypatch.syspath_prepend(distribution(tmp_path, module=module))
    monkeypatch.delitem(sys.modules, "outside_family", raising=False)
    with pytest.raises(FamilyError, match="outside 1.2"):
        family_of({"model_type": "outside"})
    assert family_of({"model_type": "lfm2"}).name == "lfm2"
    sys.modules.pop("outside_family", None)


def stateful(name: str) -> list[Stateful]:
    """Layers of a checkpoint's model."""
    fields = {**variant(name).config, **CHECKPOINTS[name]}
    family = family_of(fields)
    return family.abstract(family.read_config(fields)).stateful()


@pytest.mark.parametrize("family", sorted({variant(name).family for name in CHECKPOINTS}))
def test_state_formulas_match_models(family: str) -> None:
    """The checkpoints of a family have all its kinds of layers together."""
    layers = [layer for name in CHECKPOINTS if variant(name).family == family for layer in stateful(name)]
    arrays = {
        f"{type(node).__name__} {jax.tree_util.keystr(path, simple=True, separator='.')}": array.formula(
            jnp.bfloat16
        ).partition(" = ")[0]
        for layer in layers
        for node in getattr(layer, "layers", [layer])
        for path, array in jax.tree_util.tree_leaves_with_path(node.state_arrays())
    }
    formulas = family_named(family)[0].state_formulas()
    assert dict(line.removesuffix(" per token").split(": ") for line in formulas) == arrays


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_page_has_the_state_of_each_family(family: Family, root: Path) -> None:
    page = (root / "docs" / "checkpoints" / "families.md").read_text()
    types = ", ".join(f"`{name}`" for name in family.model_types)
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {types} |")]
    formulas = [line.split(" ", 1) for line in family.state_formulas()]
    assert row.split(" | ")[-1] == ", ".join(dict.fromkeys(layer for layer, _ in formulas)) + " |"
    for layer, _ in formulas:
        state = "; ".join(formula for other, formula in formulas if other == layer)
        assert f"| {layer} | {state} |" in page
