"""Versions, settings, device and sources of an executable."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

import jax
from jaxlib import version as jaxlib_version

from ir_passes.compile.certificate import Versions
from ir_passes.files.loaded_code import patched_code
from ir_passes.files.sources import running_hash
from ir_passes.jaxpr import jax_private
from ir_passes.jaxpr.fingerprint import fingerprint

SETTINGS = ("jax_default_matmul_precision", "jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable")
"""JAX settings that a certificate names; all others are hashed into `jax_settings`."""
ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
PACKAGE = Path(__file__).parents[1]
PROVER = ("contract", "jaxpr", "kernels", "proof", "rewrites")
"""Folders of the prover."""
UNKNOWN = "unknown"
"""`Versions.compiler` of code without a source file: its certificates are neither stored nor read."""


def current_versions(compiler_options: dict[str, Any] | None = None, device: Any = None) -> Versions:
    """Return the versions of this process and a device, by default the first."""
    device = jax.devices()[0] if device is None else device
    flags = {name: jax_private.setting(name) for name in SETTINGS} | {
        "jax_settings": fingerprint(jax_private.program_settings())
    }
    flags |= {name: os.environ.get(name) for name in ENVIRONMENT} | (compiler_options or {})
    flags["python_optimize"] = sys.flags.optimize or None  # without assertions the prover is another program
    return Versions(
        jax.__version__,
        jaxlib_version.__version__,
        platform.python_version(),
        device.platform,
        device.device_kind,
        sources_hash(),
        tuple(f"{name}={value}" for name, value in flags.items() if value is not None),
    )


def sources_hash() -> str:
    """Return the sha256 of imported sources; `UNKNOWN` if they changed since import."""
    return running_hash((PACKAGE,)) or UNKNOWN


def is_as_imported() -> bool:
    """Return whether the prover equals its hashed sources, without monkey-patches."""
    return sources_hash() != UNKNOWN and not patched_code(*(f"ir_passes.{folder}" for folder in PROVER))
