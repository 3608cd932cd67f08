"""GEGLU and fixed factors on activations; SiLU and SwiGLU are in `models.ops.float32`."""

import math

from jax import Array, lax
from jaxtyping import Float32


def gelu_gated(gate: Array, up: Array) -> Array:
    """Return `gelu(gate) * up`, with the exact normal distribution (GEGLU, arXiv:2002.05202)."""
    return gate * up * (0.5 + 0.5 * lax.erf(gate * math.sqrt(0.5)))


def scaled(x: Float32[Array, "*rows size"], factor: float) -> Float32[Array, "*rows size"]:
    """Return `x * factor`, without a multiplication by 1 (muP, arXiv:2203.03466)."""
    return x if factor == 1.0 else x * factor
