"""Fixed factors that a config puts on activations (maximal update parametrisation, arXiv:2203.03466)."""

from jax import Array
from jaxtyping import Float32


def scaled(x: Float32[Array, "*rows size"], factor: float) -> Float32[Array, "*rows size"]:
    """`x * factor`, without a product where the factor is one."""
    return x if factor == 1.0 else x * factor
