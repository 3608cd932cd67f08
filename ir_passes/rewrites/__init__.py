"""Rewrites of a step's jaxpr: batch loops over sequences, drop dead equations.

Imports `proof`, `scratch`, `contract` and `jaxpr`. Begin with `graph` (input and output of a pass) and `pipeline`.
"""

from ir_passes.rewrites.graph import DropDead, Pass
from ir_passes.rewrites.rebatch import Rebatch

DEFAULT_PASSES: tuple[Pass, ...] = (Rebatch(), DropDead())

__all__ = ["DEFAULT_PASSES", "DropDead", "Rebatch"]
