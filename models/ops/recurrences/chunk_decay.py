"""Decay between the tokens of a chunk, per head or per channel of the key.

Decays are finite logarithms g <= 0; every exponential is of a sum of decays, so nothing overflows.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32

from models.ops.float32 import full_einsum
from models.ops.layout import materialize

KeyRows = Float32[Array, "*batch token key"]
HeadDecay = Float32[Array, "*batch token"]
ChannelDecay = Float32[Array, "*batch token key"]


class DecayedChunk(NamedTuple):
    """Decayed products of a chunk; G_ij: decay from token j to token i.

    Attributes:
        scores: `q_i . (G_ij k_j)` for i >= j, zero elsewhere.
        system: `k_i . (G_ij k_j)` for i > j, zero elsewhere.
        reads: keys, then queries, for reads of the earlier state.
        since: factor on reads: decay since the chunk's beginning, or 1 if `reads` include it.
        k_out: keys times the decay until the chunk's end.
        end: over the chunk, per key channel or one for all.
    """

    scores: Float32[Array, "*batch token token"]
    system: Float32[Array, "*batch token token"]
    reads: Float32[Array, "*batch row key"]
    since: Float32[Array, "*batch token 1"]
    k_out: KeyRows
    end: Float32[Array, "*batch channel"]


def _triangle(size: int, diagonal: int, rank: int) -> Array:
    return jnp.asarray(np.tril(np.ones((size, size), bool), diagonal).reshape((1,) * (rank - 2) + (size, size)))


def decays_between(g: HeadDecay) -> tuple[HeadDecay, Float32[Array, "*batch token token"]]:
    """Return the log-decay since the chunk's start, and the decay between tokens."""
    # ops/layout, fusion: additions would be repeated for each pair.
    total = materialize(jnp.cumsum(g, axis=-1))
    lower = _triangle(g.shape[-1], 0, g.ndim + 1)
    return total, jnp.exp(jnp.where(lower, total[..., :, None] - total[..., None, :], -jnp.inf))


def head_decay(q: KeyRows, k: KeyRows, g: HeadDecay) -> DecayedChunk:
    """Return a chunk's products with a decay per head and token, applied last."""
    total, decay = decays_between(g)
    strict = _triangle(g.shape[-1], -1, g.ndim + 1)
    reads = jnp.concatenate([k, q], axis=-2)
    of_k, of_q = jnp.split(full_einsum("...ik,...jk->...ij", reads, k), 2, axis=-2)
    end = total[..., -1:]
    return DecayedChunk(
        scores=of_q * decay,
        system=jnp.where(strict, of_k * decay, 0.0),
        reads=reads,
        since=jnp.exp(total)[..., None],
        k_out=k * jnp.exp(end - total)[..., None],
        end=jnp.exp(end),
    )


def power_of_two(tokens: int) -> int:
    return 1 << (tokens - 1).bit_length()


def channel_decay(q: KeyRows, k: KeyRows, g: ChannelDecay) -> DecayedChunk:
    """Return a chunk's products with a decay per channel and token (KDA, arXiv:2510.26692).

    Such a decay does not factor out. A chunk, a power of two, is built by doubling: keys of the first half decay to the
    boundary, rows of the second from it. Sums run between a row and the boundary: differences of longer sums would lose
    a weak decay after a strong one.
    """

    def halves(x: Array) -> tuple[Array, Array]:
        x = x.reshape((*x.shape[:-3], x.shape[-3] // 2, 2, *x.shape[-2:]))
        return x[..., 0, :, :], x[..., 1, :, :]

    def doubled(x: Array) -> Array:
        return x.reshape((*x.shape[:-3], x.shape[-3] // 2, 2 * x.shape[-2], x.shape[-1]))

    def filled(x: Array, across: Array) -> Array:
        """Join diagonal blocks and blocks below to blocks of twice the size."""
        first, second = halves(x)
        above = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        return jnp.concatenate([above, jnp.concatenate([across, second], axis=-1)], axis=-2)

    chunk_q, chunk_k = q, k
    # ops/layout, fusion: sums would be rounded together with the product that gives a log-decay in some programs only.
    g = materialize(g)
    q, k, since = (x[..., None, :] for x in (q, k, g))
    until = jnp.zeros_like(since)
    scores = jnp.sum(q * k, axis=-1, keepdims=True)
    system = jnp.zeros_like(scores)
    while since.shape[-3] > 1:
        since_1, since_2 = halves(since)
        until_1, until_2 = halves(until)
        decay = jnp.exp(since_2)
        rows = jnp.concatenate([halves(q)[1] * decay, halves(k)[1] * decay], axis=-2)
        across = full_einsum("...ik,...jk->...ij", rows, halves(k)[0] * jnp.exp(until_1))
        of_q, of_k = jnp.split(across, 2, axis=-2)
        scores, system = filled(scores, of_q), filled(system, of_k)
        since = jnp.concatenate([since_1, since_1[..., -1:, :] + since_2], axis=-2)
        until = jnp.concatenate([until_1 + since_2[..., -1:, :], until_2], axis=-2)
        q, k = doubled(q), doubled(k)
    since, until = since[..., 0, :, :], until[..., 0, :, :]
    decay = jnp.exp(since)
    return DecayedChunk(
        scores=scores[..., 0, :, :],
        system=system[..., 0, :, :],
        reads=jnp.concatenate([chunk_k * decay, chunk_q * decay], axis=-2),
        since=jnp.ones_like(decay[..., :1]),
        k_out=chunk_k * jnp.exp(until),
        end=decay[..., -1, :],
    )
