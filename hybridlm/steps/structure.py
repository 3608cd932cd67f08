"""The structure of a step's model without its arrays, and the rows that steps return."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Int32

from hybridlm.steps.dim_names import POSITION
from ir_passes import Lane, Opaque, Pool, Shared
from models import Decoder
from models.ops.decode_attention_cpu import ATTENTION, LATENT_ATTENTION
from models.ops.linear import LinearWeight
from models.ops.recurrences import conv_step_cpu, recurrent_step_cpu
from models.state.state import state_array

STATE = Pool("state")
_STATES = replace(STATE, dims=("row", "value_head", "value", "key"))
_WINDOWS = replace(STATE, dims=("row", "tap", "channel"))
_KEYS, _VALUES = (replace(STATE, dims=("row", "kv_head", POSITION, size)) for size in ("key", "value"))
_TOKENS = (Lane(role="length"), *[Lane()] * 6)
_INPUTS = (Lane(role="length"), Lane(), Lane(), Shared(), Shared())
KERNEL_CALLS = {
    recurrent_step_cpu.STEP: Opaque((*_TOKENS, _STATES), (Lane(), _STATES), aliases={len(_TOKENS): 1}, fresh=1),
    recurrent_step_cpu.READ: Opaque((*_TOKENS, _STATES), (Lane(),), fresh=1),
    conv_step_cpu.STEP: Opaque((*_INPUTS, _WINDOWS), (Lane(), _WINDOWS), aliases={len(_INPUTS): 1}, fresh=1),
    conv_step_cpu.READ: Opaque((*_INPUTS, _WINDOWS), (Lane(),), fresh=1),
    ATTENTION: Opaque((*_TOKENS[:5], _KEYS, _VALUES), (Lane(), _KEYS, _VALUES), aliases={5: 1, 6: 2}),
    LATENT_ATTENTION: Opaque((*_TOKENS[:4], _KEYS), (Lane(), _KEYS), aliases={4: 1}),
}
"""Declarations of the kernels for CPUs that have whole pools as operands; all others are declared row-wise."""


class Rows(NamedTuple):
    """The arrays of a pool: everything that sequences own on the device, one row each.

    Attributes:
        layers: state of the model's layers.
        token: the token sampled last.
    """

    layers: tuple
    token: Int32[Array, "row 1"]


Step = Callable[..., tuple[Any, Rows]]


@dataclass(frozen=True)
class Structure:
    """A model without its parameters: the static part of a step beside the flat tuple of arrays.

    Attributes:
        graph, tree: structure of the model over its arrays.
        arrays: a `StateArray` in the place of each array of a row.
    """

    graph: nnx.GraphDef
    tree: Any
    arrays: Rows

    def rebuild(self, params: tuple[Any, ...]) -> Decoder:
        """Return the model with these parameters, inside a trace; extra arrays at the end are ignored.

        Args:
            params: arrays, or a `LinearWeight` in the place of one.
        """
        return nnx.merge(self.graph, jax.tree.unflatten(self.tree, params[: self.tree.num_leaves]))


def flatten(model: Decoder) -> tuple[Structure, tuple[Any, ...]]:
    """Split a model into its structure and a flat tuple of arrays, which costs a step nothing per call.

    For an abstract model the tuple holds ShapeDtypeStructs; a weight that is no plain array is one entry.
    """
    graph, state = nnx.split(model)
    leaves, tree = jax.tree.flatten(state, is_leaf=lambda one: isinstance(one, LinearWeight))
    arrays: Any = Rows(model.state_arrays(), state_array(jnp.int32, token=1))
    return Structure(graph, tree, arrays), tuple(leaves)
