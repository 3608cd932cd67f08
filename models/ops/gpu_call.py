"""Calls of GPU kernels: the only file with Pallas' backend for GPUs.

It is Triton's; JAX has deprecated it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from models.sharding.devices import result_like

Spec = tuple[tuple[int | None, ...], Callable[..., tuple[Any, ...]]] | None
Result = tuple[Spec, jax.ShapeDtypeStruct | int]
READ, WRITTEN = "read", "written"
"""Keys of a kernel's metadata: bytes read and written, for the audit."""
SHARED_MEMORY = {
    166_912: frozenset({"NVIDIA A100", "8.0", "8.7"}),
    232_448: frozenset({"NVIDIA H100", "NVIDIA B200", "9.0", "10.0", "10.3", "cpu"}),
}
"""Bytes of shared memory of a program instance -> device kinds of traces, compute capabilities of local GPUs, and the
device of Pallas' interpreter (CUDA C++ Programming Guide, technical specifications)."""
LEAST_SHARED_MEMORY = 101_376
"""The same on all other GPUs: 8.6, 8.9, 12.0, 12.1, unknown cards."""
MIN_CAPABILITY = 8
"""Major compute capability of the oldest NVIDIA GPUs with Triton's products of bfloat16."""

TENSOR_MEMORY = frozenset({"NVIDIA B200", "10.0", "10.3"})
"""Device kinds and capabilities with tensor memory, of 512 columns, for sums of products of 64 rows or more."""
MAX_WARPS = 32
"""Warps of a program instance, 1024 threads, on every GPU."""


def shared_memory() -> int:
    """Return the bytes of an instance's shared memory on the traced GPU."""
    names = _device_names()
    return next((size for size, kinds in SHARED_MEMORY.items() if not kinds.isdisjoint(names)), LEAST_SHARED_MEMORY)


def runs_kernels() -> bool:
    """Return whether the GPU is NVIDIA's from capability 8.0 on; True without a GPU."""
    capability = _device_names()[1]
    major = capability.partition(".")[0]
    return not capability or (major.isdecimal() and int(major) >= MIN_CAPABILITY)


def has_group_products() -> bool:
    """Return whether products read operands from shared memory, as on H100 and B200."""
    return shared_memory() >= max(SHARED_MEMORY)


def has_tensor_memory() -> bool:
    return not TENSOR_MEMORY.isdisjoint(_device_names())


def _device_names() -> tuple[str, str]:
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None or device.platform != "gpu":
        device = jax.local_devices()[0]
    return device.device_kind, str(getattr(device, "compute_capability", ""))


def gpu_call(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    in_specs: Sequence[Spec],
    results: Result | list[Result],
    *,
    warps: int = 4,
    stages: int = 1,
    interpret: bool,
    reads: dict[int, int] | None = None,
) -> Callable[..., Any]:
    """Return a function of arrays that runs a kernel.

    Args:
        kernel: function of references, or a `partial`; certificates list its name.
        in_specs: block of each operand: its shape, with None for a dimension without a block, and the function of the
            grid's indices that returns its number; None: the whole array, which the kernel indexes.
        results: block and type of the result, or of each in a list; in place of the type, the number of the operand in
            whose memory the result is, with as many bytes written as read.
        warps: of 32 threads each, for one program instance.
        stages: iterations of a loop with operands loaded ahead.
        reads: number of an operand -> bytes of all instances, if not each number once.

    Raises:
        ValueError: no GPU has as many threads in a program instance, or a block does not divide its array.
    """
    from jax.experimental import pallas as pl  # takes a while to import
    from jax.experimental.pallas import triton as plgpu

    name = getattr(kernel, "func", kernel).__name__
    if warps > MAX_WARPS or warps & (warps - 1):
        raise ValueError(f"{name}: {warps} warps of 32 threads, expected a power of two, at most {MAX_WARPS}")

    def block(spec: Spec) -> Any:
        return pl.BlockSpec(memory_space=pl.ANY) if spec is None else pl.BlockSpec(*spec)

    outputs = results if isinstance(results, list) else [results]
    aliases = {operand: number for number, (_, operand) in enumerate(outputs) if isinstance(operand, int)}

    def run(*operands: jax.Array) -> Any:
        types = [
            result_like(operands[kind].shape, operands[kind].dtype, operands[kind]) if isinstance(kind, int) else kind
            for _, kind in outputs
        ]
        out_specs = [spec for spec, _ in outputs]
        for spec, array in zip((*in_specs, *out_specs), (*operands, *types), strict=True):
            # Triton does not mask the last block: it would reach into foreign memory.
            if spec is not None and any(size and full % size for size, full in zip(spec[0], array.shape, strict=True)):
                raise ValueError(f"{name}: blocks of {spec[0]} do not divide an array of {array.shape}")
        read = _sizes(operands) | (reads or {})
        written = _sizes(types) | {result: read[operand] for operand, result in aliases.items()}
        arrays = pl.pallas_call(
            kernel,
            types,
            grid=grid,
            in_specs=[block(spec) for spec in in_specs],
            out_specs=[block(spec) for spec in out_specs],
            input_output_aliases=aliases,
            compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
            interpret=interpret,
            name=name,
            metadata={READ: str(sum(read.values())), WRITTEN: str(sum(written.values()))},
        )(*operands)
        return arrays if isinstance(results, list) else arrays[0]

    return run


def rows_bytes(pool: jax.Array, lanes: int) -> int:
    return lanes * pool.size // pool.shape[0] * pool.dtype.itemsize


def load_if(condition: jax.Array, ref: Any) -> jax.Array:
    """Load a place (`ref.at[...]`) where a condition, broadcast, is true, else zeros."""
    from jax.experimental.pallas import triton as plgpu

    return plgpu.load(ref, mask=jnp.broadcast_to(condition, ref.shape), other=0.0)


def store_if(condition: jax.Array, ref: Any, value: jax.Array) -> None:
    """Write to a place (`ref.at[...]`) where a condition is true."""
    from jax.experimental.pallas import triton as plgpu

    plgpu.store(ref, value, mask=jnp.broadcast_to(condition, value.shape))


def _sizes(arrays: Sequence[Any]) -> dict[int, int]:
    return {number: array.size * array.dtype.itemsize for number, array in enumerate(arrays)}
