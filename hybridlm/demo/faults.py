"""Fault injection for the demo: swapped states of two sequences."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from models.state.state import StateArray

if TYPE_CHECKING:
    from hybridlm.lm import LM
    from hybridlm.steps.structure import Rows


@contextmanager
def swapped_lanes(lm: "LM", recurrent_only: bool = False) -> Iterator[None]:
    """Swap the states of rows 0 and 1, 2 and 3, ... once per batch.

    The swap follows the step that consumes the first sampled token. Sequences keep rows, tokens, positions and pages of
    their KV caches. It is meant for batches that begin together.

    Args:
        lm: with at least two lanes.
        recurrent_only: leave convolution states in place.
    """

    def swap(pools: "Rows", owners: list[Any]) -> "Rows":
        if any(owner is not None and owner.sampled != 2 for owner in owners):
            return pools
        order = np.arange(len(owners)) ^ 1
        order = np.where(order < len(owners), order, np.arange(len(owners)))  # the last of an odd number stays

        def rows(array: StateArray, pool: jax.Array) -> jax.Array:
            stays = array.grows or (recurrent_only and array.role != "recurrent")
            return pool if stays else pool[order]

        arrays = lm.engine.programs.structure.arrays.layers
        return pools._replace(layers=jax.tree.map(rows, arrays, pools.layers))

    lm.engine.after_step = swap
    try:
        yield
    finally:
        lm.engine.after_step = None
