"""Pieces of a loaded model's parameters, as `LM.save` writes them."""

import itertools
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hybridlm.checkpoint.saved_write import SavedPiece
from models import Segment, ShardedDim


def saved_pieces(array: jax.Array, cuts: Sequence[ShardedDim]) -> tuple[tuple[int, ...], list[SavedPiece]]:
    """The shape of a whole parameter, and pieces that are each one run in every dimension that devices share.

    Such a piece can be cut for any number of devices into runs of its own. Of an array over a mesh each device gives
    its part of every piece.

    Args:
        array: the parameter as it is used.
        cuts: of the whole parameter, also those that the mesh has one device for.
    """
    mesh = array.sharding.mesh if isinstance(array.sharding, NamedSharding) else None
    devices = [1 if mesh is None else mesh.shape[cut.axis] for cut in cuts]
    shape = list(array.shape)
    for cut in cuts:
        shape[cut.dim] = cut.size
    pieces = []
    for parts in itertools.product(*(range(len(cut.segments)) for cut in cuts)):
        piece = list(zip(cuts, parts, devices, strict=True))
        at = [0] * array.ndim
        for cut, part, _ in piece:
            at[cut.dim] = sum(one.size for one in cut.segments[:part])
        pieces.append(SavedPiece(tuple(at), _piece(array, shape, piece)))
    return tuple(shape), pieces


def _piece(
    array: jax.Array, shape: Sequence[int], piece: Sequence[tuple[ShardedDim, int, int]]
) -> jax.Array | np.ndarray:
    """One part of each cut dimension, of all devices.

    Args:
        array: the parameter.
        shape: of the whole parameter.
        piece: cuts, the number of the part, and the devices along the axis.
    """
    if all(len(cut.segments) == 1 and cut.segments[0].units % count == 0 for cut, _, count in piece):
        return array
    local: list[slice] = [slice(None)] * array.ndim
    size = list(shape)
    for cut, number, count in piece:
        # Every device has as many entries of a part, behind those of the parts before it.
        lengths = [one.stop - one.start for one in cut.slices(0, count)]
        local[cut.dim] = slice(sum(lengths[:number]), sum(lengths[: number + 1]))
        size[cut.dim] = cut.segments[number].size
    if not isinstance(array.sharding, NamedSharding):
        return np.asarray(array)[tuple(local)]
    sharding = _sharding(array.sharding, [(cut.dim, cut.axis, cut.segments[number]) for cut, number, _ in piece])
    parts = [jax.device_put(np.asarray(one.data)[tuple(local)], one.device) for one in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(tuple(size), sharding, parts)


def _sharding(given: NamedSharding, dimensions: Sequence[tuple[int, str, Segment]]) -> NamedSharding:
    """How a piece lies: as the parameter does, but where neighbours have the same unit only units are told apart."""
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
