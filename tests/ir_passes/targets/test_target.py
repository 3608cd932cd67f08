"""Targets: names and figures, errors that name the extra, arguments that are placed, steps that cannot be called."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audited_steps import ONE, gather_compute_scatter, pool, slots, x
from jax.experimental import pallas as pl
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from jax.experimental.pallas import triton
from jax.sharding import NamedSharding, PartitionSpec

from ir_passes import compile_step, plan
from ir_passes.compile.planned_step import plan_step
from ir_passes.targets import Target, TargetError, as_target, local_target, named_targets, read_target
from ir_passes.targets import target as target_module
from ir_passes.targets.gpus import GPUS, TPUS


def args() -> tuple[jax.Array, ...]:
    return pool(), slots(), x()


def elsewhere(monkeypatch: pytest.MonkeyPatch, count: int = 1) -> Target:
    """An H100 whose devices are virtual CPUs, but not the first ones."""
    devices = jax.devices()[1 : 1 + count]
    monkeypatch.setattr(target_module, "_gpus", lambda one, target: devices)
    return read_target("nvidia-h100" if count == 1 else f"nvidia-h100:{count}")


@pytest.mark.parametrize("name", GPUS)
def test_gpus(name: str) -> None:
    one = read_target(name)
    assert (one.name, one.platform, one.count, one.is_local) == (name, "gpu", 1, False)
    assert one.memory == GPUS[name].memory and one.bandwidth == GPUS[name].bandwidth
    assert one.flops["bfloat16"] > one.flops["float32"]
    text = GPUS[name].config()
    assert f'device_description_str: "{one.device_kind}"' in text and f"device_memory_size: {one.memory}\n" in text
    assert text.count("{") == text.count("}") and ("ACCELERATED_FEATURES" in text) == (GPUS[name].capability >= (9, 0))


def double_kernel(x: Any, out: Any) -> None:
    out[...] = 2 * x[...]


# jax 0.12 deprecates the backend of these kernels (2026-11-28).
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend:DeprecationWarning")
@pytest.mark.parametrize("name", GPUS)
def test_pallas_kernels_are_lowered_without_a_device(name: str) -> None:
    """Later versions of JAX ask for the GPU in the program."""

    def doubled(x: jax.Array) -> jax.Array:
        params = triton.CompilerParams(num_warps=1, num_stages=1)
        return pl.pallas_call(double_kernel, out_shape=jax.typeof(x), compiler_params=params)(x)

    with read_target(name).tracing():
        traced = jax.jit(doubled).trace(jnp.ones(16))
    assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("name", "kind"), [("tpu-v4", "TPU v4"), ("tpu-v5e", "TPU v5 lite"), ("tpu-v6e", "TPU v6 lite")]
)
def test_tpus(name: str, kind: str) -> None:
    one = read_target(f"{name}:8")
    assert (one.name, one.platform, one.device_kind, one.count) == (f"{name}:8", "tpu", kind, 8)
    for count, shape in TPUS[name].shapes:
        assert count == 1 or np.prod([int(size) for size in shape.split("x")]) == count


def test_one_device_has_no_number() -> None:
    assert read_target("nvidia-h100:1") == read_target("nvidia-h100") != read_target("nvidia-h100:4")
    assert set(named_targets()) == {*GPUS, *TPUS}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h100", "nvidia-h100"),
        ("", "nvidia-h100"),
        ("local", "nvidia-h100"),
        ("nvidia-h100:", "1, 2, 3"),
        ("nvidia-h100:9", "7, 8"),
        ("nvidia-h100:x", "7, 8"),
        ("nvidia-h100:-1", "7, 8"),
        ("tpu-v5e:2", "1, 4, 8"),
    ],
)
def test_what_is_no_target(name: str, said: str) -> None:
    with pytest.raises(TargetError, match=f"expected.*{said}"):
        read_target(name)


@pytest.mark.parametrize(("name", "extra"), [("nvidia-h100", "target-cuda"), ("tpu-v5e", "target-tpu")])
def test_error_names_the_extra(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> None:
        raise ModuleNotFoundError(module)

    monkeypatch.setattr(target_module, "find_spec", missing)
    with pytest.raises(TargetError, match=rf"{name}: .*not installed.*hybridlm\[{extra}\]"):
        compile_step(gather_compute_scatter, args(), ONE, target=name)


def test_local_target_is_what_jax_has() -> None:
    one = local_target()
    assert (one.platform, one.count, one.is_local) == (jax.default_backend(), jax.local_device_count(), True)
    assert one.devices == tuple(jax.local_devices()) and one.place(given := args()) is given and one.compiler == ()
    assert as_target(None) == one and as_target(one) is one
    step = compile_step(gather_compute_scatter, args(), ONE, target=one)
    np.testing.assert_allclose(step(*args())[1], np.tanh(np.ones(4 * 64).reshape(4, 64)).sum(1), rtol=1e-6)
    assert step.target is None


def test_arguments_lie_on_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    one = elsewhere(monkeypatch)
    (device,) = one.devices
    given = (jnp.ones(3), np.float32(2), jax.ShapeDtypeStruct((2,), jnp.int32), 5)
    placed = one.place(given)
    assert [(leaf.shape, str(leaf.dtype)) for leaf in placed] == [
        ((3,), "float32"), ((), "float32"), ((2,), "int32"), ((), "int32"),
    ]  # fmt: skip
    assert all(leaf.sharding.device_set == {device} for leaf in placed)
    assert [leaf.weak_type for leaf in placed] == [False, False, False, True]


def test_meshes_are_of_the_targets_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    one = elsewhere(monkeypatch, 2)

    def on(devices: Any) -> jax.ShapeDtypeStruct:
        mesh = jax.sharding.Mesh(np.array(devices), ("data",))
        return jax.ShapeDtypeStruct((4,), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data")))

    assert one.place(on(one.devices)).sharding.device_set == set(one.devices)
    with pytest.raises(TargetError, match="expected arguments on a mesh of its devices"):
        one.place(on(jax.devices()[:2]))


def test_step_of_a_target_is_audited_and_cannot_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    one = elsewhere(monkeypatch)
    step = compile_step(gather_compute_scatter, args(), ONE, target=one)
    assert step.certificate.holds and step.target == one and step.kernels.moved > 0
    assert {device for place in jax.tree.leaves(step.compiled.input_shardings) for device in place.device_set} == set(
        one.devices
    )
    with pytest.raises(TargetError, match="compiled for nvidia-h100"):
        step(*(given := args()))
    assert not given[0].is_deleted()


def test_static_arguments_lie_on_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*given: Any, kind: str) -> Any:
        return gather_compute_scatter(*given)

    compiled = compile_step(
        step, args(), ONE, target=elsewhere(monkeypatch), kwargs={"kind": "plain"}, static_argnames="kind"
    )
    assert compiled.certificate.holds


def test_scratch_is_planned_for_a_target_and_refused_for_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    one = elsewhere(monkeypatch, 2)
    here, there = (
        (jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data"))),)
        for mesh in (jax.sharding.Mesh(np.array(devices), ("data",)) for devices in (jax.devices()[:1], one.devices))
    )
    double = lambda x: (jnp.sin(x) * jnp.cos(x),)
    assert plan(double, there, target=one).size == plan(double, there).size > 0
    with pytest.raises(TargetError, match="expected arguments on a mesh of its devices"):
        plan(double, here, target=one)
    single = elsewhere(monkeypatch)
    assert plan_step(gather_compute_scatter, args(), ONE, target=single).proved
    with pytest.raises(TargetError, match="expected one of"):
        plan_step(gather_compute_scatter, args(), ONE, target="h100")


def test_jax_keeps_no_program_of_a_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its cache would load one on devices that are not there. JAX is asked before whether there is a cache."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    try:
        for name, value in zip(names, (str(tmp_path), 0.0), strict=True):
            jax.config.update(name, value)
        reset_cache()
        # Steps with a certificate do not use the cache anyway.
        compile_step(gather_compute_scatter, args(), ONE, certify="off")
        kept = set(tmp_path.iterdir())
        compile_step(gather_compute_scatter, args(), ONE, certify="off", target=elsewhere(monkeypatch))
        assert kept and set(tmp_path.iterdir()) == kept
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        reset_cache()
