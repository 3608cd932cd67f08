"""Rewrites of a jaxpr: batched loops over sequences, ordered writes of pools, no dead equations.

Begin with `graph` (input and output of a pass) and `pipeline`.
"""

from ir_passes.rewrites.graph import DropDead, Pass
from ir_passes.rewrites.rebatch import Rebatch
from ir_passes.rewrites.write_in_place import WriteInPlace

DEFAULT_PASSES: tuple[Pass, ...] = (Rebatch(), DropDead())

__all__ = ["DEFAULT_PASSES", "DropDead", "Rebatch", "WriteInPlace"]
