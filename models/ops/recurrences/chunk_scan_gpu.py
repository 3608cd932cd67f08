"""A kernel for the sequential part of the chunked forms: the state is read once and written once for all chunks.

`chunked_scan.scan_chunks` defines it. One program instance carries some rows of the state of one lane and value head
through the chunks, in registers. The products of tokens of one chunk are computed before, for all chunks at once.
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float32

from models.ops.gpu_call import gpu_call
from models.ops.kernel_products import MIN_ROWS, kernel_product
from models.ops.kernels import Kernel, result_like
from models.ops.recurrences.recurrence import RecurrenceInputs, RecurrenceOutputs

MAX_ROWS = 16
"""Rows of the state of one program instance."""
MAX_PART = 32
"""Channels of the key that are multiplied at once: each warp holds all of one operand."""
MAX_KEY = 256
"""Channels of the key; with more, an instance's rows do not fit into registers."""
MAX_CHUNKS = 32
"""Chunks of a step: the proof follows the iterations of a kernel's loop one by one."""


class ScanOperands(NamedTuple):
    """Tokens in chunks; heads of keys are those of values, or each is of as many value heads next to each other.

    Keys and queries are those of tokens, `[lane, chunk, place, key_head, key]`, what padding tokens hold is not used;
    or, where there are `keys`, decayed by channel, `[chunk, lane, key_head, place, key]`.

    Attributes:
        queries, reads: that read the state before their chunk; what the keys read is taken off the values, where there
            is `corrected`.
        keys: that write, each decayed to the end of the chunk; None for `reads`.
        decay: over the whole chunk, per channel of the key or one for all.
        values: that are written; those of padding tokens are not used.
        corrected: matrix from the values, less what was read, to what is written; None in SSD.
        scores: of each token's query with each token's value.
        since: factor of a token on what it reads; None for one.
        until: factor of a token on what it writes; None for one.
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


def unsupported(inputs: RecurrenceInputs, chunk: int) -> str | None:
    """Say why the kernel does not take these operands, in chunks of so many tokens; None if it does."""
    values, keys = inputs.state.shape[2:]
    if inputs.tokens < chunk or -(-inputs.tokens // chunk) > MAX_CHUNKS:
        return f"a step of {inputs.tokens} tokens: expected one to {MAX_CHUNKS} chunks of {chunk}"
    if any(size & (size - 1) or size < MIN_ROWS for size in (values, keys, chunk)) or keys > MAX_KEY:
        return (
            f"states of {values} x {keys} and chunks of {chunk}: expected powers of two from {MIN_ROWS}, and a key up "
            f"to {MAX_KEY}"
        )
    return None


KERNEL = Kernel("chunk_scan_kernel", ("gpu",), unsupported)


def chunk_scan_kernel(fresh: Any, lengths: Any, *refs: Any, given: tuple[str, ...], by_channel: bool) -> None:
    """Carry some rows of the state of one lane and head through all chunks.

    Args:
        fresh, lengths: int32[lane], in full.
        refs: the operands of `given`, each [chunk, place, ..] of the lane and head, `decay` [chunk, key] or in full;
            the state [value, key]; the outputs [chunk, place, value]; the new state, if it is wanted.
        given: fields of `ScanOperands` that there are.
        by_channel: whether the decay is one for each channel of the key.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    x = dict(zip(given, refs, strict=False))
    state, out, *new = refs[len(given) :]
    lane, head = pl.program_id(0), pl.program_id(1)
    places, parts = out.shape[1], _parts(state.shape[1])
    before = tuple(state[:, part] for part in parts)

    def chunk(index: Any, now: Any) -> Any:
        real = (index * places + lax.broadcasted_iota(jnp.int32, (places,), 0) < lengths[lane])[:, None]

        def rows(name: str, part: Any) -> Any:
            return jnp.where(real, x[name][index, :, part], 0.0)

        def factor(name: str) -> Any:
            return x[name][index, :, 0][:, None] if name in x else 1.0

        def read(name: str) -> Any:
            found = [kernel_product(rows(name, part), of_part, 1) for part, of_part in zip(parts, now, strict=True)]
            return factor("since") * sum(found[1:], found[0])

        values = rows("values", slice(None))
        if "corrected" in x:
            values = kernel_product(x["corrected"][index, :, :], values - read("reads"), 0)
        scores = kernel_product(x["scores"][index, :, :], values, 0)
        out[index, :, :] = jnp.where(real, read("queries") + scores, 0.0)
        written, after = (factor("until") * values).T, []
        for part, of_part in zip(parts, now, strict=True):
            decay = x["decay"][index, part][None] if by_channel else x["decay"][index, lane, head, 0]
            keys = rows("keys" if "keys" in x else "reads", part)
            after.append(decay * of_part + kernel_product(written, keys, 0))
        return tuple(after)

    start = tuple(jnp.where(fresh[lane] > 0, 0.0, one) for one in before)
    after = lax.fori_loop(0, out.shape[0], chunk, start)
    ends = [jnp.where(lengths[lane] > 0, one, old) for one, old in zip(after, before, strict=True)]
    # after the last read of what they overwrite
    for part, end in zip(parts, ends, strict=True):
        if new:
            new[0][:, part] = end


def _parts(keys: int) -> list[Any]:
    """Return the parts of the key that are multiplied one after the other."""
    from jax.experimental import pallas as pl

    size = min(MAX_PART, keys)
    return [pl.ds(first, size) for first in range(0, keys, size)]


def chunk_scan(
    inputs: RecurrenceInputs, operands: ScanOperands, *, keep_state: bool, interpret: bool
) -> RecurrenceOutputs:
    """Carry the state of every lane through all chunks.

    Args:
        inputs: of the recurrence.
        operands: its tokens in chunks; those of padding tokens change no state.
        keep_state: the state before the first token is needed afterwards, and no new one.
        interpret: run by Pallas' interpreter, on any platform.

    Returns:
        Outputs and the new state, None with `keep_state`.
    """
    from jax.experimental import pallas as pl

    lanes, heads, values, keys = inputs.state.shape
    count, _, _, places, _ = operands.scores.shape
    rows, decayed = min(MAX_ROWS, values), operands.keys is not None
    shared = heads // operands.reads.shape[2 if decayed else 3]
    by_channel = operands.decay.shape[-1] > 1
    whole = pl.BlockSpec(memory_space=pl.ANY)

    def of_tokens(size: int, by: int = 1, tiled: bool = False) -> Any:
        def index(lane: Any, head: Any, tile: Any) -> tuple[Any, ...]:
            return lane, 0, 0, lax.div(head, np.int32(by)) if by > 1 else head, tile if tiled else 0

        return pl.BlockSpec((pl.Squeezed(), count, places, pl.Squeezed(), size), index)

    def of_value_head(size: int) -> Any:
        block = count, pl.Squeezed(), pl.Squeezed(), places, size
        return pl.BlockSpec(block, lambda lane, head, tile: (0, lane, head, 0, 0))

    key, value = of_value_head(keys) if decayed else of_tokens(keys, shared), of_tokens(rows, tiled=True)
    channels = pl.BlockSpec((count, pl.Squeezed(), pl.Squeezed(), keys), lambda lane, head, tile: (0, lane, head, 0))
    specs = {
        "queries": key,
        "reads": key,
        "keys": key,
        "decay": channels if by_channel else whole,
        "values": value,
        "corrected": of_value_head(places),
        "scores": of_value_head(places),
        "since": of_value_head(1),
        "until": of_value_head(1),
    }
    given = {name: array for name, array in operands._asdict().items() if array is not None}
    block = (pl.Squeezed(), pl.Squeezed(), rows, keys)
    matrix = pl.BlockSpec(block, lambda lane, head, tile: (lane, head, tile, 0))
    result = result_like((lanes, count, places, heads, values), jnp.float32, inputs.state)
    out, *state = gpu_call(
        partial(chunk_scan_kernel, given=tuple(given), by_channel=by_channel),
        grid=(lanes, heads, values // rows),
        in_specs=[whole, whole, *(specs[name] for name in given), matrix],
        out_specs=[value] if keep_state else [value, matrix],
        out_shape=[result] if keep_state else [result, result_like(inputs.state.shape, jnp.float32, inputs.state)],
        aliases={} if keep_state else {len(given) + 2: 1},
        warps=4,
        stages=1,
        interpret=interpret,
        name=KERNEL.name,
    )(inputs.fresh.astype(jnp.int32), inputs.lengths, *given.values(), inputs.state)
    out = out.reshape((lanes, count * places, heads, values))[:, : inputs.tokens]
    return RecurrenceOutputs(out, None if keep_state else state[0])


def in_chunks(x: Array, chunk: int) -> Float32[Array, "lane chunk place head size"]:
    """Cut the tokens of `[lane, token, head, size]` into chunks, the last one filled up."""
    lanes, tokens = x.shape[:2]
    x = jnp.pad(x, [(0, 0), (0, -tokens % chunk), (0, 0), (0, 0)])
    return x.reshape((lanes, -1, chunk, *x.shape[2:]))


def chunk_products_kernel(lengths: Any, queries: Any, keys: Any, *out: Any) -> None:
    """Multiply the queries and keys of one chunk, lane and head with its keys.

    Args:
        lengths: int32[lane], in full.
        queries, keys: [place, key].
        out: [place, place] of queries and, if it is wanted, of keys.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    places = queries.shape[0]
    first = pl.program_id(2) * places
    real = (first + lax.broadcasted_iota(jnp.int32, (places,), 0) < lengths[pl.program_id(0)])[:, None]
    for ref, found in zip((queries, keys), out, strict=False):
        products = []
        for part in _parts(keys.shape[1]):
            one, other = (jnp.where(real, rows[:, part], 0.0) for rows in (ref, keys))
            products.append(kernel_product(one, other, 1))
        found[...] = sum(products[1:], products[0])


def chunk_products(
    inputs: RecurrenceInputs,
    queries: Float32[Array, "lane chunk place key_head key"],
    keys: Float32[Array, "lane chunk place key_head key"],
    *,
    both: bool,
    interpret: bool,
) -> list[Float32[Array, "chunk lane key_head place place"]]:
    """Return the products of each chunk's queries with its keys, and of its keys with them; zero for padding tokens.

    Args:
        inputs: of the recurrence.
        queries, keys: its tokens in chunks.
        both: whether the products of keys are wanted.
        interpret: run by Pallas' interpreter, on any platform.
    """
    from jax.experimental import pallas as pl

    lanes, count, places, heads, size = keys.shape
    tokens = pl.BlockSpec(
        (pl.Squeezed(), pl.Squeezed(), places, pl.Squeezed(), size), lambda lane, head, chunk: (lane, chunk, 0, head, 0)
    )
    square = pl.BlockSpec(
        (pl.Squeezed(), pl.Squeezed(), pl.Squeezed(), places, places),
        lambda lane, head, chunk: (chunk, lane, head, 0, 0),
    )
    result = result_like((count, lanes, heads, places, places), jnp.float32, inputs.state)
    found = gpu_call(
        chunk_products_kernel,
        grid=(lanes, heads, count),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), tokens, tokens],
        out_specs=[square] * (1 + both),
        out_shape=[result] * (1 + both),
        warps=4,
        stages=1,
        interpret=interpret,
        name="chunk_products_kernel",
    )(inputs.lengths, queries, keys)
    return list(found)
