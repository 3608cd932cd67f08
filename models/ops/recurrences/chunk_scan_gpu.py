"""GPU kernel: the sequential part of the chunked forms.

Defined by `chunked_scan.scan_chunks`. A program instance carries some state rows of one lane and value head through the
chunks, in registers.
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float32

from models.ops.gpu_call import gpu_call, has_group_products, load_if, rows_bytes, store_if
from models.ops.kernel_products import MIN_ROWS, kernel_product
from models.ops.kernels import Kernel
from models.ops.recurrences.chunk_decay import decays_between
from models.ops.recurrences.chunked_scan import split
from models.ops.recurrences.recurrence import RecurrenceInputs, RecurrenceOutputs
from models.ops.recurrences.triangular import unit_lower_inverse
from models.sharding.devices import result_like

MAX_ROWS = 16
"""State rows of a program instance."""
MAX_PART = 32
"""Key channels in a product: each warp holds all of one operand."""
MAX_KEY, MAX_CORRECTED_KEY = 256, 128
"""Key channels, fewer in a delta rule: more do not fit into registers."""
MAX_CHUNKS = 32
"""Chunks of a step: the proof follows a loop's iterations one by one."""


class ScanOperands(NamedTuple):
    """Tokens in chunks; a key head serves one value head or several adjacent ones.

    Keys and queries are `[lane, chunk, place, key_head, key]`, without reads of padding; with `keys` they are decayed
    by channel, `[chunk, lane, key_head, place, key]`.

    Attributes:
        queries, reads: for reads of the earlier state.
        keys: for writes, decayed to the chunk's end; None: `reads`.
        decay: over the chunk, per key channel or one for all.
        values: padding is not read.
        corrected: (values - read) -> written values; None in SSD.
        scores: of queries with values.
        since, until: factors on reads and writes; None: 1.
    """

    queries: Any
    reads: Any
    keys: Any
    decay: Float32[Array, "chunk lane value_head channel"]
    values: Float32[Array, "lane chunk place value_head value"]
    corrected: Any
    scores: Float32[Array, "chunk lane value_head place place"]
    since: Any
    until: Any


def supports(inputs: RecurrenceInputs, chunk: int) -> bool:
    (values, keys), widest = inputs.state.shape[2:], MAX_KEY if inputs.beta is None else MAX_CORRECTED_KEY
    if inputs.tokens < chunk or -(-inputs.tokens // chunk) > MAX_CHUNKS or keys > widest:
        return False
    return not any(size & (size - 1) or size < MIN_ROWS for size in (values, keys, chunk))


KERNEL = Kernel("chunk_scan_kernel", "gpu", supports)


def chunk_scan_kernel(*refs: Any, by_slot: bool, fields: tuple[str, ...], by_channel: bool) -> None:
    """Carry some state rows of one lane and head through the chunks.

    Args:
        refs: operands: lane rows, int32[lane], in full, if `by_slot`; fresh and lengths, int32[lane], in full;
            `fields`, [chunk, place, ..] of lane and head, `decay` [chunk, key] or in full; state [value, key], or in
            full if `by_slot`. Results: outputs [chunk, place, value], zero at padding; new state in the old one's
            memory, if needed. Idle lanes read and write no state.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    fresh, lengths, *references = refs[by_slot:]
    x = dict(zip(fields, references, strict=False))
    state, out, *new = references[len(fields) :]
    lane, head = pl.program_id(0), pl.program_id(1)
    (_, places, rows_of_state), parts = out.shape, _parts(state.shape[-1])
    values_part: Any = pl.ds(pl.program_id(2) * rows_of_state, rows_of_state)
    row: tuple[Any, ...] = (refs[0][lane], head, values_part) if by_slot else (slice(None),)
    initial = tuple(load_if(lengths[lane] > 0, state.at[(*row, part)]) for part in parts)

    def chunk(index: Any, carry: Any) -> Any:
        def padding() -> Any:
            return jnp.zeros(out.shape[1:], jnp.float32), carry

        output, carry = lax.cond(index * places < lengths[lane], partial(tokens, index, carry), padding)
        out[index, :, :] = output
        return carry

    def tokens(index: Any, carry: Any) -> Any:
        real = (index * places + lax.broadcasted_iota(jnp.int32, (places,), 0) < lengths[lane])[:, None]

        def rows(name: str, part: Any) -> Any:
            return jnp.where(real, x[name][index, :, part], 0.0)

        def factor(name: str) -> Any:
            return x[name][index, :, 0][:, None] if name in x else 1.0

        def read(name: str) -> Any:
            products = [kernel_product(rows(name, part), block, 1) for part, block in zip(parts, carry, strict=True)]
            return factor("since") * sum(products[1:], products[0])

        values = rows("values", slice(None))
        if "corrected" in x:
            values = kernel_product(x["corrected"][index, :, :], values - read("reads"), 0)
        scores = kernel_product(x["scores"][index, :, :], values, 0)
        output = jnp.where(real, read("queries") + scores, 0.0)
        written, blocks = (factor("until") * values).T, []
        for part, block in zip(parts, carry, strict=True):
            decay = x["decay"][index, part][None] if by_channel else x["decay"][index, lane, head, 0]
            keys = rows("keys" if "keys" in x else "reads", part)
            blocks.append(decay * block + kernel_product(written, keys, 0))
        return output, tuple(blocks)

    start = tuple(jnp.where(fresh[lane] > 0, 0.0, block) for block in initial)
    final = lax.fori_loop(0, out.shape[0], chunk, start)
    # Writes follow the last read.
    for part, end in zip(parts, final, strict=True):
        if new:
            store_if(lengths[lane] > 0, new[0].at[(*row, part)], end)


def _parts(keys: int) -> list[Any]:
    from jax.experimental import pallas as pl

    size = min(MAX_PART, keys)
    return [pl.ds(first, size) for first in range(0, keys, size)]


def chunk_scan(
    inputs: RecurrenceInputs, operands: ScanOperands, *, keep_state: bool, interpret: bool
) -> RecurrenceOutputs:
    """Carry the state of every lane through all chunks; no new state with `keep_state`."""
    (_, heads, values, keys), slots = inputs.state.shape, inputs.slots
    lanes, by_slot, rows_of_lanes = len(inputs.valid), slots is not None, () if slots is None else (slots,)
    count, _, _, places, _ = operands.scores.shape
    rows, decayed = min(MAX_ROWS, values), operands.keys is not None
    shared = heads // operands.reads.shape[2 if decayed else 3]
    by_channel = operands.decay.shape[-1] > 1

    def of_tokens(size: int, by: int = 1, tiled: bool = False) -> Any:
        def index(lane: Any, head: Any, tile: Any) -> tuple[Any, ...]:
            return lane, 0, 0, lax.div(head, np.int32(by)) if by > 1 else head, tile if tiled else 0

        return (None, count, places, None, size), index

    def of_value_head(size: int) -> Any:
        return (count, None, None, places, size), lambda lane, head, tile: (0, lane, head, 0, 0)

    key, value = of_value_head(keys) if decayed else of_tokens(keys, shared), of_tokens(rows, tiled=True)
    channels = (count, None, None, keys), lambda lane, head, tile: (0, lane, head, 0)
    specs = {
        "queries": key,
        "reads": key,
        "keys": key,
        "decay": channels if by_channel else None,
        "values": value,
        "corrected": of_value_head(places),
        "scores": of_value_head(places),
        "since": of_value_head(1),
        "until": of_value_head(1),
    }
    arrays = {name: array for name, array in operands._asdict().items() if array is not None}
    matrix = None if by_slot else ((None, None, rows, keys), lambda lane, head, tile: (lane, head, tile, 0))
    number, moved = len(arrays) + 2 + by_slot, rows_bytes(inputs.state, lanes)
    out, *state = gpu_call(
        partial(chunk_scan_kernel, by_slot=by_slot, fields=tuple(arrays), by_channel=by_channel),
        (lanes, heads, values // rows),
        [*[None] * (2 + by_slot), *(specs[name] for name in arrays), matrix],
        [(value, result_like((lanes, count, places, heads, values), jnp.float32, inputs.state)), (matrix, number)][
            : 2 - keep_state
        ],
        reads={number: moved},
        # With 256 channels, four warps spill 28 bytes of a thread on an L4 and 20 on an A100, eight 20 and none.
        warps=8 if keys > MAX_CORRECTED_KEY and not has_group_products() else 4,
        interpret=interpret,
    )(*rows_of_lanes, inputs.fresh.astype(jnp.int32), inputs.lengths, *arrays.values(), inputs.state)
    out = out.reshape((lanes, count * places, heads, values))[:, : inputs.tokens]
    return RecurrenceOutputs(out, None if keep_state else state[0])


def scan_with_head_decay(inputs: RecurrenceInputs, chunk: int, keep_state: bool) -> RecurrenceOutputs:
    """Run the chunked form of a recurrence with a decay per head.

    XLA computes the decays and solves the delta rule's system; kernels do the rest.
    """
    interpret, beta = inputs.devices.interpret, inputs.beta
    g = jnp.moveaxis(split(inputs.log_decay, inputs.valid, chunk), 2, 3)
    b = None if beta is None else jnp.moveaxis(split(beta, inputs.valid, chunk), 2, 3)
    queries, keys, values = (in_chunks(x, chunk) for x in (inputs.query, inputs.key, inputs.value))
    scores, *of_keys = chunk_products(inputs, queries, keys, both=b is not None, interpret=interpret)
    total, decay = decays_between(g)
    corrected = None
    if b is not None:
        system = jnp.tril(of_keys[0] * decay, -1)
        corrected = unit_lower_inverse(b[..., None] * system) * b[..., None, :]
    end = total[..., -1:]
    since, until = jnp.exp(total)[..., None], jnp.exp(end - total)[..., None]
    if b is None:  # heads of a group have the same scores
        scores = jnp.repeat(scores, values.shape[3] // scores.shape[2], axis=2)
    tokens = ScanOperands(queries, keys, None, jnp.exp(end), values, corrected, scores * decay, since, until)
    return chunk_scan(inputs, tokens, keep_state=keep_state, interpret=interpret)


def in_chunks(x: Array, chunk: int) -> Float32[Array, "lane chunk place head size"]:
    """Cut the tokens of `[lane, token, head, size]` into padded chunks."""
    lanes, tokens = x.shape[:2]
    x = jnp.pad(x, [(0, 0), (0, -tokens % chunk), (0, 0), (0, 0)])
    return x.reshape((lanes, -1, chunk, *x.shape[2:]))


def chunk_products_kernel(lengths: Any, queries: Any, keys: Any, *out: Any) -> None:
    """Multiply queries and keys of one chunk with its keys; padding chunks are not read."""
    from jax.experimental import pallas as pl  # takes a while to import

    places = queries.shape[0]
    first, length = pl.program_id(2) * places, lengths[pl.program_id(0)]
    real = (first + lax.broadcasted_iota(jnp.int32, (places,), 0) < length)[:, None]

    def multiplied() -> tuple[Any, ...]:
        totals: list[Any] = []
        for part in _parts(keys.shape[1]):
            query, key = (jnp.where(real, rows[:, part], 0.0) for rows in (queries, keys))
            products = [kernel_product(rows, key, 1) for rows in (query, key)[: len(out)]]
            totals = [total + product for total, product in zip(totals, products, strict=True)] if totals else products
        return tuple(totals)

    def padding() -> tuple[Any, ...]:
        return (jnp.zeros((places, places), jnp.float32),) * len(out)

    for ref, result in zip(out, lax.cond(first < length, multiplied, padding), strict=True):
        ref[...] = result


def chunk_products(
    inputs: RecurrenceInputs,
    queries: Float32[Array, "lane chunk place key_head key"],
    keys: Float32[Array, "lane chunk place key_head key"],
    *,
    both: bool,
    interpret: bool,
) -> list[Float32[Array, "chunk lane key_head place place"]]:
    """Multiply chunks' queries, and if `both` keys, with their keys; zero at padding."""
    lanes, count, places, heads, size = keys.shape
    tokens = (None, None, places, None, size), lambda lane, head, chunk: (lane, chunk, 0, head, 0)
    square = (None, None, None, places, places), lambda lane, head, chunk: (chunk, lane, head, 0, 0)
    result = result_like((count, lanes, heads, places, places), jnp.float32, inputs.state)
    products = gpu_call(
        chunk_products_kernel,
        (lanes, heads, count),
        [None, tokens, tokens],
        [(square, result) for _ in range(1 + both)],
        interpret=interpret,
    )(inputs.lengths, queries, keys)
    return list(products)
