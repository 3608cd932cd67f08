"""Products that keep all of float32, on devices too that would use fewer bits by default."""

import functools
import math
import operator

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

from models.own_array import own_array

TERMS = 16
"""Of a partial sum. With 128 channels of keys and values 32 are as fast, 8 take 1.6 times as long, 64 three times."""


def full_einsum(equation: str, *operands: Array) -> Array:
    """`jnp.einsum` of float32 arrays, in full float32."""
    return jnp.einsum(equation, *operands, precision=lax.Precision.HIGHEST)


def multiply_few(
    rows: Float32[Array, "lane head row in"], matrix: Float32[Array, "lane head in out"]
) -> Float32[Array, "row lane head out"]:
    """`rows @ matrix` of each lane and head, for a few rows, in sums of elementwise products; an array of its own.

    XLA:CPU's product does not read ahead of what it computes; such sums read a matrix that no cache holds in 0.65 to
    0.8 of the time (docs/performance.md).
    """
    terms = math.gcd(TERMS, matrix.shape[2])
    rows = rows.reshape((*rows.shape[:3], -1, terms))
    matrix = matrix.reshape((*matrix.shape[:2], 1, -1, terms, matrix.shape[3]))
    sums = functools.reduce(operator.add, (rows[..., i, None] * matrix[..., i, :] for i in range(terms)))
    y = functools.reduce(operator.add, (sums[:, :, :, i] for i in range(sums.shape[3])))
    # XLA would read the matrix again wherever the result is used.
    return own_array(jnp.moveaxis(own_array(y), 2, 0))
