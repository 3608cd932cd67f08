"""Named dimensions: arrays written to a pool have its dimensions in the pool's order.

Begin with `names`.
"""

from ir_passes.proof.dims.names import dim_violations

__all__ = ["dim_violations"]
