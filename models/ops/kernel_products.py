"""Products of float32 matrices inside GPU kernels, on matrix units.

A plain float32 product does not fit into registers.
"""

import jax.numpy as jnp
from jax import Array, lax

BFLOAT16_TERMS = 3
MIN_ROWS = 16
"""Rows, columns and terms of the least product that Triton has."""


def kernel_product(left: Array, right: Array, over: int) -> Array:
    """Multiply two matrices of float32 or bfloat16, accumulated in float32.

    A float32 is the sum of three bfloat16 numbers, the largest first.

    Args:
        left: `[row, term]`.
        right: `[term, column]` for over=0, `[column, term]` for over=1.
        over: dimension of `right` to sum over.
    """
    dims = (((1,), (over,)), ((), ()))
    pairs = [(i + j, a, b) for i, a in enumerate(_terms(left)) for j, b in enumerate(_terms(right))]
    products = [
        lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)
        for order, a, b in reversed(pairs)
        if order < BFLOAT16_TERMS
    ]
    return sum(products[1:], products[0])


def _terms(x: Array) -> list[Array]:
    if x.dtype == jnp.bfloat16:
        return [x]
    x, terms = x.astype(jnp.float32), []
    for _ in range(BFLOAT16_TERMS):
        terms.append(x.astype(jnp.bfloat16))
        x = x - terms[-1].astype(jnp.float32)
    return terms
