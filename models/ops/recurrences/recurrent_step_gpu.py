"""GPU kernel: a few tokens of a linear recurrence, in place.

The plain forms of `delta_rule` and `ssd` define it. A program instance has some state rows S[v] of one lane and value
head.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float32

from models.ops.float32 import l2_norm
from models.ops.gpu_call import gpu_call, load_if, rows_bytes, store_if
from models.ops.kernels import Kernel
from models.ops.recurrences.recurrence import RecurrenceInputs, RecurrenceOutputs, Surroundings
from models.sharding.devices import result_like

MAX_ROWS = 32
"""Rows of the state of one program instance."""
MAX_TOKENS = 16
"""Unrolled tokens."""
MAX_KEY = 256
"""Key channels: more do not fit into registers."""


def supports(inputs: RecurrenceInputs) -> bool:
    values, keys = inputs.state.shape[2:]
    return inputs.tokens <= MAX_TOKENS and keys <= MAX_KEY and not keys & (keys - 1) and not values & (values - 1)


KERNEL = Kernel("recurrent_step_kernel", "gpu", supports)


def recurrent_step_kernel(
    *refs: Any, by_slot: bool, by_channel: bool, corrects: bool, normed: bool, surrounded: bool, keep_state: bool
) -> None:
    """Advance some rows of the state of one lane and head.

    Args:
        refs: operands: lane rows, int32[lane], in full, if `by_slot`; valid, int32[lane, token], and fresh,
            int32[lane], in full; log decay, float32[lane, token, head] in full, or [token, key]; beta, float32[lane,
            token, head], in full; q, k [token, key]; v [token, value], this instance's rows; state [value, key], or in
            full if `by_slot`; scale, float32[lane, token, head], and skip, float32[head], in full, if `surrounded`.
            Results: outputs like v; new state in the old one's memory, unless `keep_state`. Idle lanes read and write
            no state.
        corrects: subtract the key's read from the value (delta rule).
        normed: normalise keys and queries, and scale queries.
        surrounded: scale values before the write, and add them to the outputs.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    valid, fresh, decay, beta, q, k, v, state, *rest = refs[by_slot:]
    scale, skip = rest[:2] if surrounded else (None, None)
    out, new = (rest[-1], None) if keep_state else rest[-2:]
    lane, head, rows = pl.program_id(0), pl.program_id(1), v.shape[1]
    place: Any = (refs[0][lane], head, pl.ds(pl.program_id(2) * rows, rows), slice(None)) if by_slot else ...
    matrix = load_if(valid[lane, 0] > 0, state.at[place])
    for token in range(q.shape[0]):
        real, key, query = valid[lane, token] > 0, k[token, :], q[token, :]
        if normed:
            key, query = l2_norm(key), l2_norm(query) * len(query) ** -0.5
        decayed = (jnp.exp(decay[token, :])[None] if by_channel else jnp.exp(decay[lane, token, head])) * matrix
        if token == 0:
            decayed = jnp.where(fresh[lane] > 0, 0.0, decayed)
        delta = value = v[token, :]
        if scale is not None:
            delta = scale[lane, token, head] * value
        if corrects:
            delta = beta[lane, token, head] * (delta - jnp.sum(decayed * key[None], axis=1))
        matrix = jnp.where(real, decayed + delta[:, None] * key[None], matrix)
        read = jnp.sum(matrix * query[None], axis=1)
        if skip is not None:
            read = read + skip[head] * value
        out[token, :] = jnp.where(real, read, 0.0)
    if new is not None:
        store_if(valid[lane, 0] > 0, new.at[place], matrix)


def recurrent_step(
    inputs: RecurrenceInputs,
    surroundings: Surroundings | None = None,
    channels: Float32[Array, "lane token channel"] | None = None,
    key_heads: int = 0,
    *,
    keep_state: bool = False,
    interpret: bool,
) -> RecurrenceOutputs:
    """Run a few tokens of every lane; no new state with `keep_state`.

    Args:
        surroundings: factors on values.
        channels: queries and keys of `key_heads` heads, without norm, and values; they replace the inputs' arrays.
    """
    (_, heads, values, keys), slots = inputs.state.shape, inputs.slots
    lanes, by_slot = len(inputs.valid), slots is not None
    tokens, by_channel = inputs.tokens, inputs.log_decay.ndim == inputs.key.ndim
    shared = heads // (inputs.key.shape[2] if channels is None else key_heads)
    beta = inputs.log_decay[..., 0] if by_channel else inputs.log_decay
    beta = beta if inputs.beta is None else inputs.beta
    rows = min(MAX_ROWS, values)

    def of_head(size: int, index: Any) -> Any:
        return (None, tokens, None, size), index

    def key_head(head: Any) -> Any:
        return lax.div(head, np.int32(shared)) if shared > 1 else head

    def keys_from(first: int) -> Any:
        return (None, tokens, keys), lambda lane, head, tile: (lane, 0, key_head(head) + np.int32(first))

    by_key = of_head(keys, lambda lane, head, tile: (lane, 0, head, 0))
    of_value = of_head(rows, lambda lane, head, tile: (lane, 0, head, tile))
    if channels is None:
        vectors = inputs.query, inputs.key, inputs.value
        query = key = of_head(keys, lambda lane, head, tile: (lane, 0, key_head(head), 0))
        value = of_value
    else:
        # Blocks of the channels: the proof takes no dimension of keys for one of values.
        vectors, tiles, first = (channels,) * 3, np.int32(values // rows), np.int32(2 * key_heads * keys // rows)
        query, key = keys_from(0), keys_from(key_heads)
        value = (None, tokens, rows), lambda lane, head, tile: (lane, 0, first + head * tiles + tile)
    matrix = None if by_slot else ((None, None, rows, keys), lambda lane, head, tile: (lane, head, tile, 0))
    operands = (
        *(() if slots is None else (slots,)), inputs.valid.astype(jnp.int32), inputs.fresh.astype(jnp.int32),
        inputs.log_decay, beta, *vectors, inputs.state,
    )  # fmt: skip
    decay = by_key if by_channel else None
    # Queries, keys and values in one array.
    read_heads = (heads // shared * keys, heads // shared * keys, heads * values)
    reads = {len(operands) - 4 + k: 4 * lanes * tokens * size for k, size in enumerate(read_heads)}
    reads[len(operands) - 1] = rows_bytes(inputs.state, lanes)
    factors = surroundings or ()
    out, *state = gpu_call(
        partial(
            recurrent_step_kernel,
            by_slot=by_slot,
            by_channel=by_channel,
            corrects=inputs.beta is not None,
            normed=channels is not None,
            surrounded=surroundings is not None,
            keep_state=keep_state,
        ),
        (lanes, heads, values // rows),
        [*[None] * (2 + by_slot), decay, None, query, key, value, matrix, *[None] * len(factors)],
        [(of_value, result_like(inputs.value.shape, jnp.float32, inputs.state)), (matrix, len(operands) - 1)][
            : 2 - keep_state
        ],
        reads=reads,
        interpret=interpret,
    )(*operands, *factors)
    return RecurrenceOutputs(out, None if keep_state else state[0])
