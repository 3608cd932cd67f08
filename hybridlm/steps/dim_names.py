"""Names for the dimensions of pools in the contracts of steps: those that the model's layers give to their state."""

from collections.abc import Container
from dataclasses import replace
from typing import Any

import jax

from ir_passes import LaneContract, Pool
from models.state.state import StateArray

POSITION = "position"
"""What the proof calls the positions of a cache: in no program is one of them a constant."""


def name_pool_dims(contract: LaneContract, arrays: Any, positions_first: Container[str] = ()) -> LaneContract:
    """The contract with a name for every dimension of its pools.

    Args:
        contract: of a step whose pools, an argument and a result each, have these arrays.
        arrays: a `StateArray` for each.
        positions_first: groups of pools whose arrays have their positions right behind the rows.
    """

    def entry(one: Any) -> Any:
        if not isinstance(one, Pool):
            return one
        first = one.group in positions_first
        return jax.tree.map(lambda array: replace(one, dims=_names(array, first)), arrays)

    return replace(contract, inputs=tuple(map(entry, contract.inputs)), outputs=tuple(map(entry, contract.outputs)))


def _names(array: StateArray, positions_first: bool) -> tuple[str, ...]:
    names = [POSITION if size is None else name for name, size in array.sizes]
    if positions_first and POSITION in names:
        names = [POSITION, *(name for name in names if name != POSITION)]
    return ("row", *names)
