"""The machine that a step is compiled for: local devices, or by name a GPU or TPU that need not be there."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import jax
from jax.experimental import topologies

from ir_passes.targets.gpus import GPUS, KNOWN_KINDS, MAX_GPUS, Gpu
from ir_passes.targets.tpus import TPUS, Tpu

LOCAL = "local"
NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Settings under which libtpu neither looks for a TPU nor asks who else uses it. It reads them when it is loaded."""
CUDA_PACKAGES = {
    ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"): "jax-cuda13-pjrt",
    ("jax_cuda13_plugin", "jax_cuda12_plugin"): "jax-cuda13-plugin",
}
"""Modules, one of which is enough, and the package that has the first."""

CUDA_VERSIONS = ("jax-cuda13-pjrt", "jax-cuda12-pjrt", "nvidia-cuda-nvcc", "nvidia-nvvm")
"""Packages whose versions change what XLA makes for a GPU."""


class TargetError(ValueError):
    """A name that is no target, or a target whose compiler is not installed; says what to do."""


@dataclass(frozen=True)
class Target:
    """The machine that a step is compiled for.

    Attributes:
        name: as in `read_target`, or "local".
        platform: "cpu", "gpu" or "tpu".
        device_kind: as JAX names it.
        count: number of devices.
        memory: bytes of each device; None where unknown.
        bandwidth: bytes per second that each device can read or write in its memory; None where unknown.
        flops: dtype -> most operations per second of products of such operands on each device; empty where unknown.
    """

    name: str
    platform: str
    device_kind: str
    count: int
    memory: int | None = None
    bandwidth: int | None = None
    flops: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def is_local(self) -> bool:
        """Whether steps can run on it in this process."""
        return self.name == LOCAL

    @cached_property
    def devices(self) -> tuple[Any, ...]:
        """The devices, for shardings and meshes; of a target that is not local, programs can only be compiled for them.

        Raises:
            TargetError: its compiler is not installed; names the extra.
        """
        if self.is_local:
            return tuple(jax.local_devices())
        base = self.name.partition(":")[0]
        found = _gpus(GPUS[base], self) if base in GPUS else _tpus(TPUS[base], self)
        return tuple(found[: self.count])

    def tracing(self) -> AbstractContextManager[Any]:
        """Return a context in which steps are traced: JAX asks for a GPU where Pallas kernels are lowered for one."""
        if self.is_local or self.platform != "gpu":
            return nullcontext()
        gpu = GPUS[self.name.partition(":")[0]]
        device = jax.sharding.AbstractDevice(KNOWN_KINDS[gpu.capability], gpu.cores, "gpu")
        mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
        return jax.sharding.use_abstract_mesh(mesh)

    @property
    def compiler(self) -> tuple[str, ...]:
        """Packages that compile for it, beside JAX, each with its version; none for local devices."""
        if self.is_local:
            return ()
        names = CUDA_VERSIONS if self.platform == "gpu" else ("libtpu",)
        return tuple(f"{name} {metadata.version(name)}" for name in names if _has(name))

    def place(self, args: Any) -> Any:
        """Return the arguments of a step by their types, those without a mesh on the first device.

        Args:
            args: a tree of arrays and `jax.ShapeDtypeStruct`.

        Raises:
            TargetError: an argument lies on a mesh of other devices, or the compiler is not installed.
        """
        if self.is_local:
            return args
        here, alone = set(self.devices), jax.sharding.SingleDeviceSharding(self.devices[0])

        def placed(one: Any) -> jax.ShapeDtypeStruct:
            given, typed = getattr(one, "sharding", None), jax.typeof(one) if not _is_type(one) else one
            if not isinstance(given, jax.sharding.NamedSharding):
                given = alone
            elif isinstance(given.mesh, jax.sharding.AbstractMesh) or not given.device_set <= here:
                raise TargetError(
                    f"target {self.name}: expected arguments on a mesh of its devices (`target.devices`), got one on "
                    f"{given.mesh}"
                )
            weak = bool(getattr(typed, "weak_type", False))
            return jax.ShapeDtypeStruct(typed.shape, typed.dtype, sharding=given, weak_type=weak)

        return jax.tree.map(placed, args)


def read_target(name: str) -> Target:
    """Return the target of a name: "nvidia-h100", or with a number of devices "nvidia-h100:4", "tpu-v5e:8".

    Nothing is loaded: whether its compiler is installed shows when its devices are asked for.

    Raises:
        TargetError: there is no such target, or it does not come in this number.
    """
    base, colon, number = name.partition(":")
    if base not in GPUS and base not in TPUS:
        raise TargetError(
            f"target: expected one of {', '.join(named_targets())}, or one with a number of devices as in "
            f"nvidia-h100:4, got {name!r}"
        )
    counts = range(1, MAX_GPUS + 1) if base in GPUS else [count for count, _ in TPUS[base].shapes]
    if colon and not (number.isascii() and number.isdecimal() and int(number) in counts):
        raise TargetError(
            f"target {name!r}: expected {', '.join(map(str, counts))} devices behind the colon, got {number!r}"
        )
    one: Gpu | Tpu = GPUS[base] if base in GPUS else TPUS[base]
    count, platform = int(number) if colon else 1, "gpu" if base in GPUS else "tpu"
    flops = {"bfloat16": one.half, "float16": one.half, "float32": one.single}
    return Target(
        base if count == 1 else f"{base}:{count}", platform, one.kind, count, one.memory, one.bandwidth, flops
    )


def local_target() -> Target:
    """Return the target of this process's devices; the figures of one that has a name are known.

    This is the one place that asks JAX on which platform it runs.
    """
    devices = jax.local_devices()
    known = next((name for name, one in {**GPUS, **TPUS}.items() if one.kind == devices[0].device_kind), None)
    figures = None if known is None else read_target(known)
    return Target(
        LOCAL,
        devices[0].platform,
        devices[0].device_kind,
        len(devices),
        None if figures is None else figures.memory,
        None if figures is None else figures.bandwidth,
        {} if figures is None else figures.flops,
    )


def as_target(given: Target | str | None) -> Target:
    """Return a target that a user gave, by its name if it is one; None is the local devices.

    Raises:
        TargetError: as `read_target`.
    """
    if isinstance(given, Target):
        return given
    return local_target() if given is None else read_target(given)


def named_targets() -> tuple[str, ...]:
    """Return the names of all targets that need not be there."""
    return (*GPUS, *TPUS)


def _gpus(one: Gpu, target: Target) -> list[Any]:
    missing = [package for modules, package in CUDA_PACKAGES.items() if not any(map(_installed, modules))]
    if missing:
        raise _not_installed(target, missing, "target-cuda")
    try:
        shape = f"1x1x{target.count}"
        return topologies.get_topology_desc(platform="cuda", target_config=one.config(), topology=shape).devices
    except (jax.errors.JaxRuntimeError, RuntimeError) as error:
        raise TargetError(f"target {target.name}: XLA does not take it: {error}") from error


def _tpus(one: Tpu, target: Target) -> list[Any]:
    if not _installed("libtpu"):
        raise _not_installed(target, ["libtpu"], "target-tpu")
    if local_target().platform != "tpu":
        for name, value in NO_TPU.items():
            os.environ.setdefault(name, value)
    name = f"{one.version}:{dict(one.shapes)[target.count]}"
    try:
        return topologies.get_topology_desc(topology_name=name, platform="tpu", **dict(one.settings)).devices
    except (jax.errors.JaxRuntimeError, RuntimeError) as error:
        raise TargetError(f"target {target.name}: libtpu does not take it: {error}") from error


def _not_installed(target: Target, packages: list[str], extra: str) -> TargetError:
    names = " and ".join(packages)
    return TargetError(
        f'target {target.name}: its compiler needs {names}, which is not installed: pip install "hybridlm[{extra}]"'
    )


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _has(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def _is_type(one: Any) -> bool:
    return isinstance(one, jax.ShapeDtypeStruct)
