"""The one place where this project uses what JAX and jaxlib keep private; a test looks for such names anywhere else.

The intermediate representation has its own adapter, `ir_passes.jaxpr.ir`, on public modules.
"""

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax


def kept_arguments(compiled: jax.stages.Compiled) -> tuple[int, ...] | None:
    """The flattened arguments that a program reads, in the order of its parameters; None if it does not say.

    A program drops the arguments that it does not need, and nothing public says which.
    """
    kept: Any = getattr(getattr(compiled, "_executable", None), "_kept_var_idx", None)
    return None if kept is None else tuple(sorted(kept))


def text_without_sources(module: Any) -> str:
    """A module of an executable as text, without names of operations and the files and lines that they come from."""
    options = importlib.import_module("jaxlib._hlo").HloPrintOptions()
    options.print_metadata = False
    return module.to_string(options)


def text_of_serialized(module: bytes) -> str:
    """The same of a serialized module, which has no more of the settings that it was compiled with than XLA keeps."""
    return text_without_sources(
        importlib.import_module("jaxlib._hlo").HloModule.from_serialized_hlo_module_proto(module)
    )


def platform_of(lowered: jax.stages.Lowered) -> str | None:
    """The platform that a program will be compiled for, as "cpu"; None if it does not say."""
    return getattr(_backend_of(lowered), "platform", None)


def compiler_of(lowered: jax.stages.Lowered) -> str | None:
    """The version of the backend that will compile a program, in its own words; None if it does not say."""
    return getattr(_backend_of(lowered), "platform_version", None)


def _backend_of(lowered: jax.stages.Lowered) -> Any:
    return getattr(getattr(lowered, "_lowering", None), "compile_args", {}).get("backend")


def device_list(devices: Sequence[Any]) -> Any:
    """Devices in the form that a client takes to load an executable; public functions load pickles only."""
    return importlib.import_module("jaxlib._jax").DeviceList(tuple(devices))


def compilation_cache_dir(path: str) -> AbstractContextManager[Any]:
    """Set `jax_compilation_cache_dir` for one thread, as long as the context lasts; public functions set it for all."""
    return importlib.import_module("jax._src.config").compilation_cache_dir(path)


def coordination() -> Any:
    """Return the state of `jax.distributed.initialize`: its `client`, None before, and `coordinator_address`."""
    return importlib.import_module("jax._src.distributed").global_state
