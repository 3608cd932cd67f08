"""XLA's executables as bytes and back. JAX has no public way without pickle, so what it keeps private is used here."""

import importlib
from collections.abc import Sequence
from typing import Any

import jax

from ir_passes.hlo import HloError, fingerprint


def kept_arguments(compiled: jax.stages.Compiled) -> tuple[int, ...]:
    """The flattened arguments that a program reads, in the order of its parameters."""
    kept: Any = getattr(getattr(compiled, "_executable", None), "_kept_var_idx", None)
    if kept is None:
        raise HloError("the executable does not say which arguments it kept")
    return tuple(sorted(kept))


def device_count(compiled: jax.stages.Compiled) -> int:
    """Devices that a program runs on."""
    executable: Any = compiled.runtime_executable()
    return len(executable.local_devices())


def save(compiled: jax.stages.Compiled) -> bytes:
    """The executable as XLA serializes it."""
    executable: Any = compiled.runtime_executable()
    return bytes(executable.client.serialize_executable(executable))


def load(data: bytes) -> Any:
    """The executable of `save`, on the first device."""
    device = jax.devices()[0]
    devices: Any = importlib.import_module("jaxlib._jax").DeviceList
    return device.client.deserialize_executable(data, executable_devices=devices((device,)))


def hlo_fingerprint(loaded: Any) -> str:
    """The hash of a loaded executable's HLO that certificates name."""
    return fingerprint(loaded.hlo_modules()[0].to_string())


def execute(loaded: Any, operands: Sequence[Any]) -> list[jax.Array]:
    """Run a loaded executable on its parameters; those that are donated are consumed."""
    device = jax.devices()[0]
    arrays = [jax.device_put(operand, device) for operand in operands]
    results = loaded.execute_sharded(arrays).disassemble_into_single_device_arrays()
    return [shards[0] for shards in results]
