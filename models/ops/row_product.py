"""A kernel for the product of rows with a plain weight, on CPUs: each weight is read as it is stored.

`dot` in `linear` defines it. XLA's product packs one operand in every call, and has no fast product of one narrow row.
"""

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
from models.sharding.varying import varying_like

MAX_ROWS = 64
"""Rows of a product without tiles; with more rows XLA's product is as fast, as XLA packs a weight for many rows."""
UNLIMITED = frozenset({("amx", "bfloat16")})
"""Instruction sets and dtypes with which the kernel computes any number of rows: 1.1 to 2.6 times as fast as XLA with
AMX at 128 to 4,096 rows (docs/cpu-kernels.md, AMX)."""
DTYPES = ("bfloat16", "float32")
TARGET = "hybridlm_row_product"


def unsupported(x: Any, weight: Any) -> str | None:
    """Say why the kernel does not take these operands; None if it does."""
    if str(weight.dtype) not in DTYPES:
        return f"a weight of {weight.dtype}: expected {' or '.join(DTYPES)}"
    return unsupported_rows(x.shape[0], str(weight.dtype))


def unsupported_rows(rows: int, dtype: str) -> str | None:
    """Return the reason for which no kernel computes this many rows, or None.

    Args:
        rows: of the product.
        dtype: of the weight, or the dtype to which its codes are rounded.
    """
    if library() is None:
        return "the library of kernels is not there"
    if rows >= 1 and (rows <= MAX_ROWS or (fastest(), dtype) in UNLIMITED):
        return None
    return f"{rows} rows, weight of {dtype}: expected 1 to {MAX_ROWS} rows with the instructions {fastest()}"


KERNEL = Kernel(TARGET, ("cpu",), unsupported, interpreted=False)


@partial(jax.jit, static_argnames="instructions")
def row_product(
    x: Float32[Array, "row in"], weight: Float[Array, "out in"], *, instructions: str
) -> Float32[Array, "row out"]:
    """Return `x @ weight.T`, each row by itself, accumulated in float32.

    The bits of a row are the same whatever the other rows are, and however many, with one instruction set. A row of
    zeros gives zeros, also with a weight that is not finite.

    Args:
        x: at least one row; rows are rounded to the weight's dtype.
        weight: bfloat16 or float32.
        instructions: one of `INSTRUCTIONS` that the processor runs.
    """
    x, weight = varying_like((x, weight), x, weight)
    call = jax.ffi.ffi_call(TARGET, call_result((x.shape[0], weight.shape[0]), x), vmap_method="sequential")
    return call(x, weight, instructions=instruction_number(instructions))


ROW_KERNELS = (RowKernel(row_product, "lane shared", combinations(instructions=INSTRUCTIONS)),)


def call_result(shape: tuple[int, ...], like: Array, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Return the type of a result that each device of a mesh has its own of, where an operand is such a one."""
    given = jax.typeof(like)
    if not given.mat.varying:
        return jax.ShapeDtypeStruct(shape, dtype)
    # JAX looks up in the mesh what a type says of its axes.
    sharding = NamedSharding(given.sharding.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, manual_axis_type=given.mat)


def fastest() -> str:
    """Return the fastest instruction set of this processor that the library has code for."""
    found = library()
    assert found is not None, "asked for where the kernel is chosen"
    return found.instructions[-1]


def instruction_number(instructions: str | None = None) -> np.int64:
    """Return the attribute by which a call names its instruction set; None is the fastest.

    Loads the library, which registers what is called.

    Raises:
        ValueError: there are no such instructions.
    """
    default = fastest()
    if instructions is not None and instructions not in INSTRUCTIONS:
        raise ValueError(f"instructions: expected one of {', '.join(INSTRUCTIONS)}, got {instructions!r}")
    return np.int64(INSTRUCTIONS.index(instructions or default))
