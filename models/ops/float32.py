"""Matrix products in full float32 on every device; l2 norm; the activations SiLU and SwiGLU.

They end in a division, so XLA computes them once (ops/layout: fusion).
"""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

MIN_EXPONENT = -80.0
"""Clip for exponents against overflow in derivatives; below it silu is 0 to 33 decimals."""


def full_einsum(equation: str, *operands: Array) -> Array:
    return jnp.einsum(equation, *operands, precision=lax.Precision.HIGHEST)


def silu(x: Array) -> Array:
    """Return `x * sigmoid(x)` (SiLU, arXiv:1702.03118)."""
    return x / (1.0 + jnp.exp(-jnp.maximum(x, MIN_EXPONENT)))


def silu_gated(gate: Array, up: Array) -> Array:
    """Return `silu(gate) * up` (SwiGLU, arXiv:2002.05202)."""
    return gate * up / (1.0 + jnp.exp(-jnp.maximum(gate, MIN_EXPONENT)))


def l2_norm(x: Float32[Array, "*rows size"], eps: float = 1e-6) -> Float32[Array, "*rows size"]:
    """Return `x / sqrt(sum(x^2) + eps)` over the last dimension."""
    return x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + eps)
