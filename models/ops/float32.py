"""Matrix products in full float32 on every device."""

import jax.numpy as jnp
from jax import Array, lax


def full_einsum(equation: str, *operands: Array) -> Array:
    """Return `jnp.einsum` of float32 arrays in full float32."""
    return jnp.einsum(equation, *operands, precision=lax.Precision.HIGHEST)
