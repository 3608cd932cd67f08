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
    0.8 of the time.

    The last lane and head are computed first. Each core takes a part of the lanes, and the core that is the last to end
    goes on with the first part of what is computed next, which is often an update of the matrix: where each core has a
    cache of its own, that should be the part which it has read. (docs/performance.md has the times of both.)
    """
    terms = math.gcd(TERMS, matrix.shape[2])
    # [lane, head, group of terms, row, term]: a group's part of the matrix is read once, for all rows.
    rows = _last_first(jnp.swapaxes(rows.reshape((*rows.shape[:3], -1, terms)), 2, 3))
    matrix = matrix.reshape((*matrix.shape[:2], -1, terms, matrix.shape[3]))
    # Slices of the matrix are reversed, and not all of it, which XLA would write a second time.
    slices = (_last_first(matrix[:, :, :, i : i + 1]) for i in range(terms))
    sums = own_array(functools.reduce(operator.add, (rows[..., i : i + 1] * one for i, one in enumerate(slices))))
    y = functools.reduce(operator.add, (sums[:, :, i] for i in range(sums.shape[2])))
    # XLA would read the matrix again wherever the result is used.
    return own_array(jnp.moveaxis(_last_first(y), 2, 0))


def _last_first(x: Float32[Array, "lane head *rest"]) -> Float32[Array, "lane head *rest"]:
    return lax.rev(x, (0, 1))
