"""Primitives for the semantics of kernels: unwritten memory and unclamped indices."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ir_passes.jaxpr import ir
from ir_passes.kernels.anything import anything, with_anything

UNINITIALIZED, KERNEL_INDEX, KERNEL_PADDING, OR_OLD = "uninitialized", "kernel_index", "kernel_padding", "or_old"
MAX_UNROLLED = 32
"""Limit on unrolled steps or iterations, where a loop would lose facts."""
MAX_CONSTANT = 1 << 20
"""Elements of the largest evaluated mask or index array."""


class UnreadableKernel(ValueError):
    """A kernel cannot be read or counted; the message names the operation and its line."""

    is_located = False

    def at(self, eqn: ir.JaxprEqn) -> "UnreadableKernel":
        if not self.is_located:
            self.is_located, self.args = True, (f"{eqn.primitive.name} at {ir.source_of(eqn)}: {self}",)
        return self


def uninitialized(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return unwritten memory: any content in the proof; NaN or the least integer when run."""
    return _uninitialized_p.bind(shape=tuple(shape), dtype=np.dtype(dtype))


def within(index: Any, bound: int, kernel: str = "") -> Any:
    """Return an index that must be in [0, bound): outside is foreign memory.

    Args:
        kernel: name of the kernel, if the index is the computed length of its grid.
    """
    if not isinstance(index, int | np.ndarray | np.generic):
        return _index_p.bind(index, bound=int(bound), kernel=kernel)
    if np.all((np.asarray(index) >= 0) & (np.asarray(index) < bound)):
        return index
    return _index_p.bind(jnp.asarray(index, jnp.int32), bound=int(bound), kernel=kernel)


def or_old(new: Any, old: Any) -> Any:
    """Return stored content, or the old content: other steps may write too, in any order."""
    return _or_old_p.bind(jnp.asarray(new), jnp.asarray(old))


def padded(array: Any, shape: tuple[int, ...]) -> Any:
    for dim, size in enumerate(shape):
        if size > array.shape[dim]:
            array = _padding_p.bind(array, dim=dim, size=size)
    return array


_uninitialized_p = ir.new_primitive(UNINITIALIZED, lambda *, shape, dtype: ir.ShapedArray(shape, dtype), anything)
_index_p = ir.new_primitive(KERNEL_INDEX, lambda index, **params: index, lambda index, **params: index)
_or_old_p = ir.new_primitive(OR_OLD, lambda new, old: new, lambda new, old: new)
_padding_p = ir.new_primitive(
    KERNEL_PADDING,
    lambda array, *, dim, size: ir.ShapedArray((*array.shape[:dim], size, *array.shape[dim + 1 :]), array.dtype),
    with_anything,
)
