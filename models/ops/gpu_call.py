"""Calls of kernels for GPUs: the one place that names Pallas' backend for them.

The backend is Triton's, which JAX has deprecated in favour of Mosaic GPU and jax-triton. Another backend replaces this
file; the kernels themselves are written in Pallas' language.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

READ = "read"
"""Key of a kernel's metadata: bytes that it reads from memory; the audit of XLA's programs counts them."""
SHARED_MEMORY = {"NVIDIA A100": 166_912, "NVIDIA A10": 101_376, "NVIDIA L4": 101_376, "8.0": 166_912, "8.6": 101_376,
                 "8.9": 101_376, "12.0": 101_376}  # fmt: skip
"""Device kind of a trace, or compute capability of a local GPU -> bytes of shared memory of a program instance."""
MAX_SHARED_MEMORY = 232_448
"""The same of all other GPUs, from an H100 on, and in Pallas' interpreter."""


def shared_memory() -> int:
    """Return the bytes of shared memory that a program instance can have on the GPU that is traced for."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None or device.platform != "gpu":
        device = jax.local_devices()[0]
    key = device.device_kind if device.device_kind in SHARED_MEMORY else getattr(device, "compute_capability", "")
    return SHARED_MEMORY.get(str(key), MAX_SHARED_MEMORY)


def gpu_call(
    kernel: Callable[..., None],
    *,
    name: str,
    grid: tuple[int, ...],
    in_specs: Sequence[Any],
    out_specs: Any,
    out_shape: Any,
    warps: int,
    stages: int,
    interpret: bool,
    reads: dict[int, int] | None = None,
    aliases: dict[int, int] | None = None,
) -> Callable[..., Any]:
    """Return a function of arrays that runs a kernel.

    Args:
        kernel: the function of references.
        name: of the kernel in certificates.
        grid, in_specs, out_specs, out_shape: as of `pallas_call`.
        warps: of 32 threads each, for one program instance.
        stages: iterations of a loop for which operands are loaded ahead.
        interpret: run by Pallas' interpreter, on any platform.
        reads: number of an operand -> bytes that all instances read of it, if not each number once.
        aliases: number of an operand -> number of the result in its memory.
    """
    from jax.experimental import pallas as pl  # takes a while to import
    from jax.experimental.pallas import triton as plgpu

    def run(*operands: jax.Array) -> Any:
        sizes = {number: array.size * array.dtype.itemsize for number, array in enumerate(operands)} | (reads or {})
        return pl.pallas_call(
            kernel,
            grid=grid,
            in_specs=in_specs,
            out_specs=out_specs,
            out_shape=out_shape,
            input_output_aliases=aliases or {},
            compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=stages),
            interpret=interpret,
            name=name,
            metadata={READ: str(sum(sizes.values()))},
        )(*operands)

    return run
