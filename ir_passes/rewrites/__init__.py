"""Rewrites of a step's jaxpr, one pass per module, in the order in which they help each other.

Imports `proof`, `scratch`, `contract` and `jaxpr`. Begin with `graph`, what a pass is given and returns, and
`pipeline`.
"""

from ir_passes.rewrites.carry_pools import CarryPools
from ir_passes.rewrites.drop_dead import DropDead
from ir_passes.rewrites.graph import Pass
from ir_passes.rewrites.guard_indices import GuardIndices
from ir_passes.rewrites.hoist_reads import HoistReads
from ir_passes.rewrites.rebatch import Rebatch

DEFAULT_PASSES: tuple[Pass, ...] = (CarryPools(), Rebatch(), HoistReads(), GuardIndices(), DropDead())

__all__ = ["DEFAULT_PASSES", "CarryPools", "DropDead", "GuardIndices", "HoistReads", "Rebatch"]
