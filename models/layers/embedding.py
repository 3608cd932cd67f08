"""Token embedding."""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Float32, Int

from models.ops.linear import LinearWeight


def embedding_rows(
    table: Float[Array, "word hidden"] | LinearWeight, words: Int[Array, "*place"], platform: str = "cpu"
) -> Float32[Array, "*place hidden"]:
    """Look up token embeddings in float32; out-of-vocabulary ids give NaN.

    A CPU reads a narrow table as bits (ops/layout: gather); a TPU would convert the whole table in every step.
    """
    if isinstance(table, LinearWeight):
        return table.take(words)
    if table.dtype == jnp.float32 or platform != "cpu":
        return table.at[words].get(mode="fill").astype(jnp.float32)
    nan = np.array(np.nan, table.dtype).view(np.uint16)
    bits = lax.bitcast_convert_type(table, jnp.uint16).at[words].get(mode="fill", fill_value=int(nan))
    return lax.bitcast_convert_type(bits, table.dtype).astype(jnp.float32)
