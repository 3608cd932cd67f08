"""Marking of replicated values that meet values varying over devices."""

from typing import Any, TypeVar

import jax
from jax import lax

T = TypeVar("T")


def varying_like(start: T, *like: Any) -> T:
    """Mark `start` as varying over devices like other arrays, for a loop's carry.

    Outside `jax.shard_map`, and without varying arrays, this is the identity and no equation.

    For a gradient, arrays with varying indices need the mark too: JAX marks operands of other operations automatically,
    but not these, and the gradient would come from one device instead of the sum.

    Args:
        start: a pytree of arrays, such as the initial carry of a loop.
        like: pytrees of the loop's other arrays.
    """
    axes = frozenset[str]().union(*(jax.typeof(leaf).mat.varying for leaf in jax.tree.leaves(like)))

    def marked(leaf: Any) -> Any:
        new = tuple(sorted(axes - jax.typeof(leaf).mat.varying))
        return lax.pcast(leaf, new, to="varying") if new else leaf

    return jax.tree.map(marked, start)
