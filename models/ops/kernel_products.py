"""Products of float32 matrices inside GPU kernels, on matrix units.

A plain float32 product does not fit into registers.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

BFLOAT16_TERMS = 3
"""Terms of a float32."""
MIN_ROWS = 16
"""Rows, columns and terms of the least product that Triton has."""


def kernel_product(left: Array, right: Array, over: int) -> Array:
    """Multiply two matrices of float32, bfloat16 or float16, accumulated in float32.

    A float32 is the sum of three bfloat16 numbers, a float16 of two, the largest first.

    Args:
        left: `[row, term]`.
        right: `[term, column]` for over=0, `[column, term]` for over=1.
        over: dimension of `right` to sum over.
    """
    dims = (((1,), (over,)), ((), ()))
    if left.dtype == right.dtype == jnp.float16:
        return lax.dot_general(left, right, dims, preferred_element_type=jnp.float32)
    pairs = [(i + j, a, b) for i, a in enumerate(_terms(left)) for j, b in enumerate(_terms(right))]
    products = [
        lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)
        for order, a, b in reversed(pairs)
        if order < BFLOAT16_TERMS
    ]
    return sum(products[1:], products[0])


def bfloat16_terms(dtype: Any) -> int:
    """Return the number of bfloat16 numbers with a float's sum."""
    return {"bfloat16": 1, "float16": 2}.get(jnp.dtype(dtype).name, BFLOAT16_TERMS)


def _terms(x: Array) -> list[Array]:
    count, terms = bfloat16_terms(x.dtype), []
    if count == 1:
        return [x]
    x = x.astype(jnp.float32)
    for _ in range(count):
        terms.append(x.astype(jnp.bfloat16))
        x = x - terms[-1].astype(jnp.float32)
    return terms
