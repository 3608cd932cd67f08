"""What the chunked forms of all linear recurrences share: tokens in chunks, and the scan that carries the state.

Of the state S [value, key] before a chunk some rows are read; from what they read a recurrence computes the values that
its tokens write and its outputs; then S becomes `decay S + values^T keys`. The contract of models/ops/delta_rule.py is
kept here: no token that is not real is used, a fresh lane's state is not, and that of a lane without real tokens comes
back unchanged, bit for bit.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

from models.ops.float32 import full_einsum, multiply_few
from models.ops.layout import own_array
from models.state.shapes import LaneMask, RecurrentState, TokenMask

ROWS_IN_SUMS = 16
"""Up to so many the state is read for in sums: with 10 rows these take 0.55 of the time of a product, with 16 rows 0.7,
with 32 rows 1.7 times it (8 lanes of 8 heads, 128 channels of keys and values)."""

Read = Float32[Array, "lane value_head row value"]
Values = Float32[Array, "lane value_head place value"]


def split(x: Array, valid: TokenMask, chunk: int) -> Array:
    """`[lane, token, ..]` -> `[chunk, lane, token of the chunk, ..]`: zero where not real, the last chunk filled up."""
    lanes, tokens = valid.shape
    count = -(-tokens // chunk)
    x = jnp.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), x, 0.0)
    x = jnp.pad(x, [(0, 0), (0, count * chunk - tokens)] + [(0, 0)] * (x.ndim - 2))
    return jnp.moveaxis(x.reshape((lanes, count, chunk, *x.shape[2:])), 1, 0)


def scan_chunks(
    state: RecurrentState,
    reads: Float32[Array, "chunk lane head row key"],
    keys: Float32[Array, "chunk lane head place key"],
    decay: Float32[Array, "chunk lane value_head channel"],
    rest: Any,
    written: Callable[[Read, Any], tuple[Values, Values]],
    valid: TokenMask,
    fresh: LaneMask,
    keep: bool = False,
) -> tuple[Float32[Array, "lane token value_head value"], RecurrentState]:
    """Carry the state through the chunks.

    Args:
        state: before the first token.
        reads: rows that read the state before their chunk; as many heads as the state has, or a divisor of that, each
            for as many value heads next to each other.
        keys: of the tokens of a chunk, with what is left of each at its end; heads as for `reads`.
        decay: of a whole chunk, per channel of the key or one for all.
        rest: arrays with a leading axis of chunks, which `written` needs.
        written: `(read, rest)` of one chunk -> the values that are written with its keys, and its tokens' outputs. The
            values have to be computed from `read`: of a read that the write does not wait for, XLA copies the state.
        valid, fresh, keep: as for `delta_rule`.

    Returns:
        Outputs, zero at tokens that are not real, and the state after each lane's last real token.
    """
    active = jnp.any(valid, axis=1)[:, None, None, None]
    count, lanes, heads = len(decay), *state.shape[:2]
    first = jnp.arange(count, dtype=jnp.int32) == 0
    begins = (first[:, None] & fresh[None])[:, :, None, None, None]

    def for_all_heads(x: Array) -> Array:
        return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)

    def advance(state: Array, inputs: tuple[Any, ...]) -> tuple[Array, Array]:
        reads, keys, decay, rest, begins = inputs
        # Zeros for lanes that begin are put in place of what is read and of what is added to: of the state itself XLA
        # would write a second one first.
        read = jnp.where(begins, 0.0, _read(for_all_heads(reads), state))
        values, out = written(read, rest)
        decayed = jnp.where(begins, 0.0, decay[..., None, :] * state)
        return jnp.where(active, decayed + full_einsum("nhiv,nhik->nhvk", values, for_all_heads(keys)), state), out

    inputs = (reads, keys, decay, rest, begins)
    if keep and count > 1:
        # A loop writes in place of the state that it begins with, so that XLA would copy one that is kept. The first
        # chunk, outside of the loop, makes a new one.
        state, before = advance(state, jax.tree.map(lambda x: x[0], inputs))
        updated, behind = lax.scan(advance, state, jax.tree.map(lambda x: x[1:], inputs))
        out = jnp.concatenate([before[None], behind])
    else:
        updated, out = lax.scan(advance, state, inputs)
    out = jnp.moveaxis(jnp.moveaxis(out, 3, 2), 0, 1).reshape((lanes, -1, heads, out.shape[-1]))[:, : valid.shape[1]]
    return jnp.where(valid[:, :, None, None], out, 0.0), updated


def _read(rows: Float32[Array, "lane value_head row key"], state: RecurrentState) -> Read:
    if rows.shape[2] <= ROWS_IN_SUMS:
        # Whatever uses it would make the last additions again.
        return own_array(multiply_few(rows, state))
    return full_einsum("nhik,nhvk->nhiv", rows, state)
