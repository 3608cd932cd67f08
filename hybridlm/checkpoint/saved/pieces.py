"""Pieces of a loaded model's parameters that `LM.save` writes as arrays."""

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
    """Return every array of the parameters by name with its sharded dimensions, and what the index says of packed ones.

    Args:
        params: by name.
        sharded_dims: of whole parameters, also along axes of one device.

    Raises:
        ValueError: a parameter of another form.
    """
    arrays: dict[str, tuple[jax.Array, Sequence[ShardedDim]]] = {}
    packed: dict[str, dict[str, Any]] = {}
    for name, one in params.items():
        dims = sharded_dims.get(name, ())
        if isinstance(one, QuantisedWeight):
            found = {
                role: (part, _of_role(one, role, dims)) for role in ROLES if (part := getattr(one, role)) is not None
            }
            across = [each for each in found["codes"][1] if each.dim == one.ndim - 1]
            inputs = next((each.size for each in dims if each.dim == one.ndim - 1 and across), one.inputs)
            packed[name] = {"kind": one.kind, "inputs": inputs}
            arrays |= {f"{name}.{role}": each for role, each in found.items()}
        elif isinstance(one, LinearWeight):
            raise ValueError(f"save: {name} is a {type(one).__name__}, expected an array or a quantised weight")
        else:
            arrays[name] = (one, dims)
    return arrays, packed


def _of_role(weight: QuantisedWeight, role: str, dims: Sequence[ShardedDim]) -> list[ShardedDim]:
    """Return the sharded dimensions of an array of a packed weight; entries of rows only where devices share them."""
    sharding = weight.codes.sharding
    found = []
    for one in dims:
        devices = sharding.mesh.shape[one.axis] if isinstance(sharding, NamedSharding) else 1
        if one.dim != weight.ndim - 1:
            found.append(one)
        elif devices > 1 and role != "whole":
            found.append(narrowed(one, weight.inputs // getattr(weight, role).shape[-1], devices))
    return found


def saved_pieces(array: jax.Array, sharded_dims: Sequence[ShardedDim]) -> tuple[tuple[int, ...], list[SavedPiece]]:
    """Return the shape of a whole parameter, and its pieces: one segment of every sharded dimension each.

    A piece can be sharded over any number of devices. Each device of a mesh contributes its shard of every piece.

    Args:
        array: the parameter as the model holds it.
        sharded_dims: of the whole parameter, also along axes of one device.
    """
    mesh = array.sharding.mesh if isinstance(array.sharding, NamedSharding) else None
    devices = [1 if mesh is None else mesh.shape[sharded.axis] for sharded in sharded_dims]
    shape = list(array.shape)
    for sharded in sharded_dims:
        shape[sharded.dim] = sharded.size
    pieces = []
    for parts in itertools.product(*(range(len(sharded.segments)) for sharded in sharded_dims)):
        piece = list(zip(sharded_dims, parts, devices, strict=True))
        at = [0] * array.ndim
        for sharded, part, _ in piece:
            at[sharded.dim] = sum(one.size for one in sharded.segments[:part])
        pieces.append(SavedPiece(tuple(at), _piece(array, shape, piece)))
    return tuple(shape), pieces


def _piece(
    array: jax.Array, shape: Sequence[int], piece: Sequence[tuple[ShardedDim, int, int]]
) -> jax.Array | np.ndarray:
    """Return one segment of each sharded dimension, over all devices.

    Args:
        array: the parameter.
        shape: of the whole parameter.
        piece: sharded dimension, number of the segment, and devices along the axis.
    """
    if all(len(sharded.segments) == 1 and sharded.segments[0].units % count == 0 for sharded, _, count in piece):
        return array
    local: list[slice] = [slice(None)] * array.ndim
    size = list(shape)
    for sharded, number, count in piece:
        # Every device has the same number of entries of a segment, behind those of the segments before.
        lengths = [one.stop - one.start for one in sharded.slices(0, count)]
        local[sharded.dim] = slice(sum(lengths[:number]), sum(lengths[: number + 1]))
        size[sharded.dim] = sharded.segments[number].size
    if not isinstance(array.sharding, NamedSharding):
        return np.asarray(array)[tuple(local)]
    sharding = _sharding(
        array.sharding, [(sharded.dim, sharded.axis, sharded.segments[number]) for sharded, number, _ in piece]
    )
    parts = [jax.device_put(np.asarray(one.data)[tuple(local)], one.device) for one in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(tuple(size), sharding, parts)


def _sharding(given: NamedSharding, dimensions: Sequence[tuple[int, str, Segment]]) -> NamedSharding:
    """Return the sharding of a piece: the parameter's, with devices that hold equal units on an axis of copies."""
    mesh = given.mesh
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
