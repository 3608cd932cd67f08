"""CPU kernel: product of rows with a plain weight, without packing.

Defined by `dot` in `linear`. XLA's product packs an operand in every call, and is slow for one narrow row.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Float, Float32

from models.cpu_kernels import INSTRUCTIONS, library
from models.ops.kernels import Kernel, RowKernel, combinations
from models.sharding.devices import varying_like

MAX_ROWS = 64
"""Rows with instructions outside `MORE_ROWS`; XLA is as fast with more."""
ANY_ROWS = 2**31 - 1
MORE_ROWS = {("avx512bf16", "bfloat16"): 128, ("amx", "bfloat16"): ANY_ROWS}
"""Instruction set and dtype -> most rows with a kernel faster than XLA's (docs/cpu-kernels.md)."""
DTYPES = ("bfloat16", "float32")
TARGET = "hybridlm_row_product"


def supports(x: Any, weight: Any) -> bool:
    return str(weight.dtype) in DTYPES and supports_rows(x.shape[0], str(weight.dtype))


def supports_rows(rows: int, dtype: str, more_rows: Mapping[tuple[str, str], int] = MORE_ROWS) -> bool:
    return 1 <= rows <= more_rows.get((fastest(), dtype), MAX_ROWS)


KERNEL = Kernel(TARGET, "cpu", supports)


@partial(jax.jit, static_argnames="instructions")
def row_product(
    x: Float32[Array, "row in"], weight: Float[Array, "out in"], *, instructions: str
) -> Float32[Array, "row out"]:
    """Return `x @ weight.T`, each row by itself, accumulated in float32.

    With one instruction set, a row's bits do not depend on other rows. Zeros give zeros, even with a weight that is not
    finite.

    Args:
        x: at least one row; rounded to the weight's dtype.
        weight: bfloat16 or float32.
        instructions: of `INSTRUCTIONS`.
    """
    x, weight = varying_like((x, weight), x, weight)
    call = jax.ffi.ffi_call(TARGET, call_result((x.shape[0], weight.shape[0]), x), vmap_method="sequential")
    return call(x, weight, instructions=instruction_number(instructions))


ROW_KERNELS = (RowKernel(row_product, "lane shared", combinations(instructions=INSTRUCTIONS)),)


def call_result(shape: tuple[int, ...], like: Array, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Return a call's result type that varies over devices like an operand."""
    operand = jax.typeof(like)
    if not operand.mat.varying:
        return jax.ShapeDtypeStruct(shape, dtype)
    # JAX looks up the axes in the mesh of the sharding.
    sharding = NamedSharding(operand.sharding.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, manual_axis_type=operand.mat)


def fastest() -> str:
    """Return this processor's fastest instruction set."""
    kernels = library()
    assert kernels is not None, "callers have chosen the kernel"
    return kernels.instructions[-1]


def instruction_number(instructions: str | None = None) -> np.int64:
    """Load the library, and return the call attribute of an instruction set.

    Loading registers the call targets.

    Raises:
        ValueError: unknown instructions.
    """
    default = fastest()
    if instructions is not None and instructions not in INSTRUCTIONS:
        raise ValueError(f"instructions: expected one of {', '.join(INSTRUCTIONS)}, got {instructions!r}")
    return np.int64(INSTRUCTIONS.index(instructions or default))
