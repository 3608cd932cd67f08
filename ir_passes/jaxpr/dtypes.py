"""The dtypes of arrays: numpy's, sub-byte dtypes, and JAX's typed random keys.

NumPy's functions know only the first: they do not count a narrow integer as an integer, and reject a key.
"""

from functools import cache, partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")
"""Random generators that JAX has; keys of others do not outlive their process."""


class DType(Protocol):
    """The dtype of a step's array: `numpy.dtype`, or JAX's typed random key.

    Attributes:
        name: as "float32" or "key<fry>".
        itemsize: bytes of an element.
    """

    @property
    def name(self) -> str:
        """Name of the dtype, "float32"."""
        ...

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        ...


def dtype_of(leaf: Any) -> DType:
    """The dtype of an array, of an abstract one, or of a number."""
    return leaf.dtype if isinstance(leaf, jax.Array) or hasattr(leaf, "dtype") else np.result_type(leaf)


def is_integer(dtype: Any) -> bool:
    """Whether elements are integers of any width; booleans are not."""
    return bool(jnp.issubdtype(dtype, np.integer))


def is_key(dtype: Any) -> bool:
    """Whether elements are typed random keys."""
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


@cache
def key_implementation(dtype: Any) -> str:
    """The generator that typed keys are for, as "threefry2x32"."""
    return str(jax.random.key_impl(jnp.empty((0,), dtype)))


def named(words: jax.Array, dtype: str) -> jax.Array:
    """Wrap raw words as typed keys if `dtype` names a key type; otherwise no change."""
    for generator in GENERATORS:
        if str(jax.eval_shape(partial(jax.random.key, impl=generator), 0).dtype) == dtype:
            return jax.random.wrap_key_data(words, impl=generator)
    return words


def limits(dtype: Any) -> tuple[int, int]:
    """Least and greatest integer of a dtype."""
    info = jnp.iinfo(dtype)
    return int(info.min), int(info.max)


def to_numpy(array: Any) -> np.ndarray[Any, Any]:
    """The elements of an array; of keys their words, along a new last axis."""
    return np.asarray(jax.random.key_data(array) if is_key(dtype_of(array)) else array)
