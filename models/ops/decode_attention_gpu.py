"""GPU kernel: attention over a KV cache, read once for each tile of query rows.

Defined by `models.mixers.kv_cache.attend`, with the same online softmax. A program instance has a tile of query rows of
a lane and key/value head, and a part of the positions; parts are combined afterwards (flash decoding). Parts have
blocks in turn, for equal work; a row's bits do not depend on other rows.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float32, Int32

from models.ops.gpu_call import gpu_call, has_tensor_memory, shared_memory
from models.ops.kernel_products import MIN_ROWS, bfloat16_terms, kernel_product
from models.ops.kernels import Kernel
from models.ops.recurrences.chunk_decay import power_of_two
from models.sharding.devices import result_like
from models.state.pages import KV_BLOCK, Pages
from models.state.shapes import KeyCache, ValueCache

MAX_ROWS = 64
"""Query rows of a tile: heads times tokens of a key/value head."""
MAX_SIZE, MAX_SPLIT_SIZE = 512, 256
"""Numbers of a key or value per load, and of a key or value that is split into bfloat16 numbers."""
MAX_ACCUMULATED = 1 << 14
"""Accumulators in an instance's registers: rows times value size."""
MIN_INSTANCES = 256
"""Program instances by splitting positions: two per processor of a GPU."""
SHARED_SPARE = 4096
"""Bytes of shared memory for reductions."""
MAX_MERGED = 8192
"""Numbers of all parts, up to a power of two, that an instance merges in registers."""
MIN_SCORE = -1e30
"""The maximum of no scores."""

QueryRows = Float32[Array, "lane kv_head query key"]
RowLimits = Int32[Array, "lane query"]


def key_parts(size: int, value_size: int, shared: bool) -> tuple[int, ...]:
    """Return sizes of key loads; the first covers shared values."""
    return (value_size, size - value_size) if shared and size > value_size else (size,)


def supports(query: Any, key: Any, value: Any, value_size: int) -> bool:
    size, parts = query.shape[3], {value_size, *key_parts(query.shape[3], value_size, value is None)}
    if any(part & (part - 1) or not MIN_ROWS <= part <= MAX_SIZE for part in parts):
        return False
    if bfloat16_terms(key.dtype) > 1 and max(size, value_size) > MAX_SPLIT_SIZE:
        return False
    return tile_rows(query.shape[1] * query.shape[2] // key.shape[1], size, value_size, key.dtype) is not None


def tile_rows(rows: int, size: int, value_size: int, dtype: Any) -> int | None:
    """Return the rows of a tile, at most 64, for the fewest equal tiles."""
    # 64 rows of 320 spill 552 bytes of registers on an H100, and do not fit into tensor memory.
    height = MAX_ROWS // 2 if size > MAX_SIZE // 2 or has_tensor_memory() else MAX_ROWS
    limit = min(height, MAX_ACCUMULATED // value_size)
    limit = MIN_ROWS if bfloat16_terms(dtype) > 1 and max(size, value_size) > MAX_SPLIT_SIZE // 2 else limit
    limits = (height for height in (MAX_ROWS, MAX_ROWS // 2, MIN_ROWS) if height <= limit)
    tiles = (-(-rows // -(-rows // height)) for height in limits)
    return next((tile for tile in tiles if turn_size(padded_rows(tile), size, value_size, dtype)), None)


def turn_size(rows: int, size: int, value_size: int, dtype: Any) -> tuple[int, int] | None:
    """Return positions and load stages of an iteration, or None.

    Shared memory holds queries, weights and other values as bfloat16 numbers, and each stage's keys and values.
    """
    itemsize, terms = jnp.dtype(dtype).itemsize, bfloat16_terms(dtype)
    # With 32 positions, 64 rows of 256 spill 228 bytes of registers on an H200.
    limit = 64 if size <= 128 else 32 if size <= 256 and rows < MAX_ROWS else MIN_ROWS
    limit = limit if terms == 1 else max(MIN_ROWS, limit // 2)
    for block, stages in [(limit, 2), (max(MIN_ROWS, limit // 2), 2), (MIN_ROWS, 2), (MIN_ROWS, 1)]:
        loaded = stages * block * (size + value_size) * itemsize + (2 * terms * block * value_size if terms > 1 else 0)
        if 6 * rows * (size + block) + loaded + SHARED_SPARE <= shared_memory():
            return block, stages
    return None


KERNEL = Kernel("decode_attention_kernel", "gpu", supports)


def padded_rows(rows: int) -> int:
    return max(MIN_ROWS, power_of_two(rows))


def part_count(heads: int, context: int) -> int:
    return min(-(-MIN_INSTANCES // heads), context // KV_BLOCK)


def part_turns(last: Any, part: Any, parts: int, block: int) -> Any:
    """Return the blocks of a part: every `parts`-th from number `part` to position `last`."""
    visited = lax.div(last + np.int32(block), np.int32(block))
    return lax.div(visited - part + np.int32(parts - 1), np.int32(parts))


def decode_attention_kernel(*refs: Any, parts: int, block: int, window: int | None) -> None:
    """Attend from a tile of rows to one part of the positions.

    Args:
        refs: page table, int32[lane, block]; last visible position or -1, int32[row]; queries [row, key]; in full, keys
            and values, unless keys hold them. Results: largest score [row], sum of exponentials [row], weighted values
            [row, value].
        parts: of a lane's blocks.
        block: positions of an iteration, a divisor of a page's.
        window: visible positions of a row; None for all.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    table, limit, query, key, *values, top_out, total_out, out = refs
    value, value_size = values[0] if values else key, out.shape[-1]
    sizes = key_parts(query.shape[-1], value_size, value is key)
    lane, head, part = pl.program_id(0), pl.program_id(1), pl.program_id(3)
    in_page = KV_BLOCK // block
    blocks = table.shape[1] * in_page
    rows, count = limit.shape[0], padded_rows(limit.shape[0])
    row = lax.broadcasted_iota(jnp.int32, (count,), 0)
    real, source = row < rows, jnp.minimum(row, rows - 1)
    limits = jnp.where(real, limit[source], -1)
    last = jnp.max(limits)
    # With a window: the position before the windows of all rows.
    before = None if window is None else jnp.min(jnp.where(limits >= 0, limits, last)) - np.int32(window)
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    columns = [begin + lax.broadcasted_iota(jnp.int32, (size,), 0) for begin, size in zip(starts, sizes, strict=True)]
    queries = [query[source[:, None], column[None]] for column in columns]
    turns = jnp.clip(part_turns(last, part, parts, block), 0, -(-blocks // parts))

    def turn(index: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        top, total, weighted = carry
        # The loop stays within this bound; the proof needs it.
        number = jnp.clip(index * parts + part, 0, blocks - 1)
        page, place = table[lane, lax.div(number, in_page)], lax.rem(number, in_page) * block
        position = number * block + lax.broadcasted_iota(jnp.int32, (block,), 0)
        cuts = zip(starts, sizes, strict=True)
        keys = [key[page, head, pl.ds(place, block), pl.ds(begin, size)] for begin, size in cuts]
        values = keys[0] if value is key else value[page, head, pl.ds(place, block), pl.ds(0, value_size)]
        used = position <= last if before is None else (position <= last) & (position > before)
        values = jnp.where(used[:, None], values, jnp.zeros_like(values))
        scores = sum(kernel_product(rows, columns, 1) for rows, columns in zip(queries, keys, strict=True))
        visible = position[None, :] <= limits[:, None]
        if window is not None:
            visible = visible & (position[None, :] > limits[:, None] - np.int32(window))
        scores = jnp.where(visible, scores, -jnp.inf)
        new_top = jnp.maximum(top, jnp.max(scores, axis=1))
        keep = jnp.exp(top - new_top)
        weight = jnp.exp(scores - new_top[:, None])
        weighted = weighted * keep[:, None] + kernel_product(weight, values, 0)
        return new_top, total * keep + jnp.sum(weight, axis=1), weighted

    zero = jnp.zeros((count,), jnp.float32), jnp.zeros((count, value_size), jnp.float32)
    start = jnp.full((count,), MIN_SCORE, jnp.float32), *zero
    for ref, result in zip((top_out, total_out, out), lax.fori_loop(0, turns, turn, start), strict=True):
        # Registers cannot be written in part: padding rows, up to a power of two, are added as 0.
        folded = jnp.where(real.reshape((count,) + (1,) * (result.ndim - 1)), result, 0.0)
        ref[...] = jnp.sum(folded.reshape((-1, ref.shape[0], *result.shape[1:])), axis=0)


def merge_parts_kernel(limit: Any, top: Any, total: Any, weighted: Any, out: Any) -> None:
    """Merge the parts of one row, for some numbers of its value.

    Args:
        limit: int32[1], as of `decode_attention_kernel`.
        top, total, weighted: its results [part], [part], [part, value].
        out: the result [value].
    """
    (parts,) = top.shape
    part = lax.broadcasted_iota(jnp.int32, (power_of_two(parts),), 0)
    real, source = part < parts, jnp.minimum(part, parts - 1)
    tops = jnp.where(real, top[source], MIN_SCORE)
    share = jnp.where(real, jnp.exp(tops - jnp.max(tops)), 0.0)
    column = lax.broadcasted_iota(jnp.int32, (1, weighted.shape[1]), 1)
    merged = jnp.sum(share[:, None] * weighted[source[:, None], column], axis=0)
    visible = limit[0] >= 0
    divisor = jnp.where(visible, jnp.sum(share * total[source]), 1.0)
    out[...] = jnp.where(visible, merged / divisor, 0.0)


def _merged(
    limit: Array, parts: tuple[Array, Array, Array], tile: int, rows: int, *, interpret: bool
) -> Float32[Array, "lane kv_head query value"]:
    """Merge the parts of every row; tiles are padded to a power of two rows."""
    lanes, heads, count, _, value = parts[2].shape
    written, columns = power_of_two(tile), min(value, max(MIN_ROWS, MAX_MERGED // power_of_two(count)))

    def of_parts(*columns: int) -> Any:
        def index(lane: Any, head: Any, row: Any, column: Any) -> tuple[Any, ...]:
            place = lax.div(row, np.int32(tile)) * np.int32(written) + lax.rem(row, np.int32(tile))
            return lane, head, 0, place, *(column for _ in columns)

        return (None, None, count, None, *columns), index

    of_row = (None, 1), lambda lane, head, row, column: (lane, row)
    return gpu_call(
        merge_parts_kernel,
        (lanes, heads, rows, value // columns),
        [of_row, of_parts(), of_parts(), of_parts(columns)],
        (
            ((None, None, None, columns), lambda *indices: indices),
            result_like((lanes, heads, rows, value), jnp.float32, parts[2]),
        ),
        interpret=interpret,
    )(limit, *parts)


def decode_attention(
    query: QueryRows,
    limit: RowLimits,
    key: KeyCache,
    value: ValueCache | None,
    value_size: int,
    pages: Pages,
    *,
    window: int | None = None,
    interpret: bool,
) -> Float32[Array, "lane kv_head query value"]:
    """Attend from the scaled rows of every lane; a row with limit -1 gives zeros.

    `value` None: the first numbers of the keys. With a window, pages begin with the first row's window.
    """
    lanes, kv_heads, rows, size = query.shape
    context, tile = pages.shape[1] * KV_BLOCK, tile_rows(rows, size, value_size, key.dtype)
    assert tile is not None, "by `supports`"
    count, tiles = padded_rows(tile), -(-rows // tile)
    if (padding := tiles * tile - rows) > 0:
        query = jnp.pad(query, [(0, 0), (0, 0), (0, padding), (0, 0)])
        limit = jnp.pad(limit, [(0, 0), (0, padding)], constant_values=-1)
    parts = part_count(lanes * kv_heads * tiles, context)
    turn = turn_size(count, size, value_size, key.dtype)
    assert turn is not None, "by `tile_rows`"
    block, stages = turn

    def cut(*sizes: int) -> Any:
        return (None, None, *sizes), lambda lane, head, tile, part: (lane, head, tile, *(0 for _ in sizes[1:]))

    def result(*sizes: int) -> Any:
        spec = (
            (None, None, None, *sizes),
            lambda lane, head, tile, part: (lane, head, part, tile, *(0 for _ in sizes[1:])),
        )
        return spec, result_like((lanes, kv_heads, parts, tiles * sizes[0], *sizes[1:]), jnp.float32, key)

    caches = [key] if value is None else [key, value]
    written = power_of_two(tile)
    results = gpu_call(
        partial(decode_attention_kernel, parts=parts, block=block, window=window),
        (lanes, kv_heads, tiles, parts),
        [None, ((None, tile), lambda lane, head, tile, part: (lane, tile)), cut(tile, size), *(None for _ in caches)],
        [result(written), result(written), result(written, value_size)],
        warps=8 if count * value_size * min(2, bfloat16_terms(key.dtype)) > 4096 else 4,
        stages=stages,
        interpret=interpret,
        reads={3 + k: tiles * pages.size * (cache.nbytes // cache.shape[0]) for k, cache in enumerate(caches)},
    )(pages, limit, query, *caches)

    if parts > 1:
        return _merged(limit, results, tile, rows, interpret=interpret)

    def of_rows(part: Array) -> Array:
        part = part.reshape((lanes, kv_heads, tiles, written, *part.shape[4:]))[:, :, :, :tile]
        return part.reshape((lanes, kv_heads, tiles * tile, *part.shape[4:]))[:, :, :rows]

    total, out = map(of_rows, results[1:])
    visible = (limit[:, :rows] >= 0)[:, None, :]
    return jnp.where(visible[..., None], out / jnp.where(visible, total, 1.0)[..., None], 0.0)
