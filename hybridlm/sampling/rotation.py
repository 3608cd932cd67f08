"""An orthogonal rotation that spreads outliers over all components, for quantization to few levels.

Inner products and norms are preserved. Random signs are followed by two cosine transforms, over the rows and over the
columns of the vector reshaped to a matrix, so that an outlier is spread over all components. QuaRot (Ashkboos et al.
2024) uses Hadamard matrices, which do not exist for every size.
"""

import functools
import math

import numpy as np
from jax import Array, lax
from jaxtyping import Float32


def rotated(x: Float32[Array, "row size"]) -> Float32[Array, "row size"]:
    """Rotate each row."""
    rows, size = x.shape
    left, right = _factors(size)
    matrix = (x * _signs(size)[None]).reshape((rows, left, right))
    for count in (left, right):
        # The transformed axis moves to the end, so the other one is next.
        matrix = lax.dot_general(matrix, _cosines(count), (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
    return matrix.reshape((rows, size))


def rotation_error(size: int) -> float:
    """Error bound of inner products of rotated vectors, relative to the product of both norms."""
    # Rounding of each sum of n products; the norm of |A| is at most sqrt(n) for an orthogonal A. Both are rotated.
    return 2 * sum((count + 4) * math.sqrt(count) for count in _factors(size)) * 2.0**-24


def _factors(size: int) -> tuple[int, int]:
    """Return the two closest integers whose product is the size."""
    small = next(one for one in range(math.isqrt(size), 0, -1) if size % one == 0)
    return small, size // small


@functools.cache
def _cosines(size: int) -> np.ndarray:
    """Return the orthonormal cosine transform (DCT-II), one output per row."""
    output, place = np.arange(size)[:, None], np.arange(size)[None, :]
    matrix = np.sqrt(2 / size) * np.cos(np.pi * output * (2 * place + 1) / (2 * size))
    matrix[0] /= np.sqrt(2)
    return matrix.astype(np.float32)


@functools.cache
def _signs(size: int) -> np.ndarray:
    return np.where(np.random.default_rng(0).random(size) < 0.5, -1, 1).astype(np.float32)
