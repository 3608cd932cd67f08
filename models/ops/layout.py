"""Materialized arrays, and XLA:CPU's rules behind the model code, by name:

* fusion: XLA:CPU recomputes a cheap elementwise producer for each consumer and each element of a broadcast. A division
  counts as expensive, so activations and norms end in one; elsewhere `materialize` ends a fusion. XLA:CPU removes an
  `optimization_barrier` before fusion: it only stops simplifications. On GPUs it ends a fusion (`unfused`).
* in place: a state is updated in its buffer only if its last read comes before the update. So zeros for fresh lanes
  replace the read and the decayed state, not the state; written values are computed from the read; a stored array and
  the outputs are computed from one array. A loop overwrites its initial carry, and copies a carry with later uses.
* one block: XLA confuses the only page of a lane with the cache, computes a one-row write separately for the result and
  the page, and copies the cache for each. Page tables have at least two entries per lane.
* transpose: a transposed result becomes a layout of its product (and is transposed back) or of the next product, which
  has no fast kernel: a weight would be converted to float32 in every step.
* operands: a matrix product packs its right operand in every call, so the smaller operand is the right one. A product
  of one narrow row is slow, and a product with a vector rounds a row differently at different places; both are computed
  as two.
* gather: narrow floats are gathered in float32; with a product of the same table, the whole table would be converted in
  every step.
"""

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Float32

MAX_MATERIALIZED_TOKENS = 256
"""Maximum tokens of all lanes for materialized heads; with more, XLA:CPU's library is faster."""


def materialize(x: Array) -> Array:
    """Write x to a row-major array in memory, to end a fusion."""
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def unfused(x: Array, platform: str) -> Array:
    """Write x to memory before its uses."""
    return lax.optimization_barrier(x) if platform == "gpu" else materialize(x)


def materialized_transpose(x: Array) -> Array:
    """Swap the last two axes of a product's result; write both in row-major order."""
    return materialize(jnp.swapaxes(materialize(x), -1, -2))


def merge_heads(x: Float32[Array, "lane token head size"]) -> Float32[Array, "lane token inner"]:
    """Concatenate the heads of each token; materialize them first for few tokens.

    Otherwise XLA:CPU finds the head of each number by a division, and does not vectorise the producers: a gated norm is
    five times as slow.
    """
    if x.shape[0] * x.shape[1] <= MAX_MATERIALIZED_TOKENS:
        x = materialize(x)
    return x.reshape((*x.shape[:2], x.shape[2] * x.shape[3]))
