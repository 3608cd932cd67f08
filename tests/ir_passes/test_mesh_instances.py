"""The rules of programs over a mesh on random programs, on eight virtual devices: what they say is so on each device.

One lane at a time is changed; lanes and other dimensions are split over any axes of the mesh, collectives go over any.
"""

import pytest
from idle_predictions import idle_faults
from instances.catalogue import instance
from instances.meshes import BUILDERS
from jaxpr_mutation import Subject
from mesh_predictions import mesh_faults
from predicted_owners import faults, predictions
from xla_equations import apply

from ir_passes.rules import meshes
from ir_passes.values import Rows


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


def test_lanes_inside_are_followed() -> None:
    split = [
        one.value.owner.split
        for seed in range(3)
        for one in predictions(Subject(instance("shard_map", seed, with_idle=True), (0,), run=apply)).values()
        if one.body and isinstance(one.value.owner, Rows)
    ]
    assert ("data",) in split
    assert () in split


def test_lanes_of_another_device_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective over the axis that splits lanes, said to leave each lane its own."""
    monkeypatch.setattr(meshes, "_axes", lambda params: ())
    assert any("changed on device" in fault for fault in wrong("psum", 12, {}))
