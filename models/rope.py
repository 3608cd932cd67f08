"""Rotary position embedding (arXiv:2104.09864), half-split form, on the first dimensions of a head."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int32

from models.config import ConfigReader


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the first `size` dimensions of every head.

    Text has equal temporal, height and width positions, for which multimodal rotary embedding is the plain one.

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


def read_rope(reader: ConfigReader, head_dim: int, theta: float, partial: float) -> Rope:
    """Rotary settings from `rope_parameters`, or from the older top-level fields.

    Args:
        reader: the text part of config.json.
        head_dim: size of a head.
        theta, partial: the family's defaults for `rope_theta` and `partial_rotary_factor`.
    """
    scaling = reader.child("rope_scaling")
    parameters = reader.child("rope_parameters")
    for place in (scaling, parameters):
        if place is not None:
            name = "rope_type" if "rope_type" in place or "type" not in place else "type"
            place.choice(name, ["default", "mrope"] if place is scaling else ["default"], "default")
            place.get("type")
            place.get("mrope_section")
            place.get("mrope_interleaved")
    theta = reader.number("rope_theta", theta)
    partial = reader.number("partial_rotary_factor", partial)
    place = reader
    if parameters is not None:
        theta = parameters.number("rope_theta", theta)
        partial = parameters.number("partial_rotary_factor", partial)
        place = parameters if "partial_rotary_factor" in parameters else reader
    size = int(head_dim * partial)
    if size % 2 or not 0 < size <= head_dim:
        place.fault("partial_rotary_factor", f"an even number of rotated dimensions of {head_dim}, not {size}")
        size = 2
    return Rope(size, theta)
