"""Adapter to private parts of JAX and jaxlib, with `jax_private_refs`; a test forbids other uses.

More than 300 lines: one adapter to everything private.
"""

import importlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache


def backends_are_initialized() -> bool:
    """True if JAX has started a backend in this process."""
    return importlib.import_module("jax._src.xla_bridge").backends_are_initialized()


def kept_arguments(compiled: jax.stages.Compiled) -> tuple[int, ...] | None:
    """Return the flattened arguments that a program reads, by parameter, or None."""
    indices: Any = getattr(getattr(compiled, "_executable", None), "_kept_var_idx", None)
    return None if indices is None else tuple(sorted(indices))


def text_without_sources(module: Any, settings: bool = True) -> str:
    """Return a module's text without sources and perhaps backend settings."""
    options = importlib.import_module("jaxlib._hlo").HloPrintOptions()
    options.print_metadata = False
    options.print_backend_config = settings
    return module.to_string(options)


def text_of_serialized(module: bytes, settings: bool = True) -> str:
    read = importlib.import_module("jaxlib._hlo").HloModule.from_serialized_hlo_module_proto(module)
    return text_without_sources(read, settings)


def platform_of(lowered: jax.stages.Lowered) -> str | None:
    """Return the platform of compilation, as "cpu", or None."""
    arguments = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    return getattr(arguments.get("backend"), "platform", None)


def device_list(devices: Sequence[Any]) -> Any:
    return importlib.import_module("jaxlib._jax").DeviceList(tuple(devices))


def compilation_cache_dir(path: str) -> AbstractContextManager[Any]:
    """Set `jax_compilation_cache_dir` for one thread; public functions affect all threads."""
    return importlib.import_module("jax._src.config").compilation_cache_dir(path)


@contextmanager
def without_compilation_cache() -> Iterator[None]:
    """Turn JAX's compilation cache off for one thread.

    JAX must ask again whether there is a cache. If another thread asks first, this thread has random keys without
    entries; other threads may meanwhile miss the cache.
    """
    _make_keys_random()
    outer, _thread.compiles_anew = getattr(_thread, "compiles_anew", False), True
    try:
        with importlib.import_module("jax._src.config").enable_compilation_cache(False):
            reset_cache()
            yield
    finally:
        _thread.compiles_anew = outer
        reset_cache()


_thread = threading.local()


@cache
def _make_keys_random() -> None:
    module: Any = importlib.import_module("jax._src.cache_key")
    other = module.custom_hook
    module.custom_hook = lambda: other() + (secrets.token_hex(16) if getattr(_thread, "compiles_anew", False) else "")


def coordination() -> Any:
    """Return the state of `jax.distributed.initialize`."""
    return importlib.import_module("jax._src.distributed").global_state


class ExecutableParts(NamedTuple):
    """A compiled program without trees: XLA's executable and JAX's data.

    Attributes:
        kept: numbers of the arguments that the program reads.
        arguments, argument_shardings: of these, by parameter.
        committed: results are bound to their devices.
    """

    executable: Any
    name: str
    arguments: tuple[Any, ...]
    argument_shardings: tuple[Any, ...]
    results: tuple[Any, ...]
    result_shardings: tuple[Any, ...]
    committed: bool
    kept: tuple[int, ...]


def parts_of(compiled: jax.stages.Compiled) -> ExecutableParts | None:
    """Take a compiled program apart; None with effects, callbacks, constants or custom layouts."""
    unloaded: Any = getattr(getattr(compiled, "_executable", None), "_unloaded_executable", None)
    if unloaded is None or compiled._params.const_args:
        return None
    extras = (
        unloaded.unordered_effects,
        unloaded.ordered_effects,
        unloaded.keepalive,
        unloaded.host_callbacks,
        unloaded.mut,
    )
    if any(extras) or any(layout is not None for layout in unloaded.dispatch_in_layouts):
        return None
    return ExecutableParts(
        unloaded.xla_executable,
        unloaded.name,
        tuple(unloaded.input_avals),
        tuple(unloaded.input_shardings),
        tuple(unloaded.output_avals),
        tuple(unloaded.output_shardings),
        unloaded.committed,
        tuple(sorted(unloaded.kept_var_idx)),
    )


def compiled_of(parts: ExecutableParts, devices: Sequence[Any], arguments: Any, results: Any) -> jax.stages.Compiled:
    """Rebuild a compiled program, as the inverse of `parts_of`.

    Args:
        parts: with an executable loaded on these devices.
        arguments: tree ((arguments), {}) of `jax.stages.ArgInfo`.
        results: result structure.
    """
    module = importlib.import_module("jax._src.interpreters.pxla")
    layout = importlib.import_module("jax._src.layout").Layout.from_pjrt_layout
    unloaded = module.UnloadedMeshExecutable(
        xla_executable=parts.executable,
        device_list=device_list(devices),
        backend=devices[0].client,
        input_avals=parts.arguments,
        input_shardings=parts.argument_shardings,
        output_avals=parts.results,
        output_shardings=parts.result_shardings,
        committed=parts.committed,
        name=parts.name,
        unordered_effects=[],
        ordered_effects=[],
        keepalive=(),
        host_callbacks=(),
        kept_var_idx=set(parts.kept),
        mut=None,
        xla_in_layouts=[layout(parameter_layout) for parameter_layout in parts.executable.get_parameter_layouts()],
        dispatch_in_layouts=[None] * len(parts.arguments),
        xla_out_layouts=[layout(output_layout) for output_layout in parts.executable.get_output_layouts()],
        all_args_info=None,
        pgle_profiler=None,
    )
    return jax.stages.Compiled(unloaded.load(), [], arguments, results, no_kwargs=True)


def explicit_device_put() -> Callable[[], AbstractContextManager[Any]]:
    """Return a context that lets calls move host arrays under `jax.transfer_guard("disallow")`."""
    return _config().explicit_device_put_scope


def topology_of(devices: Sequence[Any]) -> str:
    """Return the fingerprint of the devices' topology, or ""."""
    topology = importlib.import_module("jax._src.lib").xla_client.get_topology_for_devices
    try:
        return str(topology(list(devices)).fingerprint())
    except jax.errors.JaxRuntimeError:
        return ""


BESIDE_TRACING = (
    "jax_default_prng_impl",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_disable_most_optimizations",
    "jax_optimization_level",
    "jax_memory_fitting_level",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_pallas_auto_assign_collective_ids",
    "jax_pallas_auto_assign_collective_ids_limit",
)
"""Settings that change programs outside JAX's trace context, of several versions."""


def program_settings() -> Any:
    """Return this thread's values of all settings that change programs; hashable."""
    return _config().trace_context(), *[holder.value for holder in _beside_tracing()]


def setting(name: str) -> Any:
    return _holder(name).value


def with_setting(name: str, value: Any) -> AbstractContextManager[Any]:
    return _holder(name)(value)


@contextmanager
def without_mesh() -> Iterator[None]:
    """Hide the mesh of `jax.set_mesh` or `use_abstract_mesh` in this thread."""
    config, sharding = _config(), importlib.import_module("jax._src.sharding_impls")
    names = ("abstract_mesh_context_manager", "device_context")
    # Later versions have them in the module of shardings.
    holders = [getattr(config, name, None) or getattr(sharding, name) for name in names]
    meshes = [holder.swap_local(config.config_ext.unset) for holder in holders]
    try:
        yield
    finally:
        for holder, mesh in zip(holders, meshes, strict=True):
            holder.set_local(mesh)


@cache
def _holder(name: str) -> Any:
    return jax.config._value_holders[name]


@cache
def _beside_tracing() -> tuple[Any, ...]:
    return tuple(_holder(name) for name in BESIDE_TRACING if name in jax.config._value_holders)


def dispatcher(
    name: str,
    called: Callable[..., Any],
    missed: Callable[..., tuple[Any, Any]],
    static_numbers: Sequence[int],
    static_names: Sequence[str],
) -> Callable[..., Any] | None:
    """Return a C++ look-up of programs like a jitted function's; None in another JAX.

    Args:
        called: called if JAX must not compile anything.
        missed: called for new types, places, static values or settings; returns results, and `dispatch_data` for later
            calls or None.
    """
    try:
        extension, tree = importlib.import_module("jaxlib._jax"), importlib.import_module("jax._src.tree_util")
        pxla = importlib.import_module("jax._src.interpreters.pxla")
        look_up = extension.pjit(
            name,
            called,
            lambda *args, **kwargs: (*missed(*args, **kwargs), False),
            list(static_numbers),
            list(static_names),
            pxla.JitGlobalCppCacheKeys(),
            tree.dispatch_registry,
            pxla.cc_shard_arg,
            extension.PjitFunctionCache(capacity=4096),
        )
    except (AttributeError, ImportError, TypeError):
        return None
    return look_up


@jax.tree_util.register_pytree_node_class
class _Restored:
    """Outputs that C++ restores to a function's results by its tree registry."""

    def __init__(self, outputs: Sequence[Any], restore: Callable[[Sequence[Any]], Any]):
        self.outputs, self.restore = outputs, restore

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        return tuple(self.outputs), self.restore

    @classmethod
    def tree_unflatten(cls, restore: Callable[[Sequence[Any]], Any], outputs: Sequence[Any]) -> Any:
        return restore(outputs)


def dispatch_data(
    compiled: jax.stages.Compiled,
    arguments: int,
    outputs: Sequence[Any],
    restore: Callable[[Sequence[Any]], Any] | Any,
    effects: Any,
) -> Any:
    """Return the data for running a program from C++; None for a call from Python.

    Args:
        arguments: number of flattened arguments.
        outputs: of a call, in program order.
        restore: outputs -> results, or a structure of outputs in order.
    """
    executable, constants = getattr(compiled, "_executable", None), getattr(compiled, "_params", None)
    if executable is None or constants is None or constants.const_args:
        return None
    try:
        pjit, tree = (importlib.import_module(f"jax._src.{name}") for name in ("pjit", "tree_util"))
        structure = jax.tree.structure(list(outputs)) if callable(restore) else restore
        data = pjit._get_fastpath_data(executable, structure, [None] * arguments, outputs, effects, (), None, ())
        if data is None or not callable(restore):
            return data
        return data._replace(out_pytree_def=tree.dispatch_registry.flatten(_Restored(outputs, restore), None)[1])
    except (AttributeError, ImportError, TypeError, ValueError):
        return None


@cache
def _config() -> Any:
    return importlib.import_module("jax._src.config")
