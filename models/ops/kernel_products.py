"""Products of float32 matrices inside of kernels for GPUs: in float32, on matrix units.

A product in float32 proper is written out number by number there, and does not fit into registers.
"""

import jax.numpy as jnp
from jax import Array, lax

BFLOAT16_TERMS = 3
"""Numbers of bfloat16 in one of float32."""
MIN_ROWS = 16
"""Rows, columns and terms of the least product that Triton has."""


def kernel_product(one: Array, other: Array, over: int) -> Array:
    """Return the product of two matrices, of float32 or bfloat16, over the columns of the one, in float32.

    Matrix units multiply bfloat16: three numbers of it, the largest first, are a float32.

    Args:
        one: `[row, term]`.
        other: `[term, column]` for over=0, `[column, term]` for over=1.
        over: the dimension of the other that is summed over.
    """
    pairs = [(i + j, a, b) for i, a in enumerate(_terms(one)) for j, b in enumerate(_terms(other))]
    products = [_product(a, b, over) for order, a, b in reversed(pairs) if order < BFLOAT16_TERMS]
    return sum(products[1:], products[0])


def _terms(x: Array) -> list[Array]:
    """Return numbers of bfloat16 whose sum is x."""
    if x.dtype == jnp.bfloat16:
        return [x]
    x, terms = x.astype(jnp.float32), []
    for _ in range(BFLOAT16_TERMS):
        terms.append(x.astype(jnp.bfloat16))
        x = x - terms[-1].astype(jnp.float32)
    return terms


def _product(one: Array, other: Array, over: int) -> Array:
    return lax.dot_general(one, other, (((1,), (over,)), ((), ())), preferred_element_type=jnp.float32)
