"""GEGLU, bounded SwiGLU and fixed factors on activations; SiLU and SwiGLU are in `models.ops.float32`."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

from models.ops.float32 import silu, silu_gated


def gelu_gated(gate: Array, up: Array) -> Array:
    """Return `gelu(gate) * up`, with the exact normal distribution (GEGLU, arXiv:2002.05202)."""
    return gate * up * (0.5 + 0.5 * lax.erf(gate * math.sqrt(0.5)))


class SwigluLimit(NamedTuple):
    """Greatest size of SwiGLU's factors.

    Attributes:
        of_silu: bound `silu(gate)` instead of `gate`.
    """

    size: float
    of_silu: bool = False


def bounded_silu_gated(gate: Array, up: Array, limit: SwigluLimit | None) -> Array:
    """Return SwiGLU of a bounded gate (or its SiLU) and a bounded `up`."""
    if limit is None:
        return silu_gated(gate, up)
    bounded = jnp.maximum(jnp.minimum(up, limit.size), -limit.size)
    if limit.of_silu:
        return jnp.minimum(silu(gate), limit.size) * bounded
    return silu_gated(jnp.minimum(gate, limit.size), bounded)


def scaled(x: Float32[Array, "*rows size"], factor: float) -> Float32[Array, "*rows size"]:
    """Return `x * factor`, without a multiplication by 1 (muP, arXiv:2203.03466)."""
    return x if factor == 1.0 else x * factor
