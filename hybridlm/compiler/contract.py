"""A contract applied to the arguments of a step, leaf by leaf."""

from ir_passes.contract.contract import Bound, BoundContract, ContractFault

__all__ = ["Bound", "BoundContract", "ContractFault"]
