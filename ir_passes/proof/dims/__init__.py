"""Named dimensions: arrays written to a pool have its dimensions in the pool's order.

Begin with `names`; `rules` aligns dimensions of operands and results, `classes` holds equal dimensions.
"""

from ir_passes.proof.dims.names import dim_violations

__all__ = ["dim_violations"]
