"""The gated delta rule (Gated DeltaNet, arXiv:2412.06464, eq. 10), token by token and in chunks.

Per lane and head, with decay a_t = exp(g_t), key k_t, value v_t, write strength b_t and state S [value, key]:

    S_t = a_t S_{t-1} + b_t (v_t - a_t S_{t-1} k_t) k_t^T        o_t = S_t q_t

The decay is one number per head, or one per channel of the key (Kimi Delta Attention, arXiv:2510.26692): then a_t S is
S diag(a_t). `recurrence` has operands, results and contract.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

from models.ops.float32 import full_einsum, l2_norm
from models.ops.layout import materialize, unfused
from models.ops.recurrences.chunk_decay import channel_decay, head_decay, power_of_two
from models.ops.recurrences.chunk_scan_gpu import KERNEL as SCAN_KERNEL
from models.ops.recurrences.chunk_scan_gpu import ScanOperands, chunk_scan, in_chunks, scan_with_head_decay
from models.ops.recurrences.chunked_scan import ChunkOperands, scan_chunks, split
from models.ops.recurrences.recurrence import (
    ChannelGates,
    HeadGates,
    RecurrenceInputs,
    RecurrenceOutputs,
    RowStates,
    over_slots,
)
from models.ops.recurrences.recurrent_step import by_kernel, with_channels
from models.ops.recurrences.triangular import unit_lower_inverse
from models.sharding.devices import Devices
from models.state.shapes import LaneInfo

CHUNK = 32
"""Tokens of a chunk: with 128 channels of keys and values, more cost more than they save."""


class DeltaTokens(NamedTuple):
    """Per-token inputs of a layer with short convolution and delta rule.

    Attributes:
        conv: inputs of the convolution, channels [q | k | v].
        log_decay: g <= 0, per head or per channel of the key.
    """

    conv: Float32[Array, "lane token channel"]
    log_decay: HeadGates | ChannelGates
    beta: HeadGates


def delta_rule(inputs: RecurrenceInputs, keep_state: bool = False) -> RecurrenceOutputs:
    """Run the recurrence by a kernel, the token form (one token) or chunks."""
    if inputs.tokens == 1:
        return delta_rule_step(inputs, keep_state)
    return by_kernel(partial(delta_rule_chunked, keep_state=keep_state), inputs, keep_state)


def run_delta_rule(
    channels: Float32[Array, "lane token channel"],
    key_heads: int,
    tokens: DeltaTokens,
    info: LaneInfo,
    state: RowStates,
    devices: Devices,
) -> RecurrenceOutputs:
    """Run the recurrence of a layer on the outputs of its convolution.

    Queries and keys are l2-normalised, and queries scaled; a kernel reads them in place.

    Args:
        channels: queries [key_head, key], keys alike, and values [value_head, value].
        key_heads: each serves as many adjacent value heads.
        info: with `info.verifying` the old state is kept.
    """
    (lanes, length, _), (_, heads, value_size, size) = channels.shape, state.shape
    q, k, v = jnp.split(channels, [key_heads * size, 2 * key_heads * size], axis=-1)
    q, k = (y.reshape((lanes, length, key_heads, size)) for y in (q, k))
    v = v.reshape((lanes, length, heads, value_size))
    q, k = l2_norm(q) * size**-0.5, l2_norm(k)
    if key_heads < heads:
        q, k = (jnp.repeat(y, heads // key_heads, axis=2) for y in (q, k))
    inputs = RecurrenceInputs(
        q, k, v, tokens.log_decay, state, info.valid, info.fresh, tokens.beta, devices, info.slots
    )
    outputs = with_channels(inputs, channels, key_heads, info.verifying)
    return delta_rule(inputs, keep_state=info.verifying) if outputs is None else outputs


def delta_rule_step(inputs: RecurrenceInputs, keep_state: bool = False) -> RecurrenceOutputs:
    plain = _step
    if inputs.devices.platform == "gpu":  # XLA updates a single lane's row in place
        plain = _step_for_gpus if inputs.slots is None or len(inputs.slots) == 1 else _step_of_taken_rows
    return by_kernel(partial(over_slots, plain, keep_state=keep_state), inputs, keep_state)


def _step(inputs: RecurrenceInputs) -> RecurrenceOutputs:
    """Run one token with one read.

    The read is r = a S [q, k], the output r_q + (q.k) delta.
    """
    state, beta, fresh = inputs.state, _beta(inputs), inputs.fresh
    q, k, v, g, b = (x[:, 0] for x in (inputs.query, inputs.key, inputs.value, inputs.log_decay, beta))
    channels = g.ndim == k.ndim
    decay = jnp.exp(g if channels else g[:, :, None])
    reads = jnp.stack([decay * q, decay * k] if channels else [q, k], axis=2)
    read = jnp.where(fresh[:, None, None, None], 0.0, full_einsum("nhik,nhvk->nhiv", reads, state))
    read_q, read_k = jnp.moveaxis(read, 2, 0)
    if not channels:
        read_q, read_k = decay * read_q, decay * read_k
    delta = b[:, :, None] * (v - read_k)
    out = read_q + jnp.sum(q * k, axis=-1, keepdims=True) * delta
    decayed = jnp.where(fresh[:, None, None, None], 0.0, decay[:, :, None] * state)
    updated = decayed + delta[:, :, :, None] * k[:, :, None, :]
    real = inputs.valid[:, :, None, None]
    return RecurrenceOutputs(jnp.where(real, out[:, None], 0.0), jnp.where(real, updated, state))


def _step_for_gpus(inputs: RecurrenceInputs) -> RecurrenceOutputs:
    """Run one token in two operations: a read, and an update with output.

    XLA:GPU fuses a sum of products into the state's write, but not a matrix product. Without barriers it would fuse the
    output into later operations and read the state again, or into a Triton operation, which cannot write in place.
    """
    state, beta = inputs.state, _beta(inputs)
    q, k, v, g, b = (x[:, 0] for x in (inputs.query, inputs.key, inputs.value, inputs.log_decay, beta))
    q, k = unfused(q, inputs.devices.platform), unfused(k, inputs.devices.platform)
    decay = jnp.exp(g if g.ndim == k.ndim else g[:, :, None])
    decayed = jnp.where(inputs.fresh[:, None, None, None], 0.0, decay[:, :, None] * state)
    delta = b[:, :, None] * (v - unfused(jnp.sum(decayed * k[:, :, None], axis=-1), inputs.devices.platform))
    real = inputs.valid[:, :, None, None]
    updated = jnp.where(real, decayed + delta[:, :, :, None] * k[:, :, None], state)
    out = unfused(jnp.sum(updated * q[:, :, None], axis=-1), inputs.devices.platform)
    return RecurrenceOutputs(jnp.where(real, out[:, None], 0.0), updated)


def _step_of_taken_rows(inputs: RecurrenceInputs) -> RecurrenceOutputs:
    """Run one token in two operations.

    The first has both reads and a copy of the rows, the second an update that a scatter writes. XLA:GPU fuses no read
    of a pool into its scatter. An output computed from the new rows would need a second copy.
    """
    state, beta, fresh = inputs.state, _beta(inputs), inputs.fresh[:, None, None]
    q, k, v, g, b = (x[:, 0] for x in (inputs.query, inputs.key, inputs.value, inputs.log_decay, beta))
    q, k = unfused(q, inputs.devices.platform), unfused(k, inputs.devices.platform)
    decay = jnp.exp(g if g.ndim == k.ndim else g[:, :, None])
    reads = [jnp.sum(state * unfused(decay * x, inputs.devices.platform)[:, :, None], axis=-1) for x in (q, k)]
    rows, *reads = lax.optimization_barrier([state, *reads])
    read_q, read_k = (jnp.where(fresh, 0.0, read) for read in reads)
    delta = unfused(b[:, :, None] * (v - read_k), inputs.devices.platform)
    out = read_q + jnp.sum(q * k, axis=-1, keepdims=True) * delta
    decayed = jnp.where(fresh[..., None], 0.0, decay[:, :, None] * rows)
    real = inputs.valid[:, :, None, None]
    updated = jnp.where(real, decayed + delta[:, :, :, None] * k[:, :, None], rows)
    return RecurrenceOutputs(jnp.where(real, out[:, None], 0.0), updated)


def delta_rule_chunked(inputs: RecurrenceInputs, chunk: int = CHUNK, keep_state: bool = False) -> RecurrenceOutputs:
    """Run the recurrence by chunks in WY form (arXiv:2412.06464, section 3.3).

    A chunk's corrections solve a unit lower triangular system.
    """
    channels = inputs.log_decay.ndim == inputs.key.ndim
    chunk = min(chunk, inputs.tokens)
    chunk = power_of_two(chunk) if channels else chunk
    by_kernel = SCAN_KERNEL.chosen(inputs.devices, inputs, chunk)
    if inputs.slots is not None and not by_kernel:
        return over_slots(partial(delta_rule_chunked, chunk=chunk, keep_state=keep_state), inputs, keep_state)
    if by_kernel and not channels:
        return scan_with_head_decay(inputs, chunk, keep_state)
    # [chunk, lane, head, token of the chunk, ..]
    per_token = (inputs.query, inputs.key, inputs.value, inputs.log_decay, _beta(inputs))
    q, k, v, g, b = (jnp.moveaxis(split(x, inputs.valid, chunk), 2, 3) for x in per_token)
    decayed = (channel_decay if channels else head_decay)(q, k, g)
    corrected = unit_lower_inverse(b[..., None] * decayed.system) * b[..., None, :]

    def write(read: Array, values: Array, rest: tuple[Array, ...]) -> tuple[Array, Array]:
        corrected, scores, since = rest
        read_k, read_q = jnp.split(read, 2, axis=2)
        delta = full_einsum("nhij,nhjv->nhiv", corrected, values - since * read_k)
        return delta, since * read_q + full_einsum("nhij,nhjv->nhiv", scores, delta)

    if by_kernel:
        reads, queries = jnp.split(decayed.reads, 2, axis=-2)
        values = in_chunks(inputs.value, chunk)
        tokens = ScanOperands(queries, reads, decayed.k_out, decayed.end, values, corrected, decayed.scores, None, None)
        return chunk_scan(inputs, tokens, keep_state=keep_state, interpret=inputs.devices.interpret)
    # Not materialized, the values would be transposed into another order first, and copied.
    rest = corrected, decayed.scores, decayed.since
    chunks = ChunkOperands(decayed.reads, decayed.k_out, decayed.end, materialize(v), rest)
    return scan_chunks(inputs, chunks, write, keep_state)


def _beta(inputs: RecurrenceInputs) -> HeadGates:
    assert inputs.beta is not None, "the delta rule needs the write strength of each token"
    return inputs.beta
