"""The matrix product of every projection: a row-wise operation."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Float32


def linear(x: Float32[Array, "*rows in"], weight: Float[Array, "out in"]) -> Float32[Array, "*rows out"]:
    """`x @ weight.T`, each row by itself, accumulated in float32.

    The weight keeps the dtype and the orientation `[out, in]` of the checkpoint; a narrower weight meets an input
    rounded to its dtype. A single row of a narrow dtype is computed as two: XLA:CPU has no fast form for one. A single
    output is computed as two: the product of a matrix and a vector rounds a row differently at different places.
    """
    rows = x.reshape((-1, x.shape[-1])).astype(weight.dtype)
    count, outputs = rows.shape[0], weight.shape[0]
    if count == 1 and weight.dtype != jnp.float32:
        rows = jnp.concatenate([rows, jnp.zeros_like(rows)])
    if outputs == 1:
        weight = jnp.concatenate([weight, jnp.zeros_like(weight)])
    y = lax.dot_general(
        rows,
        weight,
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST if weight.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
    return y[:count, :outputs].reshape((*x.shape[:-1], outputs))
