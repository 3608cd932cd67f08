"""Results that XLA has to write before it reads them."""

from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint


def own_array(x: Array) -> Array:
    """The same numbers, row after row, in an array of their own: XLA fuses nothing across it.

    An `optimization_barrier` does not do that on CPUs, where it is gone before operations are fused.
    """
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))
