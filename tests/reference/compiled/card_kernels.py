"""Programs for absent GPUs: operations of XLA, and Pallas kernels with their registers by ptxas."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hybridlm.families import DeltaTokens, LaneInfo
from ir_passes.compile.buffer_assignment import compile_with_assignment
from ir_passes.targets import read_target
from ir_passes.targets.kernel_limits import KernelResources, kernel_resources
from ir_passes.xla_audit.hlo import read
from ir_passes.xla_audit.kernels import Kernels, kernels_in
from ir_passes.xla_audit.program import Executable
from models import Devices
from models.ops.recurrences.delta_rule import run_delta_rule

AS_FOR_USERS = {"xla_backend_optimization_level": "3"}
"""Level of LLVM for users; at the level of the tests (conftest.py), kernels spill more registers."""
CARDS = ("nvidia-l4", "nvidia-rtx4090", "nvidia-a100", "nvidia-h100", "nvidia-b200")
Case = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function with kernels, and the types of its arrays."""


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Return the type of an array."""
    return jax.ShapeDtypeStruct(shape, dtype)


def executable_on(target: str, run: Callable[..., Any], *arrays: Any, donated: tuple[int, ...] = ()) -> Executable:
    """Compile a function of arrays, or of types, for a GPU, with XLA's buffer assignment."""
    place = jax.sharding.SingleDeviceSharding(read_target(target).devices[0])
    types = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), arrays)
    program = compile_with_assignment(jax.jit(run, donate_argnums=donated).lower(*types), None)
    return read(program.compiled, program.dump)


def operations_on(
    target: str, run: Callable[..., Any], *arrays: Any, donated: tuple[int, ...] = ()
) -> tuple[int, Kernels]:
    """Compile a function of arrays, or of types, for a GPU; return its bytes of scratch, and XLA's operations."""
    executable = executable_on(target, run, *arrays, donated=donated)
    return executable.buffers.temp_bytes, kernels_in(executable, {})


def kernels_on(target: str, run: Callable[..., Any], *arrays: Any) -> tuple[KernelResources, ...]:
    """Compile a function of arrays, or of types, for a GPU; return its Pallas kernels.

    Raises:
        TargetError: a kernel asks for more shared memory than the GPU has.
    """
    machine = read_target(target)
    place = jax.sharding.SingleDeviceSharding(machine.devices[0])
    types = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), arrays)
    with machine.tracing():
        lowered = jax.jit(run).lower(*types)
    return kernel_resources(compile_with_assignment(lowered, dict[str, Any](AS_FOR_USERS)).kernels, target)


def check_limits(target: str, run: Callable[..., Any], *arrays: Any) -> None:
    """Assert that the kernels of a function keep a GPU's limits; XLA itself refuses too much shared memory."""
    kernels = kernels_on(target, run, *arrays)
    assert kernels and [fault for kernel in kernels for fault in kernel.faults()] == []


def lane_arrays(lanes: int) -> tuple[Any, ...]:
    """Return types of lengths, fresh lanes and slots."""
    return array(lanes, dtype=jnp.int32), array(lanes, dtype=jnp.bool_), array(lanes, dtype=jnp.int32)


def info_of(tokens: int, lengths: Any, fresh: Any, slots: Any) -> LaneInfo:
    valid = jnp.arange(tokens)[None] < lengths[:, None]
    return LaneInfo(lengths, jnp.zeros_like(lengths), valid, fresh, 1, slots=slots)


def delta(tokens: int, size: int, by_channel: bool) -> Case:
    """Return tokens of a delta rule from its convolution's outputs, in rows by slot."""
    lanes, key_heads, heads, devices = 2, 2, 4, Devices(platform="gpu", kernels="auto")

    def run(channels: Any, decay: Any, beta: Any, state: Any, *each: Any) -> Any:
        token_inputs = DeltaTokens(channels, decay, beta)
        return tuple(run_delta_rule(channels, key_heads, token_inputs, info_of(tokens, *each), state, devices))

    decay = array(lanes, tokens, heads, *([size] if by_channel else []))
    channels = array(lanes, tokens, (2 * key_heads + heads) * size)
    return run, (channels, decay, array(lanes, tokens, heads), array(8, heads, size, size), *lane_arrays(lanes))
