"""A kernel for attention of a few tokens over the rows of a KV cache, each read once and up to its lane's end.

`models.mixers.kv_cache.attend` defines it. One program instance has all query rows of one lane and key/value head, and
a part of the positions; the parts are put together afterwards (flash decoding). Blocks of positions are dealt to the
parts in turn: the parts of a sequence of any length have equal work, and the bits of a row do not depend on the other
rows of its lane. The online softmax is the one of `attend`. Entries of the cache behind a row's position, stale or NaN,
have no influence, and nothing copies values to mask them.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float32, Int32

from models.ops.gpu_call import gpu_call, shared_memory
from models.ops.kernel_products import MIN_ROWS, kernel_product
from models.ops.kernels import Kernel, result_like
from models.state.shapes import KeyCache, ValueCache

MAX_ROWS = 64
"""Query rows of one key/value head: heads of its group times tokens."""
MAX_SIZE = 512
"""Numbers of a key's or value's part that are loaded at once."""
MAX_ACCUMULATED = 1 << 14
"""Numbers that an instance accumulates, rows times the size of a value: what fits into registers."""
MIN_PART = 128
"""Positions of a cache for each part; a cache has a whole number of them."""
MIN_INSTANCES = 256
"""Program instances for which positions are split into parts: two for each processor of a GPU."""
SHARED_SPARE = 4096
"""Bytes of shared memory for reductions."""
MIN_SCORE = -1e30
"""The maximum of no scores."""

QueryRows = Float32[Array, "lane kv_head row key"]
RowLimits = Int32[Array, "lane row"]


def key_parts(size: int, value_size: int, shared: bool) -> tuple[int, ...]:
    """Return the sizes of the parts in which keys are loaded: the first is the value, where keys are values too."""
    return (value_size, size - value_size) if shared and size > value_size else (size,)


def unsupported(query: Any, key: Any, value: Any, value_size: int) -> str | None:
    """Say why the kernel does not take these operands; None if it does.

    Args:
        query: `[lane, token, head, key]`.
        key, value: caches; `value` is None where the values are the first `value_size` numbers of the keys.
        value_size: size of a value.
    """
    rows = query.shape[1] * query.shape[2] // key.shape[1]
    parts = {value_size, *key_parts(query.shape[3], value_size, value is None)}
    if rows > MAX_ROWS:
        return f"{rows} query rows for each key/value head: expected at most {MAX_ROWS}"
    if any(size & (size - 1) or not MIN_ROWS <= size <= MAX_SIZE for size in parts):
        return f"keys or values in parts of {sorted(parts)}: expected powers of two from {MIN_ROWS} to {MAX_SIZE}"
    if padded_rows(rows) * value_size > MAX_ACCUMULATED:
        return f"{rows} rows of {value_size}: expected at most {MAX_ACCUMULATED} numbers"
    if turn_size(padded_rows(rows), query.shape[3], value_size, key.dtype.itemsize) is None:
        return f"{rows} rows of {query.shape[3]}: expected operands in {shared_memory()} bytes of shared memory"
    return None


def turn_size(rows: int, size: int, value_size: int, itemsize: int) -> tuple[int, int] | None:
    """Return the positions of an iteration, and for how many it loads ahead; None where no size fits.

    Shared memory has the queries as three numbers of bfloat16, keys and values of each iteration that is loaded, and
    their weights, and values that are float32, as three numbers.

    Args:
        rows: query rows that the kernel multiplies.
        size, value_size: of a key and of a value.
        itemsize: bytes of a number of the caches.
    """
    most = 64 if size <= 128 else 32 if size <= 256 else MIN_ROWS
    for block, stages in [(most, 2), (max(MIN_ROWS, most // 2), 2), (MIN_ROWS, 2), (MIN_ROWS, 1)]:
        loaded = stages * block * (size + value_size) * itemsize + (6 * block * value_size if itemsize == 4 else 0)
        if 6 * rows * (size + block) + loaded + SHARED_SPARE <= shared_memory():
            return block, stages
    return None


KERNEL = Kernel("decode_attention_kernel", ("gpu",), unsupported)


def padded_rows(rows: int) -> int:
    """Return the rows that the kernel multiplies: a power of two."""
    return max(MIN_ROWS, 1 << (rows - 1).bit_length())


def part_count(heads: int, context: int) -> int:
    """Return the number of parts of the positions.

    Args:
        heads: lanes times key/value heads.
        context: positions of a cache.
    """
    return min(-(-MIN_INSTANCES // heads), context // MIN_PART)


def part_turns(last: Any, part: Any, parts: int, block: int) -> Any:
    """Return the number of blocks that a part visits: the block of its own number, and each `parts`-th block behind it.

    Args:
        last: last position that a row sees, -1 for none.
        part: number of the part.
        parts: number of parts.
        block: positions of a block.
    """
    visited = lax.div(last + np.int32(block), np.int32(block))
    return lax.div(visited - part + np.int32(parts - 1), np.int32(parts))


def decode_attention_kernel(
    limit: Any, query: Any, key: Any, *rest: Any, parts: int, block: int, sizes: tuple[int, ...], value_size: int
) -> None:
    """Attend from the rows of one lane and key/value head to a part of the positions.

    Args:
        limit: last position that each row sees, -1 for none, int32[row].
        query: [row, key]; fewer rows than the kernel multiplies.
        key: [position, key].
        rest: values [position, value], unless keys hold them; then the results of the part: the largest score [row],
            the sum of the exponentials [row] and their sum over values [row, value].
        parts: number of parts.
        block: positions of an iteration.
        sizes: of the parts of a key.
        value_size: size of a value.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    value, (top_out, total_out, out) = (key if len(rest) == 3 else rest[0]), rest[-3:]
    part, blocks = pl.program_id(2), key.shape[0] // block
    rows, count = limit.shape[0], padded_rows(limit.shape[0])
    row = lax.broadcasted_iota(jnp.int32, (count,), 0)
    real, own = row < rows, jnp.minimum(row, rows - 1)
    limits = jnp.where(real, limit[own], -1)
    last = jnp.max(limits)
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    columns = [begin + lax.broadcasted_iota(jnp.int32, (size,), 0) for begin, size in zip(starts, sizes, strict=True)]
    queries = [query[own[:, None], column[None]] for column in columns]
    turns = jnp.clip(part_turns(last, part, parts, block), 0, -(-blocks // parts))

    def turn(index: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        top, total, seen = carry
        # the bound says nothing that the loop does not: it is what the proof can read
        first = jnp.clip(index * parts + part, 0, blocks - 1) * block
        at = first + lax.broadcasted_iota(jnp.int32, (block,), 0)
        keys = [key[pl.ds(first, block), pl.ds(begin, size)] for begin, size in zip(starts, sizes, strict=True)]
        values = keys[0] if value is key else value[pl.ds(first, block), :]
        values = jnp.where((at <= last)[:, None], values, jnp.zeros_like(values))
        pairs = zip(queries, keys, strict=True)
        scores = sum(kernel_product(rows, one, 1) for rows, one in pairs)
        scores = jnp.where(at[None, :] <= limits[:, None], scores, -jnp.inf)
        new_top = jnp.maximum(top, jnp.max(scores, axis=1))
        keep = jnp.exp(top - new_top)
        weight = jnp.exp(scores - new_top[:, None])
        seen = seen * keep[:, None] + kernel_product(weight, values, 0)
        return new_top, total * keep + jnp.sum(weight, axis=1), seen

    zero = jnp.zeros((count,), jnp.float32), jnp.zeros((count, value_size), jnp.float32)
    none = jnp.full((count,), MIN_SCORE, jnp.float32), *zero
    for ref, found in zip((top_out, total_out, out), lax.fori_loop(0, turns, turn, none), strict=True):
        # There are no rows behind the last power of two, and a part of a value in registers cannot be written alone.
        folded = jnp.where(real.reshape((count,) + (1,) * (found.ndim - 1)), found, 0.0)
        ref[...] = jnp.sum(folded.reshape((-1, ref.shape[0], *found.shape[1:])), axis=0)


def decode_attention(
    query: QueryRows, limit: RowLimits, key: KeyCache, value: ValueCache | None, value_size: int, *, interpret: bool
) -> Float32[Array, "lane kv_head row value"]:
    """Attend from the rows of every lane.

    Args:
        query: scaled queries, the rows of each key/value head.
        limit: last position that each row sees, -1 for none, whose output is zero.
        key, value: caches; `value` is None where the values are the first numbers of the keys.
        value_size: size of a value.
        interpret: run by Pallas' interpreter, on any platform.
    """
    from jax.experimental import pallas as pl

    lanes, kv_heads, rows, size = query.shape
    context, count = key.shape[2], padded_rows(rows)
    parts = part_count(lanes * kv_heads, context)
    turn = turn_size(count, size, value_size, key.dtype.itemsize)
    assert turn is not None, "by `unsupported`"
    block, stages = turn

    def cut(*sizes: int) -> Any:
        """Blocks of a lane and head, and of what follows."""
        sizes_of = pl.Squeezed(), pl.Squeezed(), *sizes
        return pl.BlockSpec(sizes_of, lambda lane, head, part: (lane, head, *(0 for _ in sizes)))

    def result(*sizes: int) -> Any:
        block = pl.Squeezed(), pl.Squeezed(), pl.Squeezed(), *sizes
        return pl.BlockSpec(block, lambda lane, head, part: (lane, head, part, *(0 for _ in sizes)))

    caches = [key] if value is None else [key, value]
    written = 1 << (rows - 1).bit_length()
    shapes = (written,), (written,), (written, value_size)
    sizes = key_parts(size, value_size, value is None)
    top, total, out = gpu_call(
        partial(decode_attention_kernel, parts=parts, block=block, sizes=sizes, value_size=value_size),
        grid=(lanes, kv_heads, parts),
        in_specs=[
            pl.BlockSpec((pl.Squeezed(), rows), lambda lane, head, part: (lane, 0)),
            cut(rows, size),
            *(cut(*cache.shape[2:]) for cache in caches),
        ],
        out_specs=[result(*one) for one in shapes],
        out_shape=[result_like((lanes, kv_heads, parts, *one), jnp.float32, key) for one in shapes],
        warps=8 if count * value_size > 4096 else 4,
        stages=stages,
        interpret=interpret,
        name=KERNEL.name,
    )(limit, query, *caches)
    top, total, out = (one[:, :, :, :rows] for one in (top, total, out))
    share = jnp.exp(top - jnp.max(top, axis=2, keepdims=True))
    out = jnp.sum(out * share[..., None], axis=2)
    total = jnp.sum(total * share, axis=2)[..., None]
    seen = (limit >= 0)[:, None, :, None]
    return jnp.where(seen, out / jnp.where(seen, total, 1.0), 0.0)
