"""How much of each token of a chunk is left at each later one: one decay per head, or one per channel of the key.

Decays are given as logarithms g <= 0, finite, and every exponential here is one of a sum of them, hence at most 1:
nothing overflows, however strong a decay is, and what has decayed away is zero.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float32

BLOCK = 16
"""Tokens between which the decays of single channels are compared pair by pair."""

Rows = Float32[Array, "*batch token key"]
HeadDecay = Float32[Array, "*batch token"]
ChannelDecay = Float32[Array, "*batch token key"]


class Decayed(NamedTuple):
    """What the recurrence needs of a chunk of tokens; with G_ij the decay of token j until token i, both of the chunk.

    Attributes:
        scores: `q_i . (G_ij k_j)` for i >= j, zero elsewhere.
        system: `w_i . (G_ij k_j)` for i > j, zero elsewhere.
        q_in, w_in: q and w times the decay since the beginning of the chunk.
        k_out: keys times the decay until the end of the chunk.
        end: decay of the whole chunk, per channel of the key or one for all.
    """

    scores: Float32[Array, "*batch token token"]
    system: Float32[Array, "*batch token token"]
    q_in: Rows
    w_in: Rows
    k_out: Rows
    end: Float32[Array, "*batch channel"]


def _dot(equation: str, *operands: Array) -> Array:
    return jnp.einsum(equation, *operands, precision=lax.Precision.HIGHEST)


def _triangle(size: int, diagonal: int, rank: int) -> Array:
    """Entries on and below a diagonal, as a mask of `rank` dimensions."""
    return jnp.asarray(np.tril(np.ones((size, size), bool), diagonal).reshape((1,) * (rank - 2) + (size, size)))


def head_decay(q: Rows, k: Rows, w: Rows, g: HeadDecay) -> Decayed:
    """One decay per head and token: the products of queries and keys are weighted afterwards."""
    total = jnp.cumsum(g, axis=-1)
    lower, strict = (_triangle(g.shape[-1], diagonal, g.ndim + 1) for diagonal in (0, -1))
    mask = jnp.exp(jnp.where(lower, total[..., :, None] - total[..., None, :], -jnp.inf))
    system = jnp.where(strict, _dot("...ik,...jk->...ij", w, k) * mask, 0.0)
    since = jnp.exp(total)[..., None]
    end = total[..., -1:]
    return Decayed(
        scores=_dot("...ik,...jk->...ij", q, k) * mask,
        system=system,
        q_in=q * since,
        w_in=w * since,
        k_out=k * jnp.exp(end - total)[..., None],
        end=jnp.exp(end),
    )


def whole_blocks(chunk: int) -> int:
    """The tokens of a chunk whose channels decay by themselves: as many as wanted, up to whole blocks."""
    return chunk if chunk <= BLOCK else -(-chunk // BLOCK) * BLOCK


def channel_decay(q: Rows, k: Rows, w: Rows, g: ChannelDecay) -> Decayed:
    """One decay per channel and token (arXiv:2510.26692): it cannot be taken out of the products.

    Inside a block the decay of each pair of tokens is formed by itself. A key reaches a later block as what is left of
    it when that block begins, and meets rows that have decayed since: products of matrices again. Sums run over the
    tokens between the two, never over all since the beginning: differences of such long sums would lose the decay of
    the last tokens behind a strong one before.
    """
    chunk, size = k.shape[-2:]
    block = min(BLOCK, chunk)
    count = chunk // block

    def blocks(x: Array) -> Array:
        return x.reshape((*x.shape[:-2], count, block, size))

    q, k, w, g = (blocks(x) for x in (q, k, w, g))
    since = jnp.cumsum(g, axis=-2)
    later = jnp.concatenate([g[..., 1:, :], jnp.zeros_like(g[..., :1, :])], axis=-2)
    until = lax.cumsum(later, axis=g.ndim - 2, reverse=True)
    whole = since[..., -1, :]
    # a: blocks before which something is needed, the end of the chunk being one; b: blocks before a; m: those between
    a, b, m = np.ogrid[: count + 1, :count, :count]
    between = _dot("abm,...mk->...abk", jnp.asarray((b < m) & (m < a), jnp.float32), whole)
    before = _dot("am,...mk->...ak", jnp.asarray((m < a)[:, 0], jnp.float32), whole)
    earlier = jnp.asarray((b < a)[..., 0]).reshape((1,) * (g.ndim - 3) + (count + 1, count, 1, 1))
    left = jnp.where(earlier, between[..., :, :, None, :] + until[..., None, :, :, :], -jnp.inf)
    reaching = k[..., None, :, :, :] * jnp.exp(left)

    lower, strict = (_triangle(block, diagonal, g.ndim)[..., None] for diagonal in (0, -1))
    apart = since[..., :, None, :] - since[..., None, :, :]
    same = jnp.eye(count, dtype=bool).reshape((1,) * (g.ndim - 3) + (count, 1, count, 1))

    def pairs(x: Array, inside: Array) -> Array:
        """x_i . (G_ij k_j), from products between blocks and from pairs inside each."""
        across = _dot("...aik,...abjk->...aibj", x * jnp.exp(since), reaching[..., :count, :, :, :])
        decay = jnp.exp(jnp.where(inside, apart, -jnp.inf))
        within = jnp.sum(x[..., :, None, :] * (k[..., None, :, :] * decay), axis=-1)
        return jnp.where(same, within[..., :, :, None, :], across).reshape((*x.shape[:-3], chunk, chunk))

    since_beginning = jnp.exp(before[..., :count, None, :] + since)
    return Decayed(
        scores=pairs(q, lower),
        system=pairs(w, strict),
        q_in=(q * since_beginning).reshape((*q.shape[:-3], chunk, size)),
        w_in=(w * since_beginning).reshape((*w.shape[:-3], chunk, size)),
        k_out=reaching[..., count, :, :, :].reshape((*k.shape[:-3], chunk, size)),
        end=jnp.exp(before[..., count, :]),
    )
