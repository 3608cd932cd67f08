"""Rules over a mesh hold on each of eight virtual devices, for random programs.

One lane at a time is changed; lanes and other dimensions are split over any axes of the mesh, collectives go over any.
"""

import jax.numpy as jnp
import pytest
from idle_predictions import idle_faults
from instances.catalogue import instance
from instances.meshes import BUILDERS
from jaxpr_mutation import Subject
from mesh_predictions import mesh_faults
from mutants.meshes.split_rows import MUTANTS as SPLIT_ROWS
from mutants.packed import MUTANTS as PACKED
from predicted_owners import faults, predictions
from xla_equations import apply
from zoo.catalogue import PROGRAMS

from ir_passes.proof import packed_layout
from ir_passes.proof.owners import LaneRows


def wrong(name: str, seed: int, checked: dict[str, int]) -> list[str]:
    subject = Subject(instance(name, seed, with_idle=True), (0,), run=apply)
    return [*faults(subject), *idle_faults(subject), *mesh_faults(subject, checked)]


@pytest.mark.parametrize("name", ["psum", "all_to_all", "axis_index", "shard_map"])
def test_what_is_said_holds_on_each_device(name: str) -> None:
    assert wrong(name, 5, {}) == []


@pytest.mark.long
@pytest.mark.parametrize("name", BUILDERS)
def test_much_that_is_said_holds_on_each_device(name: str) -> None:
    checked: dict[str, int] = {}
    assert [fault for seed in range(40) for fault in wrong(name, seed, checked)] == []
    assert checked["owner"] > 1000, checked


SHARDED = [name for name in PROGRAMS if name.startswith("sharded")]
QUICK = ("sharded rows copied", "sharded channels of packed tokens")


@pytest.mark.parametrize("name", QUICK)
def test_what_is_said_of_rows_and_of_packed_tokens_on_a_mesh_holds(name: str) -> None:
    assert list(mesh_faults(Subject(PROGRAMS[name], (0,), run=apply))) == []


@pytest.mark.long
@pytest.mark.parametrize("name", SHARDED)
def test_what_is_said_of_sharded_programs_holds(name: str) -> None:
    assert list(mesh_faults(Subject(PROGRAMS[name], (1, 2, 3), run=apply))) == []


def test_lanes_inside_are_followed() -> None:
    split = [
        prediction.value.owner.split
        for seed in range(3)
        for prediction in predictions(Subject(instance("shard_map", seed, with_idle=True), (0,), run=apply)).values()
        if prediction.body and isinstance(prediction.value.owner, LaneRows)
    ]
    assert ("data",) in split
    assert () in split


def test_rows_on_two_devices_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare a row on one device that all devices read."""
    monkeypatch.setattr("ir_passes.proof.rules.addressing.pool_rows.device_fault", lambda *_: None)
    program = next(mutant.program for mutant in SPLIT_ROWS if mutant.id == "row-of-each-device")
    assert program is not None
    assert any("has rows on several devices" in fault for fault in mesh_faults(Subject(program, (0,), run=apply)))


@pytest.mark.slow
def test_tokens_of_another_lane_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes that begin one token late are claimed for the tokens."""
    late = lambda cu, tokens: iter([jnp.searchsorted(cu[1:] + 1, jnp.arange(tokens), side="right")])
    monkeypatch.setitem(packed_layout.SEARCHED, (1, 0), late)
    program = next(mutant.program for mutant in PACKED if mutant.id == "packed-channels-shifted")
    assert program is not None
    assert any("changed on device" in fault for fault in mesh_faults(Subject(program, (0,), run=apply)))


def test_lanes_of_another_device_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective over the axis that splits lanes is claimed to keep lanes apart."""
    monkeypatch.setattr("ir_passes.jaxpr.mesh.axes_of", lambda eqn: ())
    assert any("changed on device" in fault for fault in wrong("psum", 12, {}))
