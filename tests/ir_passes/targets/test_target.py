"""Targets: names and figures, errors with extras, placed arguments, uncallable steps."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audited_steps import ONE, gather_compute_scatter, pool, slots, x
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import NamedSharding, PartitionSpec
from jax_settings import jax_settings

from hybridlm.compiler import planned
from ir_passes import compile_step, plan
from ir_passes.targets import Target, TargetError, as_target, local_target, named_targets, read_target
from ir_passes.targets import target as target_module
from ir_passes.targets.gpus import GPUS, TPUS
from ir_passes.targets.kernel_limits import KernelResources


def args() -> tuple[jax.Array, ...]:
    return pool(), slots(), x()


def elsewhere(monkeypatch: pytest.MonkeyPatch, count: int = 1) -> Target:
    """An H100 with virtual CPUs as devices, not the first ones."""
    devices = jax.devices()[1 : 1 + count]
    monkeypatch.setattr(target_module, "_gpus", lambda item, target: devices)
    return read_target("nvidia-h100" if count == 1 else f"nvidia-h100:{count}")


@pytest.mark.parametrize("name", GPUS)
def test_gpus(name: str) -> None:
    target = read_target(name)
    assert (target.name, target.platform, target.count, target.is_local) == (name, "gpu", 1, False)
    assert target.memory == GPUS[name].memory and target.bandwidth == GPUS[name].bandwidth
    assert target.flops["bfloat16"] > target.flops["float32"]
    text = GPUS[name].config()
    assert (
        f'device_description_str: "{target.device_kind}"' in text and f"device_memory_size: {target.memory}\n" in text
    )
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
    target = read_target(f"{name}:8")
    assert (target.name, target.platform, target.device_kind, target.count) == (f"{name}:8", "tpu", kind, 8)
    for count, shape in TPUS[name].shapes:
        assert count == 1 or np.prod([int(size) for size in shape.split("x")]) == count


def test_one_device_has_no_number() -> None:
    assert read_target("nvidia-h100:1") == read_target("nvidia-h100") != read_target("nvidia-h100:4")
    assert set(named_targets()) == {*GPUS, *TPUS}


@pytest.mark.parametrize(("name", "message"), [
    ("h100", "nvidia-h100"), ("", "nvidia-h100"), ("local", "nvidia-h100"), ("nvidia-h100:", "1, 2, 3"),
    ("nvidia-h100:9", "7, 8"), ("nvidia-h100:x", "7, 8"), ("nvidia-h100:-1", "7, 8"), ("tpu-v5e:2", "1, 4, 8"),
])  # fmt: skip
def test_wrong_names_of_targets_are_refused(name: str, message: str) -> None:
    with pytest.raises(TargetError, match=f"expected.*{message}"):
        read_target(name)


@pytest.mark.parametrize(("name", "extra"), [("nvidia-h100", "target-cuda"), ("tpu-v5e", "target-tpu")])
def test_error_names_the_extra(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> None:
        raise ModuleNotFoundError(module)

    monkeypatch.setattr(target_module, "find_spec", missing)
    with pytest.raises(TargetError, match=rf"{name}: .*not installed.*hybridlm\[{extra}\]"):
        compile_step(gather_compute_scatter, args(), ONE, target=name)


def test_local_target_is_the_device_of_jax() -> None:
    item = local_target()
    assert (item.platform, item.count, item.is_local) == (jax.default_backend(), jax.local_device_count(), True)
    assert item.devices == tuple(jax.local_devices()) and item.place(extra := args()) is extra and item.compiler == ()
    assert as_target(None) == item and as_target(item) is item
    step = compile_step(gather_compute_scatter, args(), ONE, target=item)
    np.testing.assert_allclose(step(*args())[1], np.tanh(np.ones(4 * 64).reshape(4, 64)).sum(1), rtol=1e-6)
    assert step.target is None


def test_arguments_lie_on_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    item = elsewhere(monkeypatch)
    (device,) = item.devices
    operands = (jnp.ones(3), np.float32(2), jax.ShapeDtypeStruct((2,), jnp.int32), 5)
    placed = item.place(operands)
    assert [(leaf.shape, str(leaf.dtype)) for leaf in placed] == [
        ((3,), "float32"), ((), "float32"), ((2,), "int32"), ((), "int32"),
    ]  # fmt: skip
    assert all(leaf.sharding.device_set == {device} for leaf in placed)
    assert [leaf.weak_type for leaf in placed] == [False, False, False, True]


def test_meshes_are_of_the_targets_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    item = elsewhere(monkeypatch, 2)

    def on(devices: Any) -> jax.ShapeDtypeStruct:
        mesh = jax.sharding.Mesh(np.array(devices), ("data",))
        return jax.ShapeDtypeStruct((4,), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data")))

    assert item.place(on(item.devices)).sharding.device_set == set(item.devices)
    with pytest.raises(TargetError, match="expected arguments on a mesh of its devices"):
        item.place(on(jax.devices()[:2]))


def test_step_of_a_target_is_audited_and_cannot_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    item = elsewhere(monkeypatch)
    step = compile_step(gather_compute_scatter, args(), ONE, target=item)
    assert step.certificate.holds and step.target == item and step.kernels.moved > 0
    assert {device for place in jax.tree.leaves(step.compiled.input_shardings) for device in place.device_set} == set(
        item.devices
    )
    with pytest.raises(TargetError, match="compiled for nvidia-h100"):
        step(*(settings := args()))
    assert not settings[0].is_deleted()


def test_static_arguments_lie_on_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    step = lambda *args, kind: gather_compute_scatter(*args)
    compiled = compile_step(
        step, args(), ONE, target=elsewhere(monkeypatch), kwargs={"kind": "plain"}, static_argnames="kind"
    )
    assert compiled.certificate.holds


def test_scratch_is_planned_for_a_target_and_refused_for_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    item = elsewhere(monkeypatch, 2)
    source, target = (
        (jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data"))),)
        for mesh in (jax.sharding.Mesh(np.array(devices), ("data",)) for devices in (jax.devices()[:1], item.devices))
    )
    double = lambda x: (jnp.sin(x) * jnp.cos(x),)
    assert plan(double, target, target=item).size == plan(double, target).size > 0
    with pytest.raises(TargetError, match="expected arguments on a mesh of its devices"):
        plan(double, source, target=item)
    single = elsewhere(monkeypatch)
    assert planned.plan_step(gather_compute_scatter, args(), ONE, target=single).proved
    with pytest.raises(TargetError, match="expected one of"):
        planned.plan_step(gather_compute_scatter, args(), ONE, target="h100")


def test_jax_keeps_no_program_of_a_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cached program would need absent devices; JAX is asked for a cache first."""
    with jax_settings(jax_compilation_cache_dir=str(tmp_path), jax_persistent_cache_min_compile_time_secs=0.0):
        # Steps with a certificate do not use the cache anyway.
        compile_step(gather_compute_scatter, args(), ONE, certify="off")
        saved = set(tmp_path.iterdir())
        compile_step(gather_compute_scatter, args(), ONE, certify="off", target=elsewhere(monkeypatch))
        assert saved and set(tmp_path.iterdir()) == saved


def test_limits_of_threads_and_registers_are_reported() -> None:
    assert KernelResources("small_kernel", 128, 255, 20).faults() == ()
    assert KernelResources("large_kernel", 512, 200, 0).faults() == (
        "large_kernel: 102,400 registers of a program instance, expected at most 65,536",
    )
    assert KernelResources("spilling_kernel", 128, 255, 132).faults() == (
        "spilling_kernel: 132 spilled bytes of a thread, expected at most 128",
    )
    assert len(KernelResources("huge_kernel", 2048, 256, 0).faults()) == 3
