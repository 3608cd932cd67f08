"""Results that XLA has to write before it reads them.

The heads of a token side by side.
"""

import jax.numpy as jnp
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Float32


def materialize(x: Array) -> Array:
    """The same numbers, row after row, in an array of their own: XLA fuses nothing across it.

    An `optimization_barrier` does not do that on CPUs, where it is gone before operations are fused.
    """
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def materialized_transpose(x: Array) -> Array:
    """The last two axes in the other order, as an array of its own; for the result of a product.

    XLA would make it a layout, of the product that has it for a result (and turn that round again) or of the next one
    that it goes into, for which there is no kernel: a weight would be converted to float32 in every step. The first
    array keeps the result row after row, the second its transpose.
    """
    return materialize(jnp.swapaxes(materialize(x), -1, -2))


MAX_MATERIALIZED_TOKENS = 256
"""Of all lanes together: of more XLA:CPU has its library compute a norm with what follows it, and that is faster."""


def merge_heads(x: Float32[Array, "lane token head size"]) -> Float32[Array, "lane token inner"]:
    """The heads of each token as one row; those of few tokens are computed head by head, as an array of its own.

    XLA:CPU would compute the row, find the head of each number by a division, and vectorise nothing of what the heads
    are computed from: a gated norm of 8 heads of 128 takes 0.15 ms for 32 tokens, and 0.03 so.
    """
    few = x.shape[0] * x.shape[1] <= MAX_MATERIALIZED_TOKENS
    return (materialize(x) if few else x).reshape((*x.shape[:2], x.shape[2] * x.shape[3]))
