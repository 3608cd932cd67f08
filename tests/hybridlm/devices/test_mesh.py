"""Meshes: axes, placement of arrays, and operations on split rows or vocabularies."""

from typing import Any, cast

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

import hybridlm
from hybridlm import EngineConfig
from hybridlm.devices.mesh import AXES, read_mesh, with_all_axes
from hybridlm.devices.placement import ONE_DEVICE, Placement


def test_a_mesh_has_the_axes_in_order() -> None:
    mesh = hybridlm.mesh(data=2, expert=4)
    assert mesh.axis_names == AXES and mesh.shape == {"data": 2, "model": 1, "expert": 4}
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert read_mesh(" data=2, expert=4") == mesh and read_mesh(None) is None


@pytest.mark.parametrize(("sizes", "message"), [
    ({"data": 16}, "16 devices, and there are 8 .cpu.*xla_force_host_platform_device_count=16"),
    ({"model": 0}, "model: expected a whole number of at least 1, got 0"),
    ({"expert": True}, "expert: expected a whole number"),
])  # fmt: skip
def test_meshes_that_cannot_be(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hybridlm.mesh(**cast(Any, sizes))


@pytest.mark.parametrize("text", ["", "2", "data=2,data=2", "lanes=2", "data=x", "data=2;model=2"])
def test_texts_that_name_no_mesh(text: str) -> None:
    with pytest.raises(ValueError, match="--mesh: expected sizes of some of data, model, expert"):
        read_mesh(text)


def test_meshes_of_users() -> None:
    """Axes in any order, some of them, of any type."""
    devices = np.array(jax.devices()).reshape(2, 4)
    result = with_all_axes(Mesh(devices, ("model", "data"), axis_types=(AxisType.Explicit,) * 2))
    assert result.shape == {"data": 4, "model": 2, "expert": 1} and set(result.axis_types) == {AxisType.Auto}
    assert (result.devices[:, :, 0] == devices.T).all()
    with pytest.raises(ValueError, match=r"the axes x, y mean nothing here; expected some of data, model, expert"):
        with_all_axes(Mesh(devices, ("x", "y")))
    with pytest.raises(TypeError, match="expected hybridlm.mesh"):
        with_all_axes(8)  # type: ignore[arg-type]  # wrong on purpose


def test_lanes_that_do_not_divide() -> None:
    mesh = hybridlm.mesh(data=4)
    assert EngineConfig(mesh=mesh).place().rows_over == "data"
    with pytest.raises(ValueError, match=r"6 lanes cannot be split over data=4 devices; 4 or 8 would do"):
        EngineConfig(mesh=mesh, lanes=6).place()
    with pytest.raises(ValueError, match=r"3 lanes .*; 4 would do"):
        EngineConfig(mesh=mesh, lanes=3).place()
    with pytest.raises(ValueError, match="sanitize"):
        EngineConfig(mesh=mesh, sanitize=True).place()


def test_a_model_that_does_not_divide(text_lm: hybridlm.LM) -> None:
    with pytest.raises(ValueError, match=r"vocab_size = 97 is not divided by 2 devices along 'model'"):
        hybridlm.load(text_lm.path, mesh=hybridlm.mesh(model=2))


def test_pools_have_as_many_rows_on_every_device(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, over = text_lm.engine, Placement(hybridlm.mesh(data=4))
    assert engine.buckets(3) == [1, 2, 3]
    monkeypatch.setattr(engine, "placement", over)
    monkeypatch.setattr(engine, "_min_rows", 4)
    assert engine.buckets(12) == [4, 8, 12]
    assert [engine.bucket(count, 24) for count in (1, 4, 5, 9, 17, 24)] == [4, 4, 8, 16, 24, 24]
    assert [over.prefill_lanes(lanes, 4) for lanes in (4, 12)] == [4, 4]
    assert Placement(hybridlm.mesh(8)).prefill_lanes(16, 4) == 8
    assert ONE_DEVICE.prefill_lanes(3, 4) == 3
