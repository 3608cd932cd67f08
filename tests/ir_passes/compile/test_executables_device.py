"""The device of a step follows the executable and arguments, not the process."""

import jax
import jax.numpy as jnp
import pytest
from audited_steps import right_steps

from ir_passes.compile.compile_step import compile_step
from ir_passes.compile.versions import current_versions
from ir_passes.jaxpr.placement import device_of

STEP = right_steps()["gather, compute, scatter"]


def test_platform_matches_the_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert STEP.executable().platform == "cpu"


def test_default_device_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def devices() -> None:
        raise AssertionError("the arguments say where the step will run")

    monkeypatch.setattr(jax, "devices", devices)
    assert compile_step(STEP.fn, STEP.args, STEP.contract).certificate.versions.platform == "cpu"


def test_certificate_names_the_device_of_the_arguments() -> None:
    class Device:
        id, platform, device_kind = 3, "gpu", "H100"

    class Place:
        device_set = frozenset({Device()})

    class Argument:
        sharding = Place()

    abstract = jax.sharding.NamedSharding(jax.sharding.AbstractMesh((2,), ("data",)), jax.sharding.PartitionSpec())
    arguments = (1.0, jax.ShapeDtypeStruct((2,), jnp.float32, sharding=abstract), Argument())
    assert device_of(arguments[:2]) is None and device_of((jnp.ones(1),)) == jax.devices()[0]
    versions = current_versions(None, device_of(arguments))
    assert (versions.platform, versions.device) == ("gpu", "H100")
    single_device_sharding = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    placed = tuple(jax.ShapeDtypeStruct(arg.shape, arg.dtype, sharding=single_device_sharding) for arg in STEP.args)
    assert device_of(placed) == jax.devices()[1]
