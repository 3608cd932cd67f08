"""The step that changes states between steps of the model: in one layer of each lane, by factors or by other values.

It reads and writes rows alone. A lane that changes nothing keeps its rows, bit for bit.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int32

from hybridlm.steps.contract import STATE
from hybridlm.steps.structure import Rows, Structure
from ir_passes import Lane, LaneContract
from models.sharding.devices import MODEL, SINGLE_DEVICE, Devices
from models.state.state import Role, StateArray, name_dims

EDITED: tuple[Role, ...] = ("recurrent", "conv")
"""Roles of the arrays of a layer's state that can be changed."""

EDIT_CONTRACT = LaneContract(inputs=(STATE, Lane()), outputs=(STATE,))


class StateEdit(NamedTuple):
    """Changes of the arrays of one name, in one layer of each lane.

    Attributes:
        layer: number of the layer; -1 for no change.
        unit: indices along the first dimension of the array that are changed: heads, or taps of a convolution.
        replaced: whether the value replaces the array; otherwise the array is multiplied by the factor.
        factor: the factor.
        value: the value.
    """

    layer: Int32[Array | np.ndarray, "lane"]
    unit: Bool[Array | np.ndarray, "lane unit"]
    replaced: Bool[Array | np.ndarray, "lane"]
    factor: Float32[Array | np.ndarray, "lane"]
    value: Float[Array | np.ndarray, "lane ..."]


class StateType(NamedTuple):
    """Shape, dtype and role of an array of a state, of one sequence."""

    shape: tuple[int, ...]
    dtype: np.dtype
    role: Role = "recurrent"


def no_edits(lanes: int, types: Mapping[str, StateType]) -> dict[str, StateEdit]:
    """Return an operand that changes nothing; host arrays, given the type of the arrays of each name."""

    def none(kind: StateType) -> StateEdit:
        unit, value = np.zeros((lanes, kind.shape[0]), bool), np.zeros((lanes, *kind.shape), kind.dtype)
        return StateEdit(np.full(lanes, -1, np.int32), unit, np.zeros(lanes, bool), np.ones(lanes, np.float32), value)

    return {name: none(kind) for name, kind in sorted(types.items())}


class EditedArray(NamedTuple):
    """An array of a row that can be changed.

    Attributes:
        name: of its field in the layer's state.
        layer: number of its layer.
        place: its index among the arrays of a row.
        path: its name in contracts, without the argument: "layers[3][0].recurrent".
        array: its description.
    """

    name: str
    layer: int
    place: int
    path: str
    array: StateArray


def edited_arrays(structure: Structure) -> list[EditedArray]:
    """Return the arrays of a row that can be changed; a multi-token-prediction head has none."""
    found = []
    for place, (path, array) in enumerate(jax.tree_util.tree_leaves_with_path(structure.arrays.layers)):
        name, layer = getattr(path[-1], "name", ""), path[0].idx  # type: ignore[union-attr]  # a tuple of layers
        if array.role in EDITED:
            found.append(EditedArray(name, layer, place, f"layers{jax.tree_util.keystr(path)}", array))
    return found


def types_in(structure: Structure, rows: Rows) -> dict[str, StateType]:
    """Return the type of the editable arrays of each name in rows."""
    leaves = jax.tree.leaves(rows.layers)
    types = {edited.name: leaves[edited.place] for edited in edited_arrays(structure)}
    return {name: StateType(leaf.shape[1:], jnp.dtype(leaf.dtype)) for name, leaf in types.items()}


def edit_step(structure: Structure, devices: Devices = SINGLE_DEVICE) -> Callable[..., tuple[Rows]]:
    """`step(rows, edits) -> (rows,)`; `edits` is a dict with a `StateEdit` for each name of arrays that there are.

    Args:
        structure: structure of the model.
        devices: that share the model. Units and values are those of all of them, one after another.
    """
    arrays = edited_arrays(structure)

    def step(rows: Rows, edits: dict[str, StateEdit]) -> tuple[Rows]:
        leaves, tree = jax.tree.flatten(rows.layers)
        for name, layer, place, _, array in arrays:
            sharded = array.sharded_dim if devices.model > 1 else None
            edit = edits[name] if sharded is None else _own_part(edits[name], sharded.dim, leaves[place].shape)
            leaves[place] = _edited(leaves[place], edit, layer, array)
        return (Rows(jax.tree.unflatten(tree, leaves), rows.token),)

    return step


def _own_part(edit: StateEdit, dim: int, shape: tuple[int, ...]) -> StateEdit:
    """Return the change of this device's part of a dimension of the array."""
    first = lax.axis_index(MODEL) * shape[dim]

    def own(x: Any) -> Array:
        return lax.dynamic_slice_in_dim(jnp.asarray(x), first, shape[dim], dim)

    return edit._replace(value=own(edit.value), unit=own(edit.unit) if dim == 1 else edit.unit)


def _edited(state: Any, edit: StateEdit, layer: int, array: StateArray) -> Array:
    rest = (1,) * (state.ndim - 2)
    hit = ((jnp.asarray(edit.layer) == layer)[:, None] & jnp.asarray(edit.unit)).reshape((*state.shape[:2], *rest))
    value = name_dims(jnp.asarray(edit.value), None, *(name for name, _ in array.sizes))
    factor = jnp.asarray(edit.factor).reshape((-1, 1, *rest)).astype(state.dtype)
    replaced = jnp.asarray(edit.replaced).reshape((-1, 1, *rest))
    return jnp.where(hit, jnp.where(replaced, value, factor * state), state)
