"""The versions, settings, device and sources of this package that take part in making an executable."""

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import jax
from jaxlib import version as jaxlib_version

from ir_passes.compile.certificate import Versions
from ir_passes.files.sources import hash_of_sources
from ir_passes.jaxpr import jax_private
from ir_passes.jaxpr.fingerprint import fingerprint

SETTINGS = ("jax_default_matmul_precision", "jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable")
"""Settings of JAX that a certificate names; the others are in the hash `jax_settings`."""
ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def current_versions(compiler_options: dict[str, Any] | None = None, device: Any = None) -> Versions:
    """Return the versions of this process and a device.

    Args:
        compiler_options: as they are given to XLA.
        device: None for this process's first.
    """
    device = jax.devices()[0] if device is None else device
    flags = {name: jax_private.setting(name) for name in SETTINGS} | {
        "jax_settings": fingerprint(jax_private.program_settings())
    }
    flags |= {name: os.environ.get(name) for name in ENVIRONMENT} | (compiler_options or {})
    return Versions(
        jax.__version__,
        jaxlib_version.__version__,
        platform.python_version(),
        device.platform,
        device.device_kind,
        sources_hash(),
        tuple(f"{name}={value}" for name, value in flags.items() if value is not None),
    )


@cache
def sources_hash() -> str:
    """sha256 of this package's sources: a proof by other rules is no proof."""
    return hash_of_sources([Path(__file__).parents[1]])
