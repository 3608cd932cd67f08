"""Writing a loaded model: `LM.save`."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import hybridlm
from hybridlm._engine import Engine
from hybridlm._replacing import new_path
from hybridlm.checkpoint import CheckpointError, dotted, fingerprint_of, open_checkpoint
from hybridlm.checkpoint.saving import Described, Piece, save_checkpoint
from models import Cut, DecoderConfig, Part, family_of


class Saved:
    """What `LM` inherits; it sets the attributes."""

    path: Path
    config: DecoderConfig
    params: dict[str, jax.Array]
    fingerprint: str
    _engine: Engine

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model as it is in memory, so that `hybridlm.load(directory)` opens it, faster than the original.

        The directory holds the weights in the layout and the dtype in which they are used (an Orbax checkpoint of plain
        arrays), config.json, generation_config.json, the tokenizer's files and the chat template as they were, and an
        index: arrays and JSON only. What is loaded from it gives the same bits, on any mesh. Of several processes all
        call this, with a directory that all of them see. See docs/saving.md.

        Args:
            directory: where it will be; nothing may be there.

        Raises:
            FileExistsError: something is there.
            ValueError: there are several processes, and no mesh.
            CheckpointError: the checkpoint that was loaded is not there any more, or has changed.
            OSError: it cannot be written; nothing is left of it.
        """
        if jax.process_count() > 1 and self._engine.placement.mesh is None:
            raise ValueError("save: each process has a model of its own; load it over a mesh of all their devices")
        target = new_path(Path(directory))
        source = open_checkpoint(self.path)
        dtype = self._engine.kind.dtype
        if fingerprint_of(source, dtype) != self.fingerprint:
            raise CheckpointError(self.path, "has changed since it was loaded; config.json and tokenizer are its")
        whole = family_of(source.config).abstract(self.config)
        cuts = {dotted(path): each for path, each in whole.cuts().items()}
        parameters = {name: saved_pieces(array, cuts.get(name, ())) for name, array in self.params.items()}
        model = Described(hybridlm.__version__, self.config.family, dtype, self.fingerprint)
        save_checkpoint(target, self.path, model, parameters)


def saved_pieces(array: jax.Array, cuts: Sequence[Cut]) -> tuple[tuple[int, ...], list[Piece]]:
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
    for parts in itertools.product(*(range(len(cut.parts)) for cut in cuts)):
        piece = list(zip(cuts, parts, devices, strict=True))
        at = [0] * array.ndim
        for cut, part, _ in piece:
            at[cut.dim] = sum(one.size for one in cut.parts[:part])
        pieces.append(Piece(tuple(at), _piece(array, shape, piece)))
    return tuple(shape), pieces


def _piece(array: jax.Array, shape: Sequence[int], piece: Sequence[tuple[Cut, int, int]]) -> jax.Array | np.ndarray:
    """One part of each cut dimension, of all devices.

    Args:
        array: the parameter.
        shape: of the whole parameter.
        piece: cuts, the number of the part, and the devices along the axis.
    """
    if all(len(cut.parts) == 1 and cut.parts[0].units % count == 0 for cut, _, count in piece):
        return array
    local: list[slice] = [slice(None)] * array.ndim
    size = list(shape)
    for cut, number, count in piece:
        # Every device has as many entries of a part, behind those of the parts before it.
        lengths = [one.stop - one.start for one in cut.indices(0, count)]
        local[cut.dim] = slice(sum(lengths[:number]), sum(lengths[: number + 1]))
        size[cut.dim] = cut.parts[number].size
    if not isinstance(array.sharding, NamedSharding):
        return np.asarray(array)[tuple(local)]
    sharding = _sharding(array.sharding, [(cut.dim, cut.axis, cut.parts[number]) for cut, number, _ in piece])
    parts = [jax.device_put(np.asarray(one.data)[tuple(local)], one.device) for one in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(tuple(size), sharding, parts)


def _sharding(given: NamedSharding, dimensions: Sequence[tuple[int, str, Part]]) -> NamedSharding:
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
