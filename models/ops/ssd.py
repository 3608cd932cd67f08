"""The recurrence of Mamba2 (state space duality, arXiv:2405.21060), token by token and in chunks.

Per lane and value head, with decay a_t = exp(g_t), key B_t and query C_t of the head's group, value v_t and state S
[value, key]:

    S_t = a_t S_{t-1} + v_t B_t^T        y_t = S_t C_t

The contract is that of models/ops/delta_rule.py: tokens that are not real are never used, whatever they hold; their
outputs are zero; a fresh lane's state is never used; the state of a lane without real tokens comes back unchanged, bit
for bit. It is a file of its own because of what the two recurrences do not share: here nothing is corrected, so there
is no triangular system, and a whole group of heads has one key and one query, so that the scores of a chunk are
computed once for the group (16 heads in Nemotron-3-Super) and only their decay for each head.
"""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

from models.ops.chunk_decay import decays_between
from models.ops.chunked_scan import scan_chunks, split
from models.ops.float32 import full_einsum, multiply_few
from models.ops.layout import own_array
from models.state.shapes import LaneMask, RecurrentState, TokenMask

CHUNK = 32
"""Tokens of a chunk: with 128 channels of keys and values, more cost more inside chunks than between them."""

Keys = Float32[Array, "lane token group key"]
Values = Float32[Array, "lane token value_head value"]
Gates = Float32[Array, "lane token value_head"]


def ssd(
    query: Keys,
    key: Keys,
    value: Values,
    log_decay: Gates,
    state: RecurrentState,
    valid: TokenMask,
    fresh: LaneMask,
    keep: bool = False,
) -> tuple[Values, RecurrentState]:
    """The recurrence in the form that suits the number of tokens of the step.

    Args:
        query, key: C and B, one for each group; value head h belongs to group `h // (value_heads / groups)`.
        value: x, scaled by the time step of its head.
        log_decay: g <= 0, the time step times A.
        state: state before the first token.
        valid: which tokens are real; a prefix of each lane.
        fresh: lanes that start from zero, whatever their state holds; they have a real token.
        keep: the state before the first token is needed afterwards, and several chunks write none in its place.

    Returns:
        Outputs (zero at tokens that are not real) and the state after each lane's last real token.
    """
    if query.shape[1] == 1:
        return ssd_step(query, key, value, log_decay, state, valid, fresh)
    return ssd_chunked(query, key, value, log_decay, state, valid, fresh, keep=keep)


def ssd_step(
    query: Keys, key: Keys, value: Values, log_decay: Gates, state: RecurrentState, valid: TokenMask, fresh: LaneMask
) -> tuple[Values, RecurrentState]:
    """One token. The output is read from the new state: of the old one it would keep a copy beside the new."""
    heads, groups = value.shape[2], query.shape[2]
    q, k = (jnp.repeat(x[:, 0], heads // groups, axis=1) for x in (query, key))
    v, g = value[:, 0], log_decay[:, 0]
    real = valid[:, :, None, None]
    decayed = jnp.where(fresh[:, None, None, None], 0.0, jnp.exp(g)[:, :, None, None] * state)
    updated = jnp.where(real, decayed + v[:, :, :, None] * k[:, :, None, :], state)
    # Whatever uses it would make the last additions again.
    out = own_array(multiply_few(q[:, :, None], updated)[:, None, :, 0])
    return jnp.where(real, out, 0.0), updated


def ssd_reference(
    query: Keys, key: Keys, value: Values, log_decay: Gates, state: RecurrentState, valid: TokenMask, fresh: LaneMask
) -> tuple[Values, RecurrentState]:
    """Token by token, as the equation is written."""
    repeats = value.shape[2] // query.shape[2]

    def token(state: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, g, real = inputs
        q, k = jnp.repeat(q, repeats, axis=1), jnp.repeat(k, repeats, axis=1)
        updated = jnp.exp(g)[:, :, None, None] * state + v[:, :, :, None] * k[:, :, None, :]
        out = full_einsum("nhvk,nhk->nhv", updated, q)
        real = real[:, None, None]
        return jnp.where(real[..., None], updated, state), jnp.where(real, out, 0.0)

    inputs = tuple(jnp.moveaxis(x, 1, 0) for x in (query, key, value, log_decay, valid))
    state = jnp.where(fresh[:, None, None, None], 0.0, state)
    state, out = lax.scan(token, state, inputs)
    return jnp.moveaxis(out, 0, 1), state


def ssd_chunked(
    query: Keys,
    key: Keys,
    value: Values,
    log_decay: Gates,
    state: RecurrentState,
    valid: TokenMask,
    fresh: LaneMask,
    chunk: int = CHUNK,
    keep: bool = False,
) -> tuple[Values, RecurrentState]:
    """Chunks of tokens at a time (arXiv:2405.21060, section 6).

    Inside a chunk with G = cumsum(g), token i reads token j <= i with the score C_i . B_j exp(G_i - G_j); only the
    state between chunks is sequential.

    Args:
        chunk: tokens per chunk; the last chunk is filled up with tokens that are not real.
        keep: as for `ssd`.
    """
    heads, groups = value.shape[2], query.shape[2]
    chunk = min(chunk, query.shape[1])
    # [chunk, lane, group, (head of the group,) token of the chunk, ..]
    q, k = (jnp.moveaxis(split(x, valid, chunk), 2, 3) for x in (query, key))
    v, g = (_grouped(split(x, valid, chunk), groups) for x in (value, log_decay))
    total, left = decays_between(g)
    scores = full_einsum("cngik,cngjk->cngij", q, k)[:, :, :, None] * left
    end = total[..., -1:]

    def by_head(x: Array) -> Array:
        """[chunk, lane, group, head of the group, ..] -> [chunk, lane, head, ..]"""
        return x.reshape((*x.shape[:2], heads, *x.shape[4:]))

    def written(read: Array, rest: tuple[Array, ...]) -> tuple[Array, Array]:
        left, scores, v, reads = rest
        # Nothing is corrected by what is read, and yet the values are computed from it; a state that is NaN stays so
        # either way.
        values = jnp.where(jnp.isnan(read), read, left)
        return values, reads * read + full_einsum("nhij,nhjv->nhiv", scores, v)

    left = v * jnp.exp(end - total)[..., None]
    rest = tuple(map(by_head, (left, scores, v, jnp.exp(total)[..., None])))
    return scan_chunks(state, q, k, by_head(jnp.exp(end)), rest, written, valid, fresh, keep)


def _grouped(x: Array, groups: int) -> Array:
    """`[chunk, lane, token, head, ..]` -> `[chunk, lane, group, head of the group, token, ..]`"""
    return jnp.moveaxis(x.reshape((*x.shape[:3], groups, -1, *x.shape[4:])), 2, 4)
