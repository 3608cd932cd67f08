"""Matrix products in full float32, also on devices whose default precision is lower."""

import functools
import math
import operator

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

from models.ops.layout import materialize

VECTOR = 4
"""Partial sums of each product. With 128 channels of keys, 8 take 1.1 times as long, 16 take 1.2 times."""
MAX_TERMS = 32
"""Terms of a partial sum: groups of 16 take twice as long as one of 32; 64 run no faster and compile twice as long."""


def full_einsum(equation: str, *operands: Array) -> Array:
    """Return `jnp.einsum` of float32 arrays in full float32."""
    return jnp.einsum(equation, *operands, precision=lax.Precision.HIGHEST)


def multiply_few(
    rows: Float32[Array, "lane head row in"], matrix: Float32[Array, "lane head out in"], platform: str = "cpu"
) -> Float32[Array, "lane head row out"]:
    """Return `rows @ matrix.T` of each lane and head, for a few rows: on GPUs and TPUs a product, on a CPU sums.

    Sums of elementwise products read the matrix once and in order, at the speed of memory where no cache holds it.
    XLA:CPU's matrix product, and sums over a dimension that is not the last, read it at half that speed.

    The last lane is computed first (of a single lane, the last head; ops/layout: cores): the core that ends last goes
    on with the first part of the next operation, often an update of the matrix, and where each core has a cache of its
    own it has just read that part. The last additions are left to the consumer of the result: an operation of their own
    would be split over the cores, too, and exchange them. (docs/performance.md has the times.)
    """
    if platform != "cpu":
        return full_einsum("nhik,nhvk->nhiv", rows, matrix)
    inputs = matrix.shape[3]
    vector = math.gcd(VECTOR, inputs)
    terms = next(count for count in range(min(MAX_TERMS, inputs // vector), 0, -1) if inputs // vector % count == 0)
    # [lane, head, out, row, group of terms, term, place in a vector]: a row of the matrix is read once, for all rows.
    rows = _last_first(materialize(rows)).reshape((*rows.shape[:2], 1, rows.shape[2], -1, terms, vector))
    matrix = matrix.reshape((*matrix.shape[:3], 1, -1, terms, vector))
    # Slices of the matrix are reversed: XLA would write the whole reversed matrix.
    products = [rows[..., i, :] * _last_first(matrix[..., i, :]) for i in range(terms)]
    # Two independent chains of sums. ops/layout, fusion: the matrix would be read again for each use of the result.
    sums = materialize(_sum([_sum(chain) for chain in (products[::2], products[1::2]) if chain]))
    y = _sum([sums[..., group, place] for place in range(vector) for group in range(sums.shape[-2])])
    return jnp.swapaxes(_last_first(y), 2, 3)


def _sum(terms: list[Array]) -> Array:
    return functools.reduce(operator.add, terms)


def _last_first(x: Float32[Array, "lane head *rest"]) -> Float32[Array, "lane head *rest"]:
    return lax.rev(x, (0 if len(x) > 1 else 1,))
