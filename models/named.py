"""Names for the dimensions of arrays that are put into a layer's state."""

from jax import Array
from jax.ad_checkpoint import checkpoint_name


def named(x: Array, *names: str | None) -> Array:
    """`x`, its dimensions named; nothing is computed.

    A step is proved to write to each dimension of a layer's state what belongs there, even where sizes agree. Of what a
    recurrence adds to its state the program says so itself; what a cache or a convolution only keeps has to be named.

    Args:
        x: the array.
        names: one for each dimension, those of the `StateArray`; None where nothing needs it.
    """
    return checkpoint_name(x, "dims:" + ",".join(name or "" for name in names))
