"""Named dimensions: the proof that arrays written to a pool have its dimensions in the pool's order.

A part of `proof`, and imported by it. Imports its `registry` and `violations`. Begin with `names`; `rules` says which
dimensions of operands and results run together, `classes` keeps them together.
"""

from ir_passes.proof.dims.names import dim_violations

__all__ = ["dim_violations"]
