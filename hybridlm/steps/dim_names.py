"""Names of pool dimensions in contracts, from the state of the model's layers."""

from dataclasses import replace
from typing import Any

import jax

from ir_passes import LaneContract, Pool
from models.state.state import StateArray

POSITION = "position"
"""Name of the positions of a cache in the proof: no program has a constant position."""


def name_pool_dims(contract: LaneContract, arrays: Any) -> LaneContract:
    """Return the contract with a name for every dimension of its pools.

    Args:
        contract: contract of a step with these arrays in its pools, arguments and results.
        arrays: a `StateArray` for each.
    """

    def entry(role: Any) -> Any:
        if isinstance(role, Pool):
            role = jax.tree.map(lambda array: role, arrays)
        elif jax.tree.structure(role) != jax.tree.structure(arrays):
            return role
        return jax.tree.map(lambda pool, array: replace(pool, dims=_names(array)), role, arrays)

    return replace(contract, inputs=tuple(map(entry, contract.inputs)), outputs=tuple(map(entry, contract.outputs)))


def _names(array: StateArray) -> tuple[str, ...]:
    names = (POSITION if size is None else name for name, size in array.sizes)
    return ("page" if array.grows else "row", *names)
