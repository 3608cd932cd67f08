"""Fixed factors on activations."""

from jax import Array
from jaxtyping import Float32


def scaled(x: Float32[Array, "*rows size"], factor: float) -> Float32[Array, "*rows size"]:
    """Return `x * factor`, without a multiplication by 1 (muP, arXiv:2203.03466)."""
    return x if factor == 1.0 else x * factor
