"""Meshes: axes, placement of arrays, and operations on split rows or vocabularies."""

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import hybridlm
from hybridlm import EngineConfig
from hybridlm.devices.mesh import AXES, read_mesh, with_all_axes
from hybridlm.devices.placement import ONE_DEVICE, Placement
from hybridlm.engine.warmup import all_shapes
from hybridlm.programs.shapes import lane_bucket
from hybridlm.rows.arrays import maker_of_zeros, zeros
from hybridlm.rows.parts import copy_row
from hybridlm.sampling.vocab_parallel import Vocabulary

MESH_WORDS = (
    "shard_map psum pmax pmin ppermute pbroadcast pgather pcast pvary all_gather all_to_all reduce_scatter axis_index"
).split()
"""Parts of the names of all primitives that need a mesh."""


def test_zeros_lie_where_their_types_say() -> None:
    over = Placement(hybridlm.mesh(data=2, model=2)).over(None, "model")
    types = (jax.ShapeDtypeStruct((1, 4), np.float32, sharding=over),) * 2
    assert all(item.sharding == over and not item.any() for r in (maker_of_zeros(types)(), zeros(types)) for item in r)


def test_one_device_has_no_mesh_in_its_steps(text_lm: hybridlm.LM) -> None:
    engine = text_lm.engine
    for shape in all_shapes(engine, only_full=True, drafts=True):
        step, _ = engine.programs.step(shape)
        text = str(jax.make_jaxpr(step)(*engine.example_arguments(shape)))
        for word in MESH_WORDS:
            assert word not in text, f"{shape}: {word}"


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
    assert ONE_DEVICE.prefill_lanes(3, 4) == 3 and lane_bucket(5, 6) == 6


def test_a_row_moves_between_devices_bit_for_bit() -> None:
    """Row numbers count rows of all devices; other rows and signs of zeros stay."""
    rng = np.random.default_rng(0)
    source, target = (rng.normal(size=(rows, 3)).astype(np.float32) for rows in (8, 4))
    source[:, 0] = -0.0
    specs = (P("data"), P("data"), P(), P())
    step = jax.jit(
        jax.shard_map(copy_row("data", "data"), mesh=hybridlm.mesh(data=4), in_specs=specs, out_specs=P("data"))
    )
    for read in range(8):
        write = (read + 1) % 4
        (actual,) = step(target, source, np.array([read], np.int32), np.array([write], np.int32))
        expected = target.copy()
        expected[write] = source[read]
        assert np.asarray(actual).tobytes() == expected.tobytes()


@pytest.mark.slow
def test_what_is_asked_of_split_logits_is_what_whole_ones_say() -> None:
    """Logits with ties between devices, with NaN and -inf."""
    rng = np.random.default_rng(0)
    logits = rng.integers(-3, 3, size=(12, 16)).astype(np.float32)
    logits[3, 5] = np.nan
    logits[4, 2:9] = -np.inf
    logits[5, 13] = np.inf
    token = rng.integers(16, size=12).astype(np.int32)
    token[6:] = logits[6:].argmax(axis=1)
    full, contents = Vocabulary(16), Vocabulary(4, devices=4)

    def asked(vocabulary: Vocabulary, logits: Any, token: Any) -> Any:
        best = [vocabulary.best(logits, count) for count in (1, 3, 6)]
        likely = vocabulary.is_most_likely(logits, token)
        return vocabulary.whole(logits), vocabulary.log_total(logits), vocabulary.logit(logits, token), best, likely

    over = jax.shard_map(
        partial(asked, contents), mesh=hybridlm.mesh(model=4), in_specs=(P(None, "model"), P()), out_specs=P()
    )
    actual, expected = jax.jit(over)(logits, token), asked(full, jnp.array(logits), jnp.array(token))
    good = np.arange(12) != 3  # top_k of NaN is not defined
    for item, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(item)[good], np.asarray(other)[good], rtol=1e-6)
    assert not actual[-1][3] and actual[-1][6:].all() and np.isnan(actual[1][3])
