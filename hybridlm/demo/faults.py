"""A fault to inject on purpose: two lanes' states change places, as a wrong row number would do it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from hybridlm.lm import LM
    from hybridlm.steps.structure import Rows

RECURRENT = "recurrent"
"""Name of the recurrent state's array among the arrays of a layer's state."""


@contextmanager
def swapped_lanes(lm: "LM", recurrent_only: bool = False) -> Iterator[None]:
    """Inside, each batch that `lm` decodes has the states of lanes 0 and 1, 2 and 3, ... swapped once.

    The swap comes after the step that consumes the first token drawn, prompts being done. Sequences keep their lanes,
    tokens and positions; what the lanes remember is another sequence's. It is for batches that begin together: a
    sequence that joins one later keeps what it has.

    Args:
        lm: a model with at least two lanes.
        recurrent_only: leave convolution states and key/value caches where they are.
    """

    def swap(pools: "Rows", owners: list[Any]) -> "Rows":
        if any(owner is not None and owner.sampled != 2 for owner in owners):
            return pools
        order = np.arange(len(owners)) ^ 1
        order = np.where(order < len(owners), order, np.arange(len(owners)))  # an odd lane out stays

        def rows(path: tuple[Any, ...], pool: jax.Array) -> jax.Array:
            kept = recurrent_only and getattr(path[-1], "name", None) != RECURRENT
            return pool if kept else pool[order]

        return pools._replace(layers=jax.tree_util.tree_map_with_path(rows, pools.layers))

    lm.engine.after_step = swap
    try:
        yield
    finally:
        lm.engine.after_step = None
