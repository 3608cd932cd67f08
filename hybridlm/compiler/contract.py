"""Contracts bound to the arguments of a step, and declarations of computed grids."""

from ir_passes.contract.contract import Bound, BoundContract, ComputedGrid, ContractFault

__all__ = ["Bound", "BoundContract", "ComputedGrid", "ContractFault"]
