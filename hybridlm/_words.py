"""The words of a parameter: its bytes as 32-bit integers, in the memory where it is."""

import jax
import numpy as np
from jaxtyping import Float, UInt32


def words_of(param: Float[jax.Array, "out in"]) -> UInt32[jax.Array, "out half"] | None:
    """A second array over the bytes of a parameter of 16-bit numbers, two of a row in each word; nothing is copied.

    The words keep the parameter alive. Neither may be donated.

    Args:
        param: on one device; an even number of inputs.

    Returns:
        None where the bytes cannot be shared: on another device than the CPU.
    """
    if jax.default_backend() != "cpu":
        return None
    words = jax.device_put(np.asarray(param).view(np.uint32), may_alias=True)
    return words if words.unsafe_buffer_pointer() == param.unsafe_buffer_pointer() else None
