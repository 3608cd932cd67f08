"""Key of a compiled step: a hash of its ingredients, without tracing.

Ingredients: sources, versions, settings, flags, machine, devices, model structure, argument types and places, and the
step. A part without a stable name (a user's function, a foreign layer, patched code) has no key: each process compiles
it.
"""

import hashlib
import logging
import os
import platform
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

import ir_passes
import models
from hybridlm.devices.machine import Machine
from hybridlm.devices.placement import Placement
from hybridlm.programs.shapes import AnyShape, Shape
from hybridlm.steps.structure import Structure
from ir_passes.contract.declared import declarations
from ir_passes.files.loaded_code import patched_code
from ir_passes.files.sources import running_hash
from ir_passes.jaxpr import jax_private
from ir_passes.jaxpr.fingerprint import fingerprint

_log = logging.getLogger("hybridlm")
PACKAGES = (Path(__file__).parents[1], Path(str(models.__file__)).parent, Path(str(ir_passes.__file__)).parent)
OURS = ("models", "flax", "jax", "builtins")
"""Packages of a model's classes, with sources or versions in the key."""
ENVIRONMENT = ("XLA_", "LIBTPU", "TF_", "NVIDIA_TF32_OVERRIDE")
"""Prefixes of environment variables that affect XLA's programs; JAX's are settings."""
NO_PROGRAM = (
    "jax_compilation_cache",
    "jax_persistent_cache",
    "jax_log",
    "jax_debug_log",
    "jax_logging",
    "jax_traceback",
)
"""Beginnings of JAX settings that change no program."""
_ADDRESS = re.compile(r"(at )?0x[0-9a-fA-F]+")


def own_sources() -> str | None:
    """Return the hash of the three packages; None if they have changed since import."""
    return running_hash(PACKAGES)


def structure_name(structure: Structure) -> str | None:
    """Return a hash of a model's structure; None for foreign or unnamed parts."""
    kinds = {part for node in structure.graph.nodes if isinstance(part := getattr(node, "type", None), type)}
    if any(kind.__module__.partition(".")[0] not in OURS for kind in kinds):
        return None
    names = sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    text = repr((structure.graph, structure.tree, structure.arrays))
    return None if _ADDRESS.search(text) else _hash(names, text)


def step_key(
    shape: AnyShape, args: tuple[Any, ...], structure: str | None, certify: str, placement: Placement
) -> str | None:
    sources = own_sources()
    if patched := patched_code(*(folder.name for folder in PACKAGES)):
        _log.info("%s is compiled anew: patched at run time: %s", shape, ", ".join(patched[:8]))
        return None
    if sources is None or structure is None or (isinstance(shape, Shape) and shape.processor is not None):
        return None
    leaves, tree = jax.tree.flatten(args)
    parts = (repr(shape), structure, certify, repr(tree), [_type(leaf) for leaf in leaves])
    if any(_ADDRESS.search(str(part)) for part in parts):
        return None
    return _hash(sources, *parts, devices_name(placement), settings(), fingerprint(declarations()))


def settings() -> list[str]:
    """Return versions, settings and flags that affect JAX and XLA."""
    values = {name: getattr(jax.config, name, value) for name, value in jax.config.values.items()}
    jax_settings = [f"{name}={value!r}" for name, value in sorted(values.items()) if not name.startswith(NO_PROGRAM)]
    flags = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(ENVIRONMENT)]
    optimize = f"python -O{sys.flags.optimize}"
    return [*versions(), optimize, fingerprint(jax_private.program_settings()), *jax_settings, *flags]


@cache
def versions() -> tuple[str, ...]:
    made_by = (jax.__version__, metadata.version("jaxlib"), flax.__version__, np.__version__)
    return (*made_by, metadata.version("ml_dtypes"), platform.python_version(), platform.platform())


def devices_name(placement: Placement) -> list[str]:
    """Return the devices' kind, number and place, and the CPU's instructions."""
    mesh, target = placement.mesh, placement.target
    if target is not None:
        return [repr(target), *target.compiler, "" if mesh is None else repr(dict(mesh.shape))]
    devices: list[Any] = list(mesh.devices.flat) if isinstance(mesh, Mesh) else placement.local_devices
    named = [f"{device.platform} {device.device_kind} {device.id} {device.process_index}" for device in devices]
    named.append(placement.kernels_name)
    axes = [] if mesh is None else [repr(dict(mesh.shape)), repr(getattr(mesh, "axis_types", None))]
    client = devices[0].client
    process = (jax.process_index(), jax.process_count(), jax_private.topology_of(devices), client.platform_version)
    return [*named, *axes, *map(str, process), repr(_machine())]


@cache
def _machine() -> Machine:
    return Machine.here()


def _type(leaf: Any) -> str:
    sharding = getattr(leaf, "sharding", None)
    place = f"{sharding.spec} {sharding.memory_kind}" if isinstance(sharding, NamedSharding) else ""
    return f"{leaf.dtype}{tuple(leaf.shape)}{'~' if getattr(leaf, 'weak_type', False) else ''} {place}"


def _hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
