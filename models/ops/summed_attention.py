"""Attention of few query rows to a block of a KV cache by sums: the form for GPUs without a kernel."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32

MAX_SUMMED_QUERIES = 8
"""Query rows per key/value head up to which a GPU sums products of queries and keys, and of weights and values: as many
sums as XLA joins in one operation."""
SUMMED_POSITIONS = 8
"""Positions, and such runs of them, that a thread sums for itself: as many as XLA does not split a sum for."""
MIN_WIDE_VALUE = 256
"""Numbers of a value from which a thread sums twice as many."""


def summed_block(
    queries: list[Float32[Array, "lane kv_head key"]],
    key: Array,
    value: Array,
    seen: list[Bool[Array, "lane 1 position 1"]],
    carry: tuple[Array, Array, Array],
) -> tuple[Array, Array, Array]:
    """Return the carry of `models.mixers.kv_cache.attend` after a block.

    Sums read keys and values inside of the cache, where a product is given a copy; those of all rows are one operation.
    Scores and weights of each row are arrays of their own: in one, they would be copied to join and to part them.

    Args:
        queries: scaled, those of the tokens of a head one after the other.
        key, value: of the block, `[lane, kv_head, position, size]`; where nothing is seen they may hold NaN.
        seen: positions that each token sees.
        carry: largest score, sum of exponentials and their sum over values so far.
    """
    (top, total, out), rows = carry, range(len(queries))
    own, key, value = [seen[i % len(seen)] for i in rows], key.astype(jnp.float32), value.astype(jnp.float32)
    # masked before the sums: XLA would write scores that it masks behind them once more
    products = [jnp.where(own[i], queries[i][:, :, None] * key, -jnp.inf) for i in rows]
    scores = lax.optimization_barrier([jnp.sum(one, axis=-1) for one in products])
    new_top = jnp.maximum(top, _each_reduced(lax.max, -jnp.inf, scores))
    keep = jnp.exp(top - new_top)
    weights = [jnp.exp(one - new_top[:, :, i]) for i, one in zip(rows, scores, strict=True)]
    total = total * keep + _each_reduced(lax.add, 0.0, weights)
    weights = lax.optimization_barrier(weights)
    products = [jnp.where(own[i], weights[i][..., None] * value, 0.0) for i in rows]
    # Two sums over all positions fill the shared memory of an operation (gpu_fusible.cc); those that a thread sums by
    # itself are all in one, over short parts. With many numbers of a value there are threads enough for longer ones.
    wide = value.shape[3] >= MIN_WIDE_VALUE and value.shape[2] % (4 * SUMMED_POSITIONS**2) == 0
    cut = (SUMMED_POSITIONS, 2, SUMMED_POSITIONS, -1, 2) if wide else (SUMMED_POSITIONS, -1, SUMMED_POSITIONS)
    products = [one.reshape((*value.shape[:2], *cut, value.shape[3])) for one in products]
    sums = [jnp.sum(one, axis=tuple(range(2, 2 + len(cut), 2))) for one in products]
    sums = [one.reshape((*value.shape[:2], -1, value.shape[3])) for one in lax.optimization_barrier(sums)]
    return new_top, total, out * keep + jnp.sum(jnp.stack(sums, axis=2), axis=3)


def _each_reduced(
    reduced: Callable[[Array, Array], Array], start: float, rows: list[Float32[Array, "lane kv_head position"]]
) -> Float32[Array, "lane kv_head query 1"]:
    """Reduce each array over its positions, all in one operation."""

    def joined(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        return [reduced(one, other) for one, other in zip(left, right, strict=True)]

    return jnp.stack(lax.reduce(rows, [jnp.float32(start)] * len(rows), joined, (2,)), axis=2)[..., None]
