"""Marking of values that are equal on all devices where they meet values that vary over devices."""

from typing import Any, TypeVar

import jax
from jax import lax

T = TypeVar("T")


def varying_like(start: T, *like: Any) -> T:
    """Mark `start` as varying over the devices over which any of `like` varies, so that a loop's carry keeps its type.

    Outside of `jax.shard_map`, and where nothing is to be marked, this is the identity and no equation.

    Arrays that are indexed by varying indices need it too, where a gradient is wanted: JAX does not mark them by
    itself, as it does the operands of other operations, and the gradient would be that of one device instead of the
    sum.

    Args:
        start: a pytree of arrays, such as the initial carry of a loop.
        like: pytrees of arrays that the loop combines it with.
    """
    axes = frozenset[str]().union(*(jax.typeof(leaf).mat.varying for leaf in jax.tree.leaves(like)))

    def marked(leaf: Any) -> Any:
        new = tuple(sorted(axes - jax.typeof(leaf).mat.varying))
        return lax.pcast(leaf, new, to="varying") if new else leaf

    return jax.tree.map(marked, start)
