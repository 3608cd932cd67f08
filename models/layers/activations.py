"""GEGLU, bounded SwiGLU and fixed factors on activations; SiLU and SwiGLU are in `models.ops.float32`."""

import math

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

from models.ops.float32 import silu_gated


def gelu_gated(gate: Array, up: Array) -> Array:
    """Return `gelu(gate) * up`, with the exact normal distribution (GEGLU, arXiv:2002.05202)."""
    return gate * up * (0.5 + 0.5 * lax.erf(gate * math.sqrt(0.5)))


def bounded_silu_gated(gate: Array, up: Array, limit: float | None) -> Array:
    """Return SwiGLU with `gate` at most `limit` and `up` within plus and minus it.

    None is no limit.
    """
    if limit is None:
        return silu_gated(gate, up)
    return silu_gated(jnp.minimum(gate, limit), jnp.maximum(jnp.minimum(up, limit), -limit))


def scaled(x: Float32[Array, "*rows size"], factor: float) -> Float32[Array, "*rows size"]:
    """Return `x * factor`, without a multiplication by 1 (muP, arXiv:2203.03466)."""
    return x if factor == 1.0 else x * factor
