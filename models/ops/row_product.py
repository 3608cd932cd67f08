"""CPU kernel: product of rows with a plain weight, without packing.

Defined by `dot` in `linear`. XLA's product packs an operand in every call, and is slow for one narrow row.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Float32

from models.cpu_kernels import INSTRUCTIONS
from models.ops.kernels import Kernel, combinations, cpu_call, fastest

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
    return cpu_call(TARGET, (x, weight), [((len(x), len(weight)), jnp.float32)], instructions=instructions)[0]


ROW_KERNELS = ((row_product, "lane shared", combinations(instructions=INSTRUCTIONS)),)
