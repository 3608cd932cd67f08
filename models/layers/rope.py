"""Rotary position embedding (RoPE, arXiv:2104.09864), half-split form."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int32


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (arXiv:2309.00071): division of low frequencies by `factor`, with a ramp to high ones.

    Attributes:
        amplitude: of cosines and sines.
        beta_fast, beta_slow: rotations within `original`: more are unchanged, fewer divided.
        truncate: the ramp begins and ends at whole dimensions.
    """

    factor: float
    original: float
    amplitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def scaled(self, frequencies: Float32[np.ndarray, " half"], theta: float) -> Float32[np.ndarray, " half"]:
        half = len(frequencies)

        def dimension(rotations: float) -> float:
            return 2 * half * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * half - 1)
        if low == high:
            high += 0.001
        share = 1 - np.clip((np.arange(half, dtype=np.float32) - low) / (high - low), 0, 1).astype(np.float32)
        return frequencies / np.float32(self.factor) * (1 - share) + frequencies * share


@dataclass(frozen=True)
class Llama3Scaling:
    """Scaling of Llama 3.1: frequencies of long wavelengths divided by `factor`, with interpolation.

    Attributes:
        low_factor, high_factor: wavelengths above `original / low_factor` are long, below `original / high_factor`
            short.
    """

    factor: float
    original: float
    low_factor: float
    high_factor: float
    amplitude: float = 1.0

    def scaled(self, frequencies: Float32[np.ndarray, " half"], theta: float) -> Float32[np.ndarray, " half"]:
        wavelengths = np.float32(2 * math.pi) / frequencies
        share = (self.original / wavelengths - self.low_factor) / (self.high_factor - self.low_factor)
        share = np.clip(share, 0, 1).astype(np.float32)
        return (1 - share) * frequencies / np.float32(self.factor) + share * frequencies


@dataclass(frozen=True)
class ProportionalScaling:
    """Division of all frequencies by `factor`: position interpolation ("linear", arXiv:2306.15595).

    Attributes:
        rotated: number of first frequencies of a whole head that are not zero ("proportional"); None for all.
    """

    rotated: int | None
    factor: float = 1.0
    amplitude: float = 1.0

    def scaled(self, frequencies: Float32[np.ndarray, " half"], theta: float) -> Float32[np.ndarray, " half"]:
        scaled = frequencies / np.float32(self.factor)
        if self.rotated is None:
            return scaled
        return np.where(np.arange(len(frequencies)) < self.rotated, scaled, np.float32(0))


Scaling = YarnScaling | Llama3Scaling | ProportionalScaling


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the first `size` dimensions of every head.

    Multimodal RoPE is plain RoPE for text.

    Attributes:
        size: rotated dimensions, even.
        theta: base (`rope_theta`).
        scaling: `rope_type`; None for "default".
    """

    size: int
    theta: float
    scaling: Scaling | None = None

    @property
    def frequencies(self) -> Float32[np.ndarray, " half"]:
        """Radians per position."""
        half = self.size // 2
        plain = (1.0 / self.theta ** (np.arange(half, dtype=np.float32) / half)).astype(np.float32)
        return plain if self.scaling is None else self.scaling.scaled(plain, self.theta).astype(np.float32)

    def __call__(
        self, x: Float32[Array, "lane token head key"], positions: Int32[Array, "lane token"]
    ) -> Float32[Array, "lane token head key"]:
        half = self.size // 2
        frequency = jnp.asarray(self.frequencies, jnp.float32)
        angle = positions.astype(jnp.float32)[:, :, None, None] * frequency[None, None, None, :]
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        if self.scaling is not None and self.scaling.amplitude != 1.0:
            cos, sin = cos * self.scaling.amplitude, sin * self.scaling.amplitude
        a, b, rest = x[..., :half], x[..., half : self.size], x[..., self.size :]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)
