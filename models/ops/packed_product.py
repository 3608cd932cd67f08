"""CPU kernels: products of rows with packed weights, from the stored codes.

Defined by `QuantisedWeight.numbers` and `dot`: results have the bits of the row product.
"""

import itertools
from functools import partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float32, Int32, Shaped

from models.cpu_kernels import INSTRUCTIONS
from models.ops.kernels import Kernel, combinations, cpu_call
from models.ops.quantised_codes import Codes
from models.ops.row_product import ANY_ROWS, DTYPES, MORE_ROWS, supports_rows

KINDS: tuple[Codes, ...] = get_args(Codes)
MORE_PACKED_ROWS = dict.fromkeys(MORE_ROWS, ANY_ROWS)
"""As `MORE_ROWS`; XLA writes the unpacked numbers to memory."""
PackedForm = tuple[Codes, str, str]
"""Kind of the codes, dtype of the products, and instruction set."""
MAX_EXPERT_ROWS = 1024
"""Rows of a product with experts; a matrix is unpacked once."""


def _supports(x: Any, weight: Any) -> bool:
    return weight.dtype in DTYPES and supports_rows(x.shape[0], weight.dtype, MORE_PACKED_ROWS)


def _supports_experts(x: Any, weight: Any) -> bool:
    return weight.dtype in DTYPES and 1 <= x.shape[0] <= MAX_EXPERT_ROWS


KERNEL = Kernel("hybridlm_packed_product", "cpu", _supports)
EXPERTS_KERNEL = Kernel("hybridlm_packed_expert_product", "cpu", _supports_experts)


@partial(jax.jit, static_argnames="form")
def packed_product(
    x: Float32[Array, "row in"],
    codes: Shaped[Array, "out stored"],
    scale: Float[Array, "out group"],
    whole: Float32[Array, "out one"],
    zero: Shaped[Array, "out offset"],
    *,
    form: PackedForm,
) -> Float32[Array, "row out"]:
    """Return `x @ weight.T`, each row by itself, accumulated in float32.

    With one instruction set, a row's bits do not depend on other rows.

    Args:
        x: at least one row; rounded to the dtype of the products.
        codes, scale: as for `QuantisedWeight`.
        whole, zero: likewise; empty for None.
    """
    return _call(KERNEL.name, codes.shape[0], (x, codes, scale, whole, zero), form)


@partial(jax.jit, static_argnames="form")
def packed_expert_product(
    x: Float32[Array, "row in"],
    codes: Shaped[Array, "expert out stored"],
    scale: Float[Array, "expert out group"],
    whole: Float32[Array, "expert out one"],
    zero: Shaped[Array, "expert out offset"],
    expert: Int32[Array, " row"],
    *,
    form: PackedForm,
) -> Float32[Array, "row out"]:
    """Return `y[r] = weight[expert[r]] @ x[r]`, as `packed_product`; NaN for an unknown expert."""
    return _call(EXPERTS_KERNEL.name, codes.shape[1], (x, codes, scale, whole, zero, expert), form)


_FORMS = combinations(form=itertools.product(KINDS, DTYPES, INSTRUCTIONS))
ROW_KERNELS = (
    (packed_product, "lane shared shared shared shared", _FORMS),
    (packed_expert_product, "lane shared shared shared shared lane", _FORMS),
)


def _call(name: str, outputs: int, operands: tuple[Array, ...], form: PackedForm) -> Float32[Array, "row out"]:
    kind, dtype, instructions = form
    codes, number = np.int64(KINDS.index(kind)), np.int64(DTYPES.index(dtype))
    result = (len(operands[0]), outputs), jnp.float32
    return cpu_call(name, operands, [result], instructions=instructions, kind=codes, dtype=number)[0]
