"""Results that XLA has to write before it reads them."""

import jax.numpy as jnp
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint


def own_array(x: Array) -> Array:
    """The same numbers, row after row, in an array of their own: XLA fuses nothing across it.

    An `optimization_barrier` does not do that on CPUs, where it is gone before operations are fused.
    """
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def turned(x: Array) -> Array:
    """The last two axes in the other order, as an array of its own; for the result of a product.

    XLA would make it a layout, of the product that has it for a result (and turn that round again) or of the next one
    that it goes into, for which there is no kernel: a weight would be converted to float32 in every step. The first
    array keeps the result row after row, the second its transpose.
    """
    return own_array(jnp.swapaxes(own_array(x), -1, -2))
