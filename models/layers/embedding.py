"""Rows of an embedding."""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Float32, Int

from models.ops.linear import LinearWeight


def embedding_rows(
    table: Float[Array, "word hidden"] | LinearWeight, words: Int[Array, "*place"]
) -> Float32[Array, "*place hidden"]:
    """The rows of some words, in float32; a word that the table does not have gives numbers that are none.

    A narrow table is read as bits: XLA:CPU knows no gather of narrow numbers, and where a product with the same table
    converts it to float32, it would have all of it converted once for both, in every step.
    """
    if isinstance(table, LinearWeight):
        return table.take(words)
    if table.dtype == jnp.float32:
        return table.at[words].get(mode="fill")
    none = np.array(np.nan, table.dtype).view(np.uint16)
    found = lax.bitcast_convert_type(table, jnp.uint16).at[words].get(mode="fill", fill_value=int(none))
    return lax.bitcast_convert_type(found, table.dtype).astype(jnp.float32)
