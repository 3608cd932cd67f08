"""Products that keep all of float32, on devices too that would use fewer bits by default."""

import jax.numpy as jnp
from jax import Array, lax


def full_einsum(equation: str, *operands: Array) -> Array:
    """`jnp.einsum` of float32 arrays, in full float32."""
    return jnp.einsum(equation, *operands, precision=lax.Precision.HIGHEST)
