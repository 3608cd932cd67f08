"""Step that scales or replaces states in one layer per lane, between model steps.

A lane without changes keeps its row, bit for bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int32

from hybridlm.steps.contract import STATE
from hybridlm.steps.structure import Rows, Structure
from ir_passes import Lane, LaneContract, Pool, SlotMap
from models.sharding.devices import MODEL, SINGLE_DEVICE, Devices
from models.state.rows import put_rows, take_rows
from models.state.state import Role, StateArray, name_dims

EDITED: tuple[Role, ...] = ("recurrent", "conv")
"""Roles of state arrays that can be changed."""

NOT_EDITED = Pool("unchanged")
"""Entry of unwritten arrays: model steps write rows in all pools of a group."""


def edit_contract(structure: Structure, slots: SlotMap) -> LaneContract:
    pools = jax.tree.map(lambda array: STATE if array.role in EDITED else NOT_EDITED, structure.arrays)
    groups = dict.fromkeys(pool.group for pool in jax.tree.leaves(pools))
    return LaneContract(inputs=(pools, replace(slots, groups=tuple(groups)), Lane()), outputs=(pools,))


class StateEdit(NamedTuple):
    """Changes of equally named arrays, in one layer of each lane.

    Attributes:
        layer: -1 for no change.
        unit: changed indices of the first dimension: heads, or taps.
        replaced: by the value; otherwise the factor multiplies the array.
    """

    layer: Int32[Array | np.ndarray, "lane"]
    unit: Bool[Array | np.ndarray, "lane unit"]
    replaced: Bool[Array | np.ndarray, "lane"]
    factor: Float32[Array | np.ndarray, "lane"]
    value: Float[Array | np.ndarray, "lane ..."]


def no_edits(lanes: int, types: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, StateEdit]:
    def none(kind: jax.ShapeDtypeStruct) -> StateEdit:
        unit, value = np.zeros((lanes, kind.shape[0]), bool), np.zeros((lanes, *kind.shape), kind.dtype)
        return StateEdit(np.full(lanes, -1, np.int32), unit, np.zeros(lanes, bool), np.ones(lanes, np.float32), value)

    return {name: none(kind) for name, kind in sorted(types.items())}


class StateSite(NamedTuple):
    """A state array that can be read and changed.

    Attributes:
        array: field in the layer's state.
        place: among a row's arrays.
        name: in contracts: "layers[3][0].recurrent".
    """

    layer: int
    array: str
    place: int
    name: str
    state: StateArray

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.state.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.state.of(1, 1, np.float32).shape[1:]

    @property
    def dtype(self) -> np.dtype:
        assert self.state.dtype is not None, f"{self.name}: the description leaves the dtype to the cache"
        return np.dtype(self.state.dtype)


def state_sites(structure: Structure) -> list[StateSite]:
    """Return a row's changeable arrays, without an MTP head's."""
    sites = []
    for place, (path, state) in enumerate(jax.tree_util.tree_leaves_with_path(structure.arrays.layers)):
        array, layer = getattr(path[-1], "name", ""), path[0].idx  # type: ignore[union-attr]  # a tuple of layers
        if state.role in EDITED:
            sites.append(StateSite(layer, array, place, f"layers{jax.tree_util.keystr(path)}", state))
    return sites


def types_in(structure: Structure, rows: Rows) -> dict[str, jax.ShapeDtypeStruct]:
    """Return types of a row's changeable arrays by name, over all devices."""
    leaves = jax.tree.leaves(rows.layers)
    types = {site.array: leaves[site.place] for site in state_sites(structure)}
    return {name: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for name, leaf in types.items()}


def edit_step(structure: Structure, devices: Devices = SINGLE_DEVICE) -> Callable[..., tuple[Rows]]:
    """Make `step(rows, slots, edits) -> (rows,)`, with a `StateEdit` per array name."""
    sites = state_sites(structure)

    def step(rows: Rows, slots: Int32[Array, "lane"], edits: dict[str, StateEdit]) -> tuple[Rows]:
        leaves, tree = jax.tree.flatten(rows.layers)
        for layer, array, place, _, state in sites:
            sharded = state.sharded_dim if devices.model > 1 else None
            edit = edits[array] if sharded is None else _own_part(edits[array], sharded.dim, leaves[place].shape)
            edited = _edited(take_rows(leaves[place], slots), edit, layer, state)
            leaves[place] = put_rows(leaves[place], slots, edited)
        return (Rows(jax.tree.unflatten(tree, leaves), rows.token),)

    return step


def _own_part(edit: StateEdit, dim: int, shape: tuple[int, ...]) -> StateEdit:
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
