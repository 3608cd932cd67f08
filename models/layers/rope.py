"""Rotary position embedding (RoPE, arXiv:2104.09864), half-split form, on the first dimensions of a head."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int32


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the first `size` dimensions of every head.

    Multimodal RoPE is the plain one here: text has equal temporal, height and width positions.

    Attributes:
        size: rotated dimensions (`head_dim * partial_rotary_factor`), even.
        theta: base of the frequencies (`rope_theta`).
    """

    size: int
    theta: float

    def __call__(
        self, x: Float32[Array, "lane token head key"], positions: Int32[Array, "lane token"]
    ) -> Float32[Array, "lane token head key"]:
        half = self.size // 2
        frequency = jnp.asarray(1.0 / self.theta ** (np.arange(half, dtype=np.float32) / half), jnp.float32)
        angle = positions.astype(jnp.float32)[:, :, None, None] * frequency[None, None, None, :]
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        a, b, rest = x[..., :half], x[..., half : self.size], x[..., self.size :]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)
