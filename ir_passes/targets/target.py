"""Machine that a step is compiled for: local devices, or a named device."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import jax
from jax.experimental import topologies

from ir_passes.targets.gpus import GPUS, KNOWN_KINDS, MAX_GPUS, TPUS, Gpu, Tpu

LOCAL = "local"
NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Settings for libtpu's load, so that it looks for no TPU and no other user."""
CUDA_PACKAGES = {
    ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"): "jax-cuda13-pjrt",
    ("jax_cuda13_plugin", "jax_cuda12_plugin"): "jax-cuda13-plugin",
}
"""Alternative modules -> package of the first module."""

CUDA_VERSIONS = ("jax-cuda13-pjrt", "jax-cuda12-pjrt", "nvidia-cuda-nvcc", "nvidia-nvvm")
"""Packages that affect XLA's GPU programs."""


class TargetError(ValueError):
    """Unknown target, no compiler for it, or a kernel beyond its limits; with a remedy."""


@dataclass(frozen=True)
class Target:
    """Machine that a step is compiled for.

    Attributes:
        name: as in `read_target`, or "local".
        device_kind: of JAX.
        memory: bytes per device, or None.
        bandwidth: memory bytes per second and device, or None.
        flops: dtype -> peak operations per second and device of products.
        cache: bytes of a GPU's last cache, or 0.
    """

    name: str
    platform: str
    device_kind: str
    count: int
    memory: int | None = None
    bandwidth: int | None = None
    flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    cache: int = 0

    @property
    def is_local(self) -> bool:
        """True if steps can run on it in this process."""
        return self.name == LOCAL

    @cached_property
    def devices(self) -> tuple[Any, ...]:
        """Devices for shardings and meshes; TargetError without the compiler of an absent target."""
        if self.is_local:
            return tuple(jax.local_devices())
        base = self.name.partition(":")[0]
        devices = _gpus(GPUS[base], self) if base in GPUS else _tpus(TPUS[base], self)
        return tuple(devices[: self.count])

    def tracing(self) -> AbstractContextManager[Any]:
        """Return a context for tracing: Pallas kernels are lowered for a known GPU."""
        if self.is_local or self.platform != "gpu":
            return nullcontext()
        gpu = GPUS[self.name.partition(":")[0]]
        device = jax.sharding.AbstractDevice(KNOWN_KINDS[gpu.capability], gpu.cores, "gpu")
        mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
        return jax.sharding.use_abstract_mesh(mesh)

    @property
    def compiler(self) -> tuple[str, ...]:
        """Compiler packages with versions, without JAX; () for local devices."""
        if self.is_local:
            return ()
        names = CUDA_VERSIONS if self.platform == "gpu" else ("libtpu",)
        return tuple(f"{name} {metadata.version(name)}" for name in names if _has(name))

    def place(self, args: Any) -> Any:
        """Return arguments as types, by default on the first device; may raise TargetError."""
        if self.is_local:
            return args
        target_devices, first_device = set(self.devices), jax.sharding.SingleDeviceSharding(self.devices[0])

        def placed(leaf: Any) -> jax.ShapeDtypeStruct:
            typed = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
            sharding = getattr(leaf, "sharding", None)
            if not isinstance(sharding, jax.sharding.NamedSharding):
                sharding = first_device
            elif isinstance(sharding.mesh, jax.sharding.AbstractMesh) or not sharding.device_set <= target_devices:
                raise TargetError(
                    f"target {self.name}: expected arguments on a mesh of its devices (`target.devices`), got one on "
                    f"{sharding.mesh}"
                )
            weak = bool(getattr(typed, "weak_type", False))
            return jax.ShapeDtypeStruct(typed.shape, typed.dtype, sharding=sharding, weak_type=weak)

        return jax.tree.map(placed, args)


def read_target(name: str) -> Target:
    """Return a target such as "nvidia-h100", "nvidia-h100:4" or "tpu-v5e:8".

    A missing compiler is reported on first use of `devices`.

    Raises:
        TargetError: unknown target or number of devices.
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
            f"target {name!r}: expected {', '.join(map(str, counts))} devices after the colon, got {number!r}"
        )
    device: Gpu | Tpu = GPUS[base] if base in GPUS else TPUS[base]
    count, platform = int(number) if colon else 1, "gpu" if base in GPUS else "tpu"
    flops = {"bfloat16": device.half, "float16": device.half, "float32": device.single}
    return Target(
        base if count == 1 else f"{base}:{count}", platform, device.kind, count, device.memory, device.bandwidth, flops,
        device.l2 if isinstance(device, Gpu) else 0,
    )  # fmt: skip


def local_target() -> Target:
    """Return the target of local devices; only this function asks JAX for its platform."""
    devices = jax.local_devices()
    local = Target(LOCAL, devices[0].platform, devices[0].device_kind, len(devices))
    names = (name for name, device in {**GPUS, **TPUS}.items() if device.kind == local.device_kind)
    figures = next(map(read_target, names), local)
    return replace(figures, name=LOCAL, platform=local.platform, count=local.count)


def as_target(target: Target | str | None) -> Target:
    """Return a target, perhaps by name; None means local devices."""
    if isinstance(target, Target):
        return target
    return local_target() if target is None else read_target(target)


def named_targets() -> tuple[str, ...]:
    """Return the names of GPUs and TPUs."""
    return (*GPUS, *TPUS)


def _gpus(gpu: Gpu, target: Target) -> list[Any]:
    missing = [package for modules, package in CUDA_PACKAGES.items() if not any(map(_installed, modules))]
    if missing:
        raise _not_installed(target, missing, "target-cuda")
    try:
        shape = f"1x1x{target.count}"
        return topologies.get_topology_desc(platform="cuda", target_config=gpu.config(), topology=shape).devices
    except (jax.errors.JaxRuntimeError, RuntimeError) as error:
        raise TargetError(f"target {target.name}: XLA does not take it: {error}") from error


def _tpus(tpu: Tpu, target: Target) -> list[Any]:
    if not _installed("libtpu"):
        raise _not_installed(target, ["libtpu"], "target-tpu")
    if local_target().platform != "tpu":
        for name, value in NO_TPU.items():
            os.environ.setdefault(name, value)
    name = f"{tpu.version}:{dict(tpu.shapes)[target.count]}"
    try:
        return topologies.get_topology_desc(topology_name=name, platform="tpu", **dict(tpu.settings)).devices
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
