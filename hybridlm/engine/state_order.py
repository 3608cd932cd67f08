"""Order of the entries of states that a mesh splits along `model`."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hybridlm.checkpoint.model import family_of_model
from hybridlm.engine.engine import Engine
from models import DecoderConfig
from models.state.state import StateArray


class ShardOrder(NamedTuple):
    """Entries of a dimension in the order of the devices' shards.

    Attributes:
        dim: after lanes or rows.
        entries: int [N]; several shards may have one entry.
    """

    dim: int
    entries: np.ndarray

    @property
    def size(self) -> int:
        return int(self.entries.max()) + 1

    def in_shards(self, x: Array) -> Array:
        """Return an array in the model's order, lanes first, in the order of shards."""
        return jnp.take(x, self.entries, axis=1 + self.dim)

    def whole(self, x: Array) -> Array:
        """Return the inverse of `in_shards`."""
        _, places = np.unique(self.entries, return_index=True)
        return jnp.take(x, places, axis=1 + self.dim)


@cache
def whole_state_arrays(config: DecoderConfig) -> list[StateArray]:
    """Return the arrays of a state on one device, as leaves."""
    return jax.tree.leaves(family_of_model(config).abstract(config).state_arrays())


def shard_orders(engine: Engine) -> list[ShardOrder | None]:
    """Return the order of each array of a state; None is the model's order."""
    devices, orders = engine.placement.devices.model, list[ShardOrder | None]()
    if devices == 1:
        return [None for _ in jax.tree.leaves(engine.programs.structure.arrays.layers)]
    for array in whole_state_arrays(engine.config):
        split = array.sharded_dim
        entries = np.arange(0) if split is None else split.order(devices)
        if split is None or np.array_equal(entries, np.arange(len(entries))):
            orders.append(None)
        else:
            orders.append(ShardOrder(split.dim - 1, entries))
    return orders
