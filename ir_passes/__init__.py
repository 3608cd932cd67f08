"""The compiler: contracts of multi-sequence steps. Knows JAX functions, not language models."""

from ir_passes.contract import Bound, BoundContract, ContractError, Lane, LaneContract, Pool, Shared, SlotMap

DISTRIBUTION = "hybridlm"

__all__ = [
    "DISTRIBUTION",
    "Bound",
    "BoundContract",
    "ContractError",
    "Lane",
    "LaneContract",
    "Pool",
    "Shared",
    "SlotMap",
]
