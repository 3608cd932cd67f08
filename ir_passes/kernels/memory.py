"""Operations that plain programs lack to say what a kernel does: unwritten memory, and indices that nothing clamps."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ir_passes.jaxpr import ir

UNINITIALIZED, KERNEL_INDEX, KERNEL_PADDING = "uninitialized", "kernel_index", "kernel_padding"
MAX_UNROLLED = 32
"""Steps of a grid axis, or rounds of a loop, that are written out one by one where a loop would lose what is known."""
MAX_CONSTANT = 1 << 20
"""Elements of a mask, or of indices, that are computed to see which places they are."""


class UnreadableKernel(ValueError):
    """A kernel has no plain form; says what it does, and where."""


def uninitialized(shape: tuple[int, ...], dtype: Any) -> Any:
    """Memory that nobody has written: it may hold anything. Run, it is NaN, or the least integer."""
    return _uninitialized_p.bind(shape=tuple(shape), dtype=np.dtype(dtype))


def within(index: Any, bound: int) -> Any:
    """Return an integer or array that must be in [0, bound), because beyond lies another's memory."""
    if not isinstance(index, int | np.ndarray | np.generic):
        return _index_p.bind(index, bound=int(bound))
    if np.all((np.asarray(index) >= 0) & (np.asarray(index) < bound)):
        return index
    return _index_p.bind(jnp.asarray(index, jnp.int32), bound=int(bound))


def padded(array: Any, shape: tuple[int, ...]) -> Any:
    """Return an array with foreign memory after its end along each dimension, up to a shape."""
    for dim, size in enumerate(shape):
        if size > array.shape[dim]:
            array = _padding_p.bind(array, dim=dim, size=size)
    return array


def _with_anything(array: Any, *, dim: int, size: int) -> Any:
    shape = (*array.shape[:dim], size - array.shape[dim], *array.shape[dim + 1 :])
    return jnp.concatenate([array, _anything(shape=shape, dtype=array.dtype)], dim)


def _anything(*, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.full(shape, jnp.nan, dtype)
    return jnp.full(shape, False if dtype == np.bool_ else jnp.iinfo(dtype).min, dtype)


_uninitialized_p = ir.new_primitive(UNINITIALIZED, lambda *, shape, dtype: ir.ShapedArray(shape, dtype), _anything)
_index_p = ir.new_primitive(KERNEL_INDEX, lambda index, *, bound: index, lambda index, *, bound: index)
_padding_p = ir.new_primitive(
    KERNEL_PADDING,
    lambda array, *, dim, size: ir.ShapedArray((*array.shape[:dim], size, *array.shape[dim + 1 :]), array.dtype),
    _with_anything,
)
