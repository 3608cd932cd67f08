"""Mixes of residual streams (gated hyper-connections of Qwen4-Exp) and of earlier outputs (Attention Residuals)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float32

from models.layers.initial import matrix
from models.layers.norms import RMSNorm, grouped_rms_norm
from models.ops.float32 import silu
from models.ops.linear import linear
from models.sharding.devices import Devices
from models.state.shapes import Activations, over_last


@dataclass(frozen=True)
class StreamsConfig:
    """Residual streams of a decoder.

    Attributes:
        count: of streams (`hc_count`).
        rank: of the projection to the gates of all streams (`hc_lowrank`).
    """

    count: int
    rank: int


class StreamMixer(nnx.Module):
    """Mean of the normed streams, each value with a gate: `mean_i sigmoid(up(silu(down(n) / count)))_i n_i`.

    `offset`, `eps`: of the norm of each stream; `injects`: also weigh a layer's output in each stream.
    """

    def __init__(
        self,
        c: StreamsConfig,
        hidden: int,
        eps: float,
        offset: float,
        devices: Devices,
        rngs: nnx.Rngs,
        injects: bool = False,
    ):
        self.count, self.eps, self.offset, self.devices = c.count, eps, offset, devices
        self.weight = nnx.Param(jnp.full((c.count * hidden,), 1.0 - offset, jnp.float32))
        self.down = matrix(rngs, c.rank, c.count * hidden)
        self.up = matrix(rngs, c.count * hidden, c.rank)
        self.inject = matrix(rngs, c.count, c.count * hidden) if injects else None

    def normed(self, x: Float32[Array, "*rows streams"]) -> Float32[Array, "*rows streams"]:
        return grouped_rms_norm(x, self.weight[...] + self.offset, self.count, self.eps, self.devices, 1)

    def mixed(self, normed: Float32[Array, "*rows streams"]) -> Float32[Array, "*rows hidden"]:
        low = silu(linear(normed, self.down[...], self.devices) / self.count)
        weighted = jax.nn.sigmoid(linear(low, self.up[...], self.devices)) * normed
        return jnp.mean(weighted.reshape((*normed.shape[:-1], self.count, -1)), axis=-2)

    def __call__(self, x: Float32[Array, "*rows streams"]) -> Float32[Array, "*rows hidden"]:
        return self.mixed(self.normed(x))

    def split(
        self, x: Float32[Array, "lane token streams"]
    ) -> tuple[Float32[Array, "lane token hidden"], Float32[Array, "lane token stream"]]:
        """Return a layer's input, and its output's weight in each stream."""
        assert self.inject is not None, "with `injects`"
        normed = self.normed(x)
        weights = 2.0 * jax.nn.sigmoid(linear(normed, self.inject[...], self.devices) / self.count)
        return self.mixed(normed), weights


def over_streams(
    y: Float32[Array, "lane token hidden"], weights: Float32[Array, "lane token stream"]
) -> Float32[Array, "lane token streams"]:
    return (y[:, :, None] * weights[..., None]).reshape((*y.shape[:2], -1))


class SourceMix(nnx.Module):
    """Mean of a token's sources, weighted by a softmax of `query . norm(source)` (arXiv:2603.15031).

    The query is a parameter. Each token mixes its own sources, in float32.
    """

    def __init__(self, hidden: int, eps: float, rngs: nnx.Rngs):
        self.query = matrix(rngs, 1, hidden)
        self.norm = RMSNorm(hidden, eps)

    def __call__(self, sources: Float32[Array, "lane token source hidden"]) -> Activations:
        query = self.query[...].astype(jnp.float32)[0]
        normed = self.norm(sources)
        weights = jax.nn.softmax(jnp.sum(normed * over_last(query, normed), axis=-1), axis=-1)
        return jnp.sum(sources * weights[..., None], axis=2)
