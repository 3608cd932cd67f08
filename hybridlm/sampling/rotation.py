"""A change of basis in which no number of a vector stands out, so that few levels tell all of them well.

Inner products and norms stay. The basis is that of two cosine transforms, over the rows and over the columns of a
vector that is taken as a matrix, behind random signs: of a number that is far larger than the others each gets a part.
QuaRot (Ashkboos et al. 2024) does it with Hadamard matrices, which not every size has.
"""

import functools
import math

import numpy as np
from jax import Array, lax
from jaxtyping import Float32


def rotated(x: Float32[Array, "row size"]) -> Float32[Array, "row size"]:
    """Each row in the other basis."""
    rows, size = x.shape
    left, right = _factors(size)
    matrix = (x * _signs(size)[None]).reshape((rows, left, right))
    for count in (left, right):
        # The transformed axis goes to the end, which brings the other one to its place.
        matrix = lax.dot_general(matrix, _cosines(count), (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
    return matrix.reshape((rows, size))


def rotation_error(size: int) -> float:
    """How far what `rotated` gives can be from exact inner products, as a part of the norms of both vectors."""
    # Of each sum of n products; |A| has no norm above sqrt(n) for an orthogonal A. Both vectors are rotated.
    return 2 * sum((count + 4) * math.sqrt(count) for count in _factors(size)) * 2.0**-24


def _factors(size: int) -> tuple[int, int]:
    """Two numbers whose product is the size, as close to each other as there are."""
    small = next(one for one in range(math.isqrt(size), 0, -1) if size % one == 0)
    return small, size // small


@functools.cache
def _cosines(size: int) -> np.ndarray:
    """The orthonormal cosine transform (DCT-II), one output in each row."""
    output, place = np.arange(size)[:, None], np.arange(size)[None, :]
    matrix = np.sqrt(2 / size) * np.cos(np.pi * output * (2 * place + 1) / (2 * size))
    matrix[0] /= np.sqrt(2)
    return matrix.astype(np.float32)


@functools.cache
def _signs(size: int) -> np.ndarray:
    return np.where(np.random.default_rng(0).random(size) < 0.5, -1, 1).astype(np.float32)
