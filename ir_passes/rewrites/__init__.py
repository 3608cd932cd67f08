"""Rewrites of a jaxpr: batched loops over sequences, ordered writes of pools, no dead equations.

Begin with `graph` (input and output of a pass) and `pipeline`.
"""

from ir_passes.rewrites.batching import rebatch
from ir_passes.rewrites.graph import Pass, drop_dead
from ir_passes.rewrites.write_order import write_in_place

DEFAULT_PASSES: tuple[Pass, ...] = (rebatch, drop_dead)

__all__ = ["DEFAULT_PASSES", "drop_dead", "rebatch", "write_in_place"]
