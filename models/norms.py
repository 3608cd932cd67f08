"""Root-mean-square norms, computed in float32."""

import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float32

from models.shapes import over_last


def rms_norm(
    x: Float32[Array, "*rows size"], weight: Float32[Array, "size"], eps: float
) -> Float32[Array, "*rows size"]:
    """`x * rsqrt(mean(x^2) + eps) * weight` over the last dimension (arXiv:1910.07467)."""
    scale = lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    return x * scale * over_last(weight, x)


def l2_norm(x: Float32[Array, "*rows size"], eps: float = 1e-6) -> Float32[Array, "*rows size"]:
    """`x / sqrt(sum(x^2) + eps)` over the last dimension; a division, as in `activations`."""
    return x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + eps)


class RMSNorm(nnx.Module):
    """RMS norm with a learned weight; `offset` 1 where the checkpoint stores the weight minus one."""

    def __init__(self, size: int, eps: float, offset: float = 0.0):
        self.weight = nnx.Param(jnp.full((size,), 1.0 - offset, jnp.float32))
        self.eps = eps
        self.offset = offset

    def __call__(self, x: Float32[Array, "*rows size"]) -> Float32[Array, "*rows size"]:
        return rms_norm(x, self.weight[...] + self.offset, self.eps)
