"""Pieces of parameters for the arrays of `LM.save`."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hybridlm.checkpoint.packed.layout import narrowed
from hybridlm.checkpoint.saved.index import ROLES
from hybridlm.checkpoint.saved.write import SavedPiece
from models import Segment, ShardedDim
from models.ops.linear import LinearWeight
from models.ops.quantised_weight import QuantisedWeight


def unpacked(
    params: Mapping[str, Any], sharded_dims: Mapping[str, Sequence[ShardedDim]]
) -> tuple[dict[str, tuple[jax.Array, Sequence[ShardedDim]]], dict[str, dict[str, Any]]]:
    """Return all arrays with their sharded dimensions, and the index of packed parameters.

    Args:
        sharded_dims: of whole parameters, also along axes of one device.

    Raises:
        ValueError: a parameter of another form.
    """
    arrays: dict[str, tuple[jax.Array, Sequence[ShardedDim]]] = {}
    packed: dict[str, dict[str, Any]] = {}
    for name, weight in params.items():
        dims = sharded_dims.get(name, ())
        if isinstance(weight, QuantisedWeight):
            parts = {role: part for role in ROLES if (part := getattr(weight, role)) is not None}
            dims_by_role = {role: _dims_of_role(weight, role, dims) for role in parts}
            last = weight.ndim - 1
            across = any(sharded.dim == last for sharded in dims_by_role["codes"])
            inputs = next((sharded.size for sharded in dims if sharded.dim == last and across), weight.inputs)
            packed[name] = {"kind": weight.kind, "inputs": inputs}
            arrays |= {f"{name}.{role}": (part, dims_by_role[role]) for role, part in parts.items()}
        elif isinstance(weight, LinearWeight):
            raise ValueError(f"save: {name} is a {type(weight).__name__}, expected an array or a quantised weight")
        else:
            arrays[name] = (weight, dims)
    return arrays, packed


def _dims_of_role(weight: QuantisedWeight, role: str, dims: Sequence[ShardedDim]) -> list[ShardedDim]:
    sharding = weight.codes.sharding
    role_dims = []
    for sharded in dims:
        devices = sharding.mesh.shape[sharded.axis] if isinstance(sharding, NamedSharding) else 1
        if sharded.dim != weight.ndim - 1:
            role_dims.append(sharded)
        elif devices > 1 and role != "whole":
            role_dims.append(narrowed(sharded, weight.inputs // getattr(weight, role).shape[-1], devices))
    return role_dims


def saved_pieces(array: jax.Array, sharded_dims: Sequence[ShardedDim]) -> tuple[tuple[int, ...], list[SavedPiece]]:
    """Return a whole parameter's shape and its pieces, one segment per sharded dimension.

    Each device contributes its shard.
    """
    mesh = array.sharding.mesh if isinstance(array.sharding, NamedSharding) else None
    devices = [1 if mesh is None else mesh.shape[sharded.axis] for sharded in sharded_dims]
    shape = list(array.shape)
    for sharded in sharded_dims:
        shape[sharded.dim] = sharded.size
    pieces = []
    for parts in itertools.product(*(range(len(sharded.segments)) for sharded in sharded_dims)):
        piece = list(zip(sharded_dims, parts, devices, strict=True))
        start = [0] * array.ndim
        for sharded, part, _ in piece:
            start[sharded.dim] = sum(segment.size for segment in sharded.segments[:part])
        pieces.append((tuple(start), _piece(array, shape, piece)))
    return tuple(shape), pieces


def _piece(
    array: jax.Array, shape: Sequence[int], piece: Sequence[tuple[ShardedDim, int, int]]
) -> jax.Array | np.ndarray:
    if all(len(sharded.segments) == 1 and sharded.segments[0].units % count == 0 for sharded, _, count in piece):
        return array
    local: list[slice] = [slice(None)] * array.ndim
    size = list(shape)
    for sharded, number, count in piece:
        # Every device has as many entries of a segment, after earlier segments.
        lengths = [part.stop - part.start for part in sharded.slices(0, count)]
        local[sharded.dim] = slice(sum(lengths[:number]), sum(lengths[: number + 1]))
        size[sharded.dim] = sharded.segments[number].size
    if not isinstance(array.sharding, NamedSharding):
        return np.asarray(array)[tuple(local)]
    sharding = _sharding(
        array.sharding, [(sharded.dim, sharded.axis, sharded.segments[number]) for sharded, number, _ in piece]
    )
    shards = array.addressable_shards
    parts = [jax.device_put(np.asarray(shard.data)[tuple(local)], shard.device) for shard in shards]
    return jax.make_array_from_single_device_arrays(tuple(size), sharding, parts)


def _sharding(sharding: NamedSharding, dimensions: Sequence[tuple[int, str, Segment]]) -> NamedSharding:
    """Return a piece's sharding, with an axis for devices with copies."""
    mesh = sharding.mesh
    assert isinstance(mesh, Mesh)
    names: list[str] = []
    sizes: list[int] = []
    units = {axis: min(part.units, mesh.shape[axis]) for _, axis, part in dimensions}
    for axis, count in mesh.shape.items():
        different = units.get(axis, count)
        names += [axis, f"{axis} copies"]
        sizes += [different, count // different]
    spec: list[str | None] = [None] * (1 + max(dim for dim, _, _ in dimensions))
    for dim, axis, _ in dimensions:
        spec[dim] = axis
    return NamedSharding(Mesh(mesh.devices.reshape(sizes), names), PartitionSpec(*spec))
