"""Attention of few query rows to a cache block by sums, for GPUs."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32

from models.state.state import SOME_HEADS

MAX_SUMMED_QUERIES = 8
"""Query rows per key/value head: XLA joins this many sums."""
SUMMED_POSITIONS = 8
"""Positions, and runs of positions, in one thread's sum, which XLA does not split."""
MIN_WIDE_VALUE = 256
"""Value size for twice as many runs per thread."""


def summed_block(
    queries: list[Float32[Array, "lane kv_head key"]],
    key: Array,
    value: Array,
    visible: list[Bool[Array, "lane 1 position 1"]],
    carry: tuple[Array, Array, Array],
) -> tuple[Array, Array, Array]:
    """Return the carry of `models.mixers.kv_cache.attend` after a block.

    Sums read the cache in place; a product needs a copy. Rows have separate scores and weights: one array would be
    copied.

    Args:
        queries: scaled; tokens of a head in order.
        key, value: `[lane, kv_head, position, size]`; invisible positions may hold NaN.
        carry: largest score, sum of exponentials and of their values.
    """
    (top, total, out), rows = carry, range(len(queries))
    masks, key, value = [visible[i % len(visible)] for i in rows], key.astype(jnp.float32), value.astype(jnp.float32)
    # A mask after the sums would write the scores twice.
    products = [jnp.where(masks[i], queries[i][:, :, None] * key, -jnp.inf) for i in rows]
    scores = lax.optimization_barrier([jnp.sum(product, axis=-1) for product in products])
    new_top = jnp.maximum(top, _reduce_each(lax.max, -jnp.inf, scores))
    keep = jnp.exp(top - new_top)
    weights = [jnp.exp(score - new_top[:, :, i]) for i, score in zip(rows, scores, strict=True)]
    total = total * keep + _reduce_each(lax.add, 0.0, weights)
    weights = lax.optimization_barrier(weights)
    products = [jnp.where(masks[i], weights[i][..., None] * value, 0.0) for i in rows]
    # Two sums over all positions fill the shared memory of an operation (gpu_fusible.cc); sums of single threads fit
    # into one operation, over short parts. Wide values have threads enough for longer parts.
    wide = value.shape[3] >= MIN_WIDE_VALUE and value.shape[2] % (4 * SUMMED_POSITIONS**2) == 0
    halved = wide and value.shape[0] * value.shape[1] >= SOME_HEADS
    cut = (
        (SUMMED_POSITIONS, 2, SUMMED_POSITIONS, -1, 2)
        if wide and not halved
        else (SUMMED_POSITIONS, -1, SUMMED_POSITIONS)
    )
    if halved:  # a sum of two numbers before the reduction: XLA does not split a reduction of two dimensions
        middle = value.shape[2] // 2
        products = [product[:, :, :middle] + product[:, :, middle:] for product in products]
    products = [product.reshape((*value.shape[:2], *cut, value.shape[3])) for product in products]
    sums = [jnp.sum(product, axis=tuple(range(2, 2 + len(cut), 2))) for product in products]
    sums = [part.reshape((*value.shape[:2], -1, value.shape[3])) for part in lax.optimization_barrier(sums)]
    return new_top, total, out * keep + jnp.sum(jnp.stack(sums, axis=2), axis=3)


def _reduce_each(
    operation: Callable[[Array, Array], Array], start: float, rows: list[Float32[Array, "lane kv_head position"]]
) -> Float32[Array, "lane kv_head query 1"]:
    """Reduce each array over positions, all in one operation."""

    def join(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        return [operation(a, b) for a, b in zip(left, right, strict=True)]

    return jnp.stack(lax.reduce(rows, [jnp.float32(start)] * len(rows), join, (2,)), axis=2)[..., None]
