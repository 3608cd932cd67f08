"""Values that are the same on every device where they meet values that are not."""

from typing import Any, TypeVar

import jax
from jax import lax

T = TypeVar("T")


def varying_like(start: T, *like: Any) -> T:
    """`start`, marked as different on the devices on which any of `like` is: the carry of a loop keeps its type.

    Outside of `jax.shard_map`, and where nothing is to be marked, this is the identity and no equation.

    What is indexed by indices that differ needs it too, where a gradient is wanted: JAX does not mark it by itself, as
    it does the operands of other operations, and the gradient would be that of one device instead of their sum.

    Args:
        start: a pytree of arrays, as a loop begins with.
        like: pytrees of arrays that the loop combines it with.
    """
    axes = frozenset[str]().union(*(jax.typeof(leaf).mat.varying for leaf in jax.tree.leaves(like)))

    def marked(leaf: Any) -> Any:
        new = tuple(sorted(axes - jax.typeof(leaf).mat.varying))
        return lax.pcast(leaf, new, to="varying") if new else leaf

    return jax.tree.map(marked, start)
