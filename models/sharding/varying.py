"""Marks of replicated values that meet values varying over devices."""

from typing import Any, TypeVar

import jax
from jax import lax

T = TypeVar("T")


def varying_like(start: T, *like: Any) -> T:
    """Mark `start` as varying over devices like other arrays, for a loop's carry.

    Without varying arrays, this is no equation.

    Arrays with varying indices need the mark too: JAX does not mark them automatically, and the gradient would come
    from one device instead of the sum.

    Args:
        start: pytree, such as a loop's initial carry.
        like: pytrees of other arrays.
    """
    axes = frozenset[str]().union(*(jax.typeof(leaf).mat.varying for leaf in jax.tree.leaves(like)))

    def marked(leaf: Any) -> Any:
        new = tuple(sorted(axes - jax.typeof(leaf).mat.varying))
        return lax.pcast(leaf, new, to="varying") if new else leaf

    return jax.tree.map(marked, start)
