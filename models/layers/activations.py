"""Activations SiLU, SwiGLU and GEGLU, and fixed factors on activations.

SiLU ends in a division, so XLA computes it once (ops/layout: fusion).
"""

import math

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

MIN_EXPONENT = -80.0
"""Clip for exponents against overflow in derivatives; below it silu is 0 to 33 decimals."""


def silu(x: Array) -> Array:
    """Return `x * sigmoid(x)` (SiLU, arXiv:1702.03118)."""
    return x / (1.0 + jnp.exp(-jnp.maximum(x, MIN_EXPONENT)))


def silu_gated(gate: Array, up: Array) -> Array:
    """Return `silu(gate) * up` (SwiGLU, arXiv:2002.05202)."""
    return gate * up / (1.0 + jnp.exp(-jnp.maximum(gate, MIN_EXPONENT)))


def gelu_gated(gate: Array, up: Array) -> Array:
    """Return `gelu(gate) * up`, with the exact normal distribution (GEGLU, arXiv:2002.05202)."""
    return gate * up * (0.5 + 0.5 * lax.erf(gate * math.sqrt(0.5)))


def scaled(x: Float32[Array, "*rows size"], factor: float) -> Float32[Array, "*rows size"]:
    """Return `x * factor`, without a multiplication by 1 (muP, arXiv:2203.03466)."""
    return x if factor == 1.0 else x * factor
