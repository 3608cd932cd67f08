"""The gated delta rule (arXiv:2412.06464, eq. 10), token by token and in chunks.

Per lane and head, with decay a_t = exp(g_t), key k_t, value v_t, write strength b_t and state S [value, key]:

    S_t = a_t S_{t-1} + b_t (v_t - a_t S_{t-1} k_t) k_t^T        o_t = S_t q_t

The decay is one number per head, or one per channel of the key (Kimi Delta Attention, arXiv:2510.26692), in which case
a_t S is S diag(a_t). The forms differ only in how a chunk's tokens decay into each other (`chunk_decay`).

All forms have one signature and one contract: tokens that are not real are never used, whatever they hold; their
outputs are zero; a fresh lane's state is never used; the state of a lane without real tokens comes back unchanged, bit
for bit.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

from models.ops.chunk_decay import channel_decay, head_decay, power_of_two
from models.ops.chunked_scan import scan_chunks, split
from models.ops.float32 import full_einsum, multiply_few
from models.ops.layout import own_array
from models.ops.triangular import unit_lower_inverse
from models.state.shapes import LaneMask, RecurrentState, TokenMask

CHUNK = 32
"""Tokens of a chunk: with 128 channels of keys and values, more cost more inside chunks than between them."""

Keys = Float32[Array, "lane token value_head key"]
Values = Float32[Array, "lane token value_head value"]
Gates = Float32[Array, "lane token value_head"]
LogDecay = Gates | Float32[Array, "lane token value_head key"]


class DeltaGiven(NamedTuple):
    """What a layer with a convolution and the delta rule gives to them of each token.

    Attributes:
        conv: inputs of the convolution, channels [q | k | v].
        decay: g <= 0, per head or per channel of the key.
        beta: write strength.
    """

    conv: Float32[Array, "lane token channel"]
    decay: LogDecay
    beta: Gates


def delta_rule(
    query: Keys,
    key: Keys,
    value: Values,
    log_decay: LogDecay,
    beta: Gates,
    state: RecurrentState,
    valid: TokenMask,
    fresh: LaneMask,
    keep: bool = False,
) -> tuple[Values, RecurrentState]:
    """The recurrence in the form that suits the number of tokens of the step.

    Args:
        query, key: l2-normalised and scaled by the caller.
        value: values.
        log_decay: g <= 0, per head or per channel of the key.
        beta: write strength.
        state: state before the first token.
        valid: which tokens are real; a prefix of each lane.
        fresh: lanes that start from zero, whatever their state holds; they have a real token.
        keep: the state before the first token is needed afterwards, and several chunks write none in its place.

    Returns:
        Outputs (zero at tokens that are not real) and the state after each lane's last real token.
    """
    if query.shape[1] == 1:
        return delta_rule_step(query, key, value, log_decay, beta, state, valid, fresh)
    return delta_rule_chunked(query, key, value, log_decay, beta, state, valid, fresh, keep=keep)


def delta_rule_step(
    query: Keys,
    key: Keys,
    value: Values,
    log_decay: LogDecay,
    beta: Gates,
    state: RecurrentState,
    valid: TokenMask,
    fresh: LaneMask,
) -> tuple[Values, RecurrentState]:
    """One token. Reads the state once: with r = a S [q, k], o = r_q + (q.k) delta needs no second pass.

    A fresh lane's zeros are put in place of what is read and of what is added to, not of the state itself: a product
    reads arrays, so that XLA would write a second state first.
    """
    q, k, v, g, b = (x[:, 0] for x in (query, key, value, log_decay, beta))
    channels = g.ndim == k.ndim
    decay = jnp.exp(g if channels else g[:, :, None])
    reads = jnp.stack([decay * q, decay * k] if channels else [q, k], axis=2)
    read_q, read_k = jnp.moveaxis(jnp.where(fresh[:, None, None, None], 0.0, multiply_few(reads, state)), 2, 0)
    if not channels:
        read_q, read_k = decay * read_q, decay * read_k
    delta = b[:, :, None] * (v - read_k)
    out = read_q + jnp.sum(q * k, axis=-1, keepdims=True) * delta
    decayed = jnp.where(fresh[:, None, None, None], 0.0, decay[:, :, None] * state)
    updated = decayed + delta[:, :, :, None] * k[:, :, None, :]
    real = valid[:, :, None, None]
    return jnp.where(real, out[:, None], 0.0), jnp.where(real, updated, state)


def delta_rule_reference(
    query: Keys,
    key: Keys,
    value: Values,
    log_decay: LogDecay,
    beta: Gates,
    state: RecurrentState,
    valid: TokenMask,
    fresh: LaneMask,
) -> tuple[Values, RecurrentState]:
    """Token by token, as the equation is written."""

    def token(state: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, g, b, real = inputs
        decayed = jnp.exp(g).reshape((*g.shape[:2], 1, -1)) * state
        delta = b[:, :, None] * (v - full_einsum("nhvk,nhk->nhv", decayed, k))
        updated = decayed + delta[:, :, :, None] * k[:, :, None, :]
        out = full_einsum("nhvk,nhk->nhv", updated, q)
        real = real[:, None, None]
        return jnp.where(real[..., None], updated, state), jnp.where(real, out, 0.0)

    inputs = tuple(jnp.moveaxis(x, 1, 0) for x in (query, key, value, log_decay, beta, valid))
    state = jnp.where(fresh[:, None, None, None], 0.0, state)
    state, out = lax.scan(token, state, inputs)
    return jnp.moveaxis(out, 0, 1), state


def delta_rule_chunked(
    query: Keys,
    key: Keys,
    value: Values,
    log_decay: LogDecay,
    beta: Gates,
    state: RecurrentState,
    valid: TokenMask,
    fresh: LaneMask,
    chunk: int = CHUNK,
    keep: bool = False,
) -> tuple[Values, RecurrentState]:
    """Chunks of tokens at a time (the WY form, arXiv:2412.06464, section 3.3).

    Inside a chunk the corrections of all tokens solve one unit lower triangular system, whose inverse is computed for
    all chunks at once; what their values are corrected by is read from the state, which is sequential.

    Args:
        chunk: tokens per chunk; the last chunk is filled up with tokens that are not real.
        keep: as for `delta_rule`.
    """
    tokens = query.shape[1]
    channels = log_decay.ndim == key.ndim
    chunk = power_of_two(min(chunk, tokens)) if channels else min(chunk, tokens)
    # [chunk, lane, head, token of the chunk, ..]
    q, k, v, g, b = (jnp.moveaxis(split(x, valid, chunk), 2, 3) for x in (query, key, value, log_decay, beta))
    decayed = (channel_decay if channels else head_decay)(q, k, g)
    corrected = unit_lower_inverse(b[..., None] * decayed.system) * b[..., None, :]

    def written(read: Array, rest: tuple[Array, ...]) -> tuple[Array, Array]:
        values, corrected, scores, since = rest
        # One product reads the state for both.
        read_k, read_q = jnp.split(read, 2, axis=2)
        delta = full_einsum("nhij,nhjv->nhiv", corrected, values - since * read_k)
        return delta, since * read_q + full_einsum("nhij,nhjv->nhiv", scores, delta)

    # Values in an array of their own: XLA would transpose them into another order first, and copy that.
    rest = own_array(v), corrected, decayed.scores, decayed.since
    return scan_chunks(state, decayed.reads, decayed.k_out, decayed.end, rest, written, valid, fresh, keep)
