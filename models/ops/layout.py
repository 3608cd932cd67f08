"""Materialized arrays and layouts, and the heuristics of XLA:CPU that the model code is written for.

Other files refer to these rules by name ("ops/layout: in place"):

* fusion: XLA:CPU computes an elementwise producer again for each of its consumers, and for each element of a consumer
  that it is broadcast into; the short convolution in front of a recurrence would be computed for every element of the
  state. It does so with cheap operations only. A division counts as expensive, so activations and norms end in one.
  `materialize` ends a fusion where there is no division. An `optimization_barrier` does not end one on CPUs, where it
  is removed before fusion; it stops simplifications only, such as a slice of a concatenation that becomes its operand.
  On GPUs it is the other way round (`unfused`).
* in place: a state is updated in its buffer only if its last read comes before the update. So zeros for fresh lanes
  replace the read and the decayed state, not the state itself, of which a matrix product would need a second copy; the
  values that are written are computed from the read; a kept array is computed from the same array as the outputs. A
  loop writes in place of its initial carry, and copies one that is needed afterwards.
* one block: XLA takes the only block of a one-block cache for the cache itself, computes a write of one row once for
  the result and once for the block, and copies the cache for each. Caches have two blocks at least.
* transpose: a transposed result becomes a layout, of the product that computes it (and is then transposed back) or of
  the next product, for which there is no kernel: a weight would be converted to float32 in every step.
* operands: a matrix product packs its right operand in every call, so the smaller operand is the right one. There is no
  fast product of one narrow row, and the product of a matrix and a vector rounds a row differently at different places;
  both are computed as two.
* gather: there is no gather of narrow floats. One is computed in float32, and together with a product of the same table
  it would convert the whole table in every step.
"""

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Float32

MAX_MATERIALIZED_TOKENS = 256
"""Tokens of all lanes up to which `merge_heads` materializes. With more, XLA:CPU computes a norm and the operations
behind it in its library, which is faster."""


def materialize(x: Array) -> Array:
    """Return the same numbers in a row-major array that XLA writes before it is read: nothing fuses across it."""
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def unfused(x: Array, platform: str) -> Array:
    """Return the same numbers in an array that is written before it is read; on a GPU only a barrier sees to that."""
    return lax.optimization_barrier(x) if platform == "gpu" else materialize(x)


def materialized_transpose(x: Array) -> Array:
    """Swap the last two axes of a product's result; result and transpose are both written in row-major order."""
    return materialize(jnp.swapaxes(materialize(x), -1, -2))


def merge_heads(x: Float32[Array, "lane token head size"]) -> Float32[Array, "lane token inner"]:
    """Concatenate the heads of each token; those of few tokens are materialized head by head first.

    Without that XLA:CPU computes merged rows, finds the head of each number by a division, and vectorises nothing of
    the producers: a gated norm of 8 heads of 128 takes 0.15 ms for 32 tokens instead of 0.03.
    """
    few = x.shape[0] * x.shape[1] <= MAX_MATERIALIZED_TOKENS
    return (materialize(x) if few else x).reshape((*x.shape[:2], x.shape[2] * x.shape[3]))
