"""Activations that end in a division.

XLA:CPU computes an elementwise producer once for each of its consumers, and once for each element of a consumer that
it is broadcast into: the convolution in front of a recurrence would be computed again for every element of the state.
It does so with cheap operations; a division counts as expensive, and what ends in one is computed once and kept.

Fixed factors that a config puts on activations (maximal update parametrisation, arXiv:2203.03466).
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32

MIN_EXPONENT = -80.0
"""Below this the exponential of the negated input could overflow in a derivative; silu is 0 there to 33 decimals."""


def silu(x: Array) -> Array:
    """`x * sigmoid(x)` (arXiv:1702.03118)."""
    return x / (1.0 + jnp.exp(-jnp.maximum(x, MIN_EXPONENT)))


def silu_gated(gate: Array, up: Array) -> Array:
    """`silu(gate) * up` (arXiv:2002.05202)."""
    return gate * up / (1.0 + jnp.exp(-jnp.maximum(gate, MIN_EXPONENT)))


def scaled(x: Float32[Array, "*rows size"], factor: float) -> Float32[Array, "*rows size"]:
    """`x * factor`, without a product where the factor is one."""
    return x if factor == 1.0 else x * factor
