"""State space duality (SSD, arXiv:2405.21060), the recurrence of Mamba2, token by token and in chunks.

Per lane and value head, with decay a_t = exp(g_t), key B_t and query C_t of the head's group, value v_t and state S
[value, key]:

    S_t = a_t S_{t-1} + v_t B_t^T        y_t = S_t C_t

`recurrence` has operands, results and contract. A group shares the scores of a chunk, without their decay.
"""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
from jax import Array

from models.ops.float32 import full_einsum
from models.ops.layout import unfused
from models.ops.recurrences.chunk_decay import decays_between
from models.ops.recurrences.chunk_scan_gpu import KERNEL as SCAN_KERNEL
from models.ops.recurrences.chunk_scan_gpu import scan_with_head_decay
from models.ops.recurrences.chunked_scan import ChunkOperands, scan_chunks, split
from models.ops.recurrences.recurrence import RecurrenceInputs, RecurrenceOutputs, Surroundings, over_slots
from models.ops.recurrences.recurrent_step import by_kernel, with_surroundings

CHUNK = 32
"""Tokens of a chunk, as for the delta rule."""


def ssd(
    inputs: RecurrenceInputs, keep_state: bool = False, surroundings: Surroundings | None = None
) -> RecurrenceOutputs:
    """Run the recurrence by a kernel, or by the token form (one token) or chunks.

    `surroundings` None: the caller applies them.
    """
    if surroundings is not None:
        if (outputs := with_surroundings(inputs, surroundings, keep_state)) is not None:
            return outputs
        scale, skip = surroundings
        output, state = ssd(replace(inputs, value=scale[..., None] * inputs.value), keep_state)
        return RecurrenceOutputs(output + skip[None, None, :, None] * inputs.value, state)
    if inputs.tokens == 1:
        return ssd_step(inputs, keep_state)
    return by_kernel(partial(ssd_chunked, keep_state=keep_state), inputs, keep_state)


def ssd_step(inputs: RecurrenceInputs, keep_state: bool = False) -> RecurrenceOutputs:
    return by_kernel(partial(over_slots, _step, keep_state=keep_state), inputs, keep_state)


def _step(inputs: RecurrenceInputs) -> RecurrenceOutputs:
    """Run one token; the output is read from the new state (ops/layout: in place)."""
    heads, groups = inputs.value.shape[2], inputs.query.shape[2]
    q, k = (jnp.repeat(x[:, 0], heads // groups, axis=1) for x in (inputs.query, inputs.key))
    v, g = inputs.value[:, 0], inputs.log_decay[:, 0]
    real = inputs.valid[:, :, None, None]
    decayed = jnp.where(inputs.fresh[:, None, None, None], 0.0, jnp.exp(g)[:, :, None, None] * inputs.state)
    updated = jnp.where(real, decayed + v[:, :, :, None] * k[:, :, None, :], inputs.state)
    out = unfused(full_einsum("nhik,nhvk->nhiv", q[:, :, None], updated)[:, None, :, 0], inputs.devices.platform)
    return RecurrenceOutputs(jnp.where(real, out, 0.0), updated)


def ssd_chunked(inputs: RecurrenceInputs, chunk: int = CHUNK, keep_state: bool = False) -> RecurrenceOutputs:
    """Run the recurrence by chunks (arXiv:2405.21060, section 6).

    With G = cumsum(g) in a chunk, token i reads token j <= i with the score C_i . B_j exp(G_i - G_j).
    """
    heads, groups = inputs.value.shape[2], inputs.query.shape[2]
    chunk = min(chunk, inputs.tokens)
    if SCAN_KERNEL.chosen(inputs.devices, inputs, chunk):
        return scan_with_head_decay(inputs, chunk, keep_state)
    if inputs.slots is not None:
        return over_slots(partial(ssd_chunked, chunk=chunk, keep_state=keep_state), inputs, keep_state)
    # [chunk, lane, group, (head of the group,) token of the chunk, ..]
    q, k = (jnp.moveaxis(split(x, inputs.valid, chunk), 2, 3) for x in (inputs.query, inputs.key))
    v, g = (_grouped(split(x, inputs.valid, chunk), groups) for x in (inputs.value, inputs.log_decay))
    total, decay = decays_between(g)
    scores = full_einsum("cngik,cngjk->cngij", q, k)[:, :, :, None] * decay
    end = total[..., -1:]

    def by_head(x: Array) -> Array:
        """[chunk, lane, group, head of the group, ..] -> [chunk, lane, head, ..]"""
        return x.reshape((*x.shape[:2], heads, *x.shape[4:]))

    def write(read: Array, v: Array, rest: tuple[Array, ...]) -> tuple[Array, Array]:
        written, scores, reads = rest
        # SSD does not need the read, but `scan_chunks` needs values computed from it. NaN state stays NaN.
        values = jnp.where(jnp.isnan(read), read, written)
        return values, reads * read + full_einsum("nhij,nhjv->nhiv", scores, v)

    written = v * jnp.exp(end - total)[..., None]
    rest = tuple(map(by_head, (written, scores, jnp.exp(total)[..., None])))
    chunks = ChunkOperands(q, k, by_head(jnp.exp(end)), by_head(v), rest)
    return scan_chunks(inputs, chunks, write, keep_state)


def _grouped(x: Array, groups: int) -> Array:
    """`[chunk, lane, token, head, ..]` -> `[chunk, lane, group, head of the group, token, ..]`"""
    return jnp.moveaxis(x.reshape((*x.shape[:3], groups, -1, *x.shape[4:])), 2, 4)
