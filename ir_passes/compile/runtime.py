"""XLA executables as bytes and back, without pickle."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from ir_passes.jaxpr import jax_private
from ir_passes.jaxpr.dtypes import dtype_of, is_key
from ir_passes.xla_audit.hlo import fingerprint

GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")
"""JAX's random generators; keys of others do not outlive their process."""


def device_count(compiled: jax.stages.Compiled) -> int:
    executable: Any = compiled.runtime_executable()
    return len(executable.local_devices())


def save(compiled: jax.stages.Compiled) -> bytes:
    executable: Any = compiled.runtime_executable()
    return bytes(executable.client.serialize_executable(executable))


def load(data: bytes, devices: Sequence[Any] | None = None) -> Any:
    """Load serialized bytes on these devices, by default the first."""
    devices = jax.devices()[:1] if devices is None else devices
    return devices[0].client.deserialize_executable(data, executable_devices=jax_private.device_list(devices))


def hlo_fingerprint(loaded: Any) -> str:
    return fingerprint(loaded.hlo_modules()[0])


def execute(loaded: Any, operands: Sequence[Any]) -> list[jax.Array]:
    """Run a loaded executable on the first device; donated operands are consumed."""
    device = jax.devices()[0]
    words = [jax.random.key_data(operand) if is_key(dtype_of(operand)) else operand for operand in operands]
    with jax_private.with_setting("jax_enable_x64", True):  # else JAX halves NumPy's 64-bit types
        arrays = [jax.device_put(array, device) for array in words]
    results = loaded.execute_sharded(arrays).disassemble_into_single_device_arrays()
    return [shards[0] for shards in results]


def named(words: jax.Array, dtype: str) -> jax.Array:
    """Wrap raw words as typed keys if `dtype` names a key type."""
    for generator in GENERATORS:
        if str(jax.eval_shape(partial(jax.random.key, impl=generator), 0).dtype) == dtype:
            return jax.random.wrap_key_data(words, impl=generator)
    return words
