"""The structure of a step's model without its arrays, and the rows of steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Int32

from hybridlm.steps.operands import StepInputs
from models import Decoder
from models.ops.linear import LinearWeight
from models.state.rows import Slots, put_rows, take_rows
from models.state.state import state_array


class Rows(NamedTuple):
    """The arrays of a pool: a row or several pages for each sequence.

    Attributes:
        layers: state of the model; KV caches have pages, all other arrays rows.
        token: sampled last.
    """

    layers: tuple
    token: Int32[Array, "row 1"]


def with_layers(rows: Rows, layers: tuple, slots: Slots) -> Rows:
    """Return the rows with new states of the layers.

    Tokens are written unchanged: a step writes lanes' rows in all pools of the state.
    """
    return Rows(layers, put_rows(rows.token, slots, take_rows(rows.token, slots)))


Step = Callable[[tuple[Any, ...], Rows, StepInputs], tuple[Any, Rows]]
"""(parameters, rows, inputs) -> (outputs, new rows)."""


@dataclass(frozen=True)
class Structure:
    """A model without its parameters: the static part of a step.

    Attributes:
        arrays: a `StateArray` in the place of each array of a row.
    """

    graph: nnx.GraphDef
    tree: Any
    arrays: Rows

    def rebuild(self, params: tuple[Any, ...]) -> Decoder:
        """Return the model with these parameters (arrays or `LinearWeight`) inside a trace."""
        return nnx.merge(self.graph, jax.tree.unflatten(self.tree, params[: self.tree.num_leaves]))


def flatten(model: Decoder) -> tuple[Structure, tuple[Any, ...]]:
    """Split a model into its structure and a flat tuple of arrays or types.

    A weight that is no plain array is one entry.
    """
    graph, state = nnx.split(model)
    leaves, tree = jax.tree.flatten(state, is_leaf=lambda leaf: isinstance(leaf, LinearWeight))
    arrays: Any = Rows(model.state_arrays(), state_array(jnp.int32, role="token", token=1))
    return Structure(graph, tree, arrays), tuple(leaves)
