"""A contract applied to the arguments of a step, leaf by leaf, and a declaration for computed grids."""

from ir_passes.contract.contract import Bound, BoundContract, ComputedGrid, ContractFault

__all__ = ["Bound", "BoundContract", "ComputedGrid", "ContractFault"]
