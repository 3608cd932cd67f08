"""Decay between the tokens of a chunk, in the two forms of the delta rule: per head, or per channel of the key.

Decays are logarithms g <= 0, finite, and every exponential here is one of a sum of them, hence at most 1: nothing
overflows, however strong a decay is, and what has decayed away is zero.
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
    """Decayed products of the tokens of a chunk, with G_ij the decay from token j to token i of the chunk.

    Attributes:
        scores: `q_i . (G_ij k_j)` for i >= j, zero elsewhere.
        system: `k_i . (G_ij k_j)` for i > j, zero elsewhere.
        reads: keys, and behind them queries, that read the state before the chunk.
        since: factor on what a token's key and query read: the decay since the beginning of the chunk, or one where
            `reads` include it.
        k_out: keys times the decay until the end of the chunk.
        end: decay over the whole chunk, per channel of the key or one for all.
    """

    scores: Float32[Array, "*batch token token"]
    system: Float32[Array, "*batch token token"]
    reads: Float32[Array, "*batch row key"]
    since: Float32[Array, "*batch token 1"]
    k_out: KeyRows
    end: Float32[Array, "*batch channel"]


def _triangle(size: int, diagonal: int, rank: int) -> Array:
    """Return the mask of entries on and below a diagonal, with `rank` dimensions."""
    return jnp.asarray(np.tril(np.ones((size, size), bool), diagonal).reshape((1,) * (rank - 2) + (size, size)))


def decays_between(g: HeadDecay) -> tuple[HeadDecay, Float32[Array, "*batch token token"]]:
    """Return the log-decay since the beginning of the chunk, and the decay from token j to token i >= j, else zero."""
    # ops/layout, fusion: the last additions would be repeated for each pair of tokens.
    total = materialize(jnp.cumsum(g, axis=-1))
    lower = _triangle(g.shape[-1], 0, g.ndim + 1)
    return total, jnp.exp(jnp.where(lower, total[..., :, None] - total[..., None, :], -jnp.inf))


def head_decay(q: KeyRows, k: KeyRows, g: HeadDecay) -> DecayedChunk:
    """Return the products of a chunk with one decay per head and token, which is applied to the finished products."""
    total, left = decays_between(g)
    strict = _triangle(g.shape[-1], -1, g.ndim + 1)
    reads = jnp.concatenate([k, q], axis=-2)
    of_k, of_q = jnp.split(full_einsum("...ik,...jk->...ij", reads, k), 2, axis=-2)
    end = total[..., -1:]
    return DecayedChunk(
        scores=of_q * left,
        system=jnp.where(strict, of_k * left, 0.0),
        reads=reads,
        since=jnp.exp(total)[..., None],
        k_out=k * jnp.exp(end - total)[..., None],
        end=jnp.exp(end),
    )


def power_of_two(tokens: int) -> int:
    """Return the least power of two that is at least `tokens`: a chunk that can be halved down to single tokens."""
    return 1 << (tokens - 1).bit_length()


def channel_decay(q: KeyRows, k: KeyRows, g: ChannelDecay) -> DecayedChunk:
    """Return the products of a chunk with one decay per channel and token (KDA, arXiv:2510.26692).

    Such a decay cannot be taken out of the products. The chunk, a power of two, is built from single tokens by
    doubling. Between two adjacent halves a key of the first half decays to the boundary, and the rows of the second
    half decay from the boundary: a matrix product. Sums of log-decays run between a row and the boundary only, never
        from the
    beginning of the chunk: differences of such long sums would lose a weak decay behind a strong one.
    """

    def halves(x: Array) -> tuple[Array, Array]:
        """Return the first and the second block of each pair."""
        x = x.reshape((*x.shape[:-3], x.shape[-3] // 2, 2, *x.shape[-2:]))
        return x[..., 0, :, :], x[..., 1, :, :]

    def doubled(x: Array) -> Array:
        """Join the rows of each pair of blocks."""
        return x.reshape((*x.shape[:-3], x.shape[-3] // 2, 2 * x.shape[-2], x.shape[-1]))

    def filled(x: Array, across: Array) -> Array:
        """Build lower triangular blocks of twice the size from their diagonal blocks and the blocks below."""
        first, second = halves(x)
        above = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        return jnp.concatenate([above, jnp.concatenate([across, second], axis=-1)], axis=-2)

    whole_q, whole_k = q, k
    # ops/layout, fusion: sums would be rounded together with the product behind a log-decay in some programs only.
    g = materialize(g)
    q, k, since = (x[..., None, :] for x in (q, k, g))
    until = jnp.zeros_like(since)
    scores = jnp.sum(q * k, axis=-1, keepdims=True)
    system = jnp.zeros_like(scores)
    while since.shape[-3] > 1:
        before, after = halves(since)
        left, later = halves(until)
        decay = jnp.exp(after)
        rows = jnp.concatenate([halves(q)[1] * decay, halves(k)[1] * decay], axis=-2)
        across = full_einsum("...ik,...jk->...ij", rows, halves(k)[0] * jnp.exp(left))
        of_q, of_k = jnp.split(across, 2, axis=-2)
        scores, system = filled(scores, of_q), filled(system, of_k)
        since = jnp.concatenate([before, before[..., -1:, :] + after], axis=-2)
        until = jnp.concatenate([left + after[..., -1:, :], later], axis=-2)
        q, k = doubled(q), doubled(k)
    since, until = since[..., 0, :, :], until[..., 0, :, :]
    decay = jnp.exp(since)
    return DecayedChunk(
        scores=scores[..., 0, :, :],
        system=system[..., 0, :, :],
        reads=jnp.concatenate([whole_k * decay, whole_q * decay], axis=-2),
        since=jnp.ones_like(decay[..., :1]),
        k_out=whole_k * jnp.exp(until),
        end=decay[..., -1, :],
    )
