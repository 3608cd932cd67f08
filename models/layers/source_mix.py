"""Attention over depth: a mix of earlier outputs of a decoder (Attention Residuals, arXiv:2603.15031)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float32

from models.layers.initial import matrix
from models.layers.norms import RMSNorm
from models.state.shapes import Activations, over_last


class SourceMix(nnx.Module):
    """Mean of a token's sources, weighted by a softmax over them of `query . norm(source)`.

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
