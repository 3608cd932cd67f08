"""Meshes of devices: data parallel (lanes), tensor parallel, and expert parallel."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from models.sharding.devices import EXPERT, MODEL

DATA = "data"
AXES = (DATA, MODEL, EXPERT)
"""Axes: lanes with their rows; heads, columns and the vocabulary; experts."""
MORE_CPUS = (
    "CPUs can have any number of virtual devices: set XLA_FLAGS=--xla_force_host_platform_device_count={0} before jax "
    'is imported, or call jax.config.update("jax_num_cpu_devices", {0}) before it is used.'
)


def mesh(data: int = 1, model: int = 1, expert: int = 1, *, devices: Sequence[Any] | None = None) -> Mesh:
    """Return a mesh over the first `data * model * expert` devices, for `load(mesh=)`.

    See docs/devices.md.

    Args:
        data: split lanes and their rows; without exchanges in generation and scoring.
        model: split heads, columns of matrices and the vocabulary (tensor parallel).
        expert: split experts (expert parallel).
        devices: for example of a `Target`; None for all of JAX.

    Raises:
        ValueError: a size is no positive integer, or there are fewer devices.
    """
    sizes = _checked(data, model, expert)
    count, devices = data * model * expert, jax.devices() if devices is None else devices
    if count > len(devices):
        product = " * ".join(f"{name}={size}" for name, size in sizes.items())
        advice = f" {MORE_CPUS.format(count)}" if devices[0].platform == "cpu" else ""
        raise ValueError(
            f"mesh: {product} = {count} devices, and there are {len(devices)} ({devices[0].platform}).{advice}"
        )
    return jax.make_mesh(tuple(sizes.values()), AXES, (AxisType.Auto,) * len(AXES), devices=list(devices[:count]))


def abstract_mesh(data: int = 1, model: int = 1, expert: int = 1) -> AbstractMesh:
    """Return a mesh of absent devices, to prove and plan steps; raises ValueError."""
    sizes = _checked(data, model, expert)
    return AbstractMesh(tuple(sizes.values()), AXES, (AxisType.Auto,) * len(AXES))


def _checked(data: int, model: int, expert: int) -> dict[str, int]:
    sizes: dict[str, int] = dict(zip(AXES, (data, model, expert), strict=True))
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"mesh: {name}: expected a whole number of at least 1, got {size!r}")
    return {name: int(size) for name, size in sizes.items()}


def with_all_axes(user_mesh: Mesh) -> Mesh:
    """Return a user's mesh with all of `AXES`, in order; missing axes have size 1.

    Raises:
        TypeError, ValueError: no mesh of devices, other axes, or devices of some processes only.
    """
    if not isinstance(user_mesh, Mesh):
        raise TypeError(f"mesh: expected hybridlm.mesh(...) or a jax.sharding.Mesh, got {user_mesh!r}")
    unknown_axes = [str(name) for name in user_mesh.axis_names if name not in AXES]
    if unknown_axes:
        raise ValueError(
            f"mesh: the axes {', '.join(unknown_axes)} mean nothing here; expected some of {', '.join(AXES)}, as "
            "hybridlm.mesh(data=2, model=2) has them"
        )
    processes = {device.process_index for device in user_mesh.devices.flat}
    if len(processes) < jax.process_count() and processes != {jax.process_index()}:
        raise ValueError(
            f"mesh: it has devices of {len(processes)} of {jax.process_count()} processes; expected devices of each, "
            "or of this one alone"
        )
    order = [user_mesh.axis_names.index(name) for name in AXES if name in user_mesh.axis_names]
    sizes = [user_mesh.shape.get(name, 1) for name in AXES]
    return Mesh(np.transpose(user_mesh.devices, order).reshape(sizes), AXES, (AxisType.Auto,) * len(AXES))


def read_sizes(text: str) -> dict[str, int]:
    """Parse "data=2,model=2"; raises ValueError, also for an unknown or repeated axis."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (word.strip() for word in part.partition("="))
        if name not in AXES or name in sizes or not size.isdecimal():
            raise ValueError(
                f"--mesh: expected sizes of some of {', '.join(AXES)}, each once, like data=2,model=2; got {text!r}"
            )
        sizes[name] = int(size)
    return sizes


def read_mesh(text: str | None) -> Mesh | None:
    """Return a command line's mesh; default: None, or all devices of several processes.

    Raises:
        ValueError: as `read_sizes`, or there are fewer devices.
    """
    if text is None:
        return mesh(data=jax.device_count()) if jax.process_count() > 1 else None
    return mesh(**read_sizes(text), devices=None)
