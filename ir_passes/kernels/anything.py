"""Values of unwritten memory in runs of plain programs; a proof reads types only."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def with_anything(array: Any, *, dim: int, size: int) -> Any:
    """Return an array with unwritten memory behind it."""
    shape = (*array.shape[:dim], size - array.shape[dim], *array.shape[dim + 1 :])
    return jnp.concatenate([array, anything(shape=shape, dtype=array.dtype)], dim)


def anything(*, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Return NaN, or the least integer."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.full(shape, jnp.nan, dtype)
    return jnp.full(shape, False if dtype == np.bool_ else jnp.iinfo(dtype).min, dtype)
