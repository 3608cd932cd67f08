"""Dtypes of arrays: NumPy's, sub-byte dtypes, and JAX's typed random keys.

NumPy's functions do not count sub-byte integers as integers, and reject keys.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def dtype_of(leaf: Any) -> Any:
    """Return the dtype of an array, abstract array, number or typed random key."""
    return leaf.dtype if isinstance(leaf, jax.Array) or hasattr(leaf, "dtype") else np.result_type(leaf)


def is_integer(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, np.integer))


def is_key(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


@cache
def key_implementation(dtype: Any) -> str:
    """Return the generator of typed keys, such as "threefry2x32"."""
    return str(jax.random.key_impl(jnp.empty((0,), dtype)))


def limits(dtype: Any) -> tuple[int, int]:
    info = jnp.iinfo(dtype)
    return int(info.min), int(info.max)


def to_numpy(array: Any) -> np.ndarray[Any, Any]:
    """Return elements; of keys their words, along a new last axis."""
    return np.asarray(jax.random.key_data(array) if is_key(dtype_of(array)) else array)
