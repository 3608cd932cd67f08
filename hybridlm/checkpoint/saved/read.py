"""Reader of the parameters of a checkpoint that `LM.save` wrote: each device's shards, several files at a time."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from hybridlm.checkpoint.adapters import BoundAdapter
from hybridlm.checkpoint.cast import aligned_empty, converted
from hybridlm.checkpoint.packed.layout import Rows, packed_layout
from hybridlm.checkpoint.read_settings import ReadSettings
from hybridlm.checkpoint.report import (
    LoadedWeights,
    ParameterPath,
    ReadParameter,
    dotted,
    gather,
    kept_dtypes,
)
from hybridlm.checkpoint.saved.index import AGAIN, SavedDirectory, Tile, checksum
from hybridlm.checkpoint.shards import Shards, shards_of
from hybridlm.errors import CheckpointError
from hybridlm.quantised.packed import PackedForm
from models import Family, Weight
from models.weights.sources import ArraySlice

READERS = 4
"""Parameters that are read at the same time."""


def read_saved(saved: SavedDirectory, family: Family, config: Any, settings: ReadSettings) -> LoadedWeights:
    """Read the parameters of a model; see `load_parameters`.

    Beside the result a few parameters are in memory at a time. The arrays share no memory with the files. A tile that
    is read whole is compared with its checksum.
    """
    weights, dtype, packed = family.weights(config), settings.dtype, settings.packed
    _require_parameters(saved, family, weights)
    weights = [weight for weight in weights if settings.reads(weight)]
    kept = kept_dtypes(weights, dtype)

    def read(weight: Weight, kind: np.dtype) -> ReadParameter:
        name, own, merged = dotted(weight.path), shards_of(weight, settings.shards), settings.adapters_of(weight)
        if name in saved.packed:
            parts = _Parts(saved, name)
            if packed is not None and weight.path in packed.layouts:
                kept = packed.layouts[weight.path].build(parts.rows, dtype, packed.products)
                parts.verify()
                return ReadParameter(kept, [])
            # Plain numbers of another form than the one that is saved.
            form = saved_form(saved, name)
            whole = packed_layout(form, Shards(saved.shapes[name]))
            assert whole is not None
            numbers = np.asarray(whole.build(parts.rows, "float32", "whole").numbers())
            parts.verify()

            def dequantised(windows: Iterable[tuple[ArraySlice, ArraySlice]], shape: tuple[int, ...]) -> np.ndarray:
                pieces, result = list(windows), np.empty(shape, np.float32)
                for source, target in pieces:
                    result[(*target, ...)] = numbers[(*source, ...)]
                for adapter in merged:
                    adapter.merge(weight, pieces, result)
                return converted(result, kind, saved.path, [name])

            return ReadParameter(jax.block_until_ready(own.build(dequantised)), [form.kind])
        reading, stored = _Reading(saved, name), saved.parameters[name].dtype

        def part(windows: Iterable[tuple[ArraySlice, ArraySlice]], shape: tuple[int, ...]) -> np.ndarray:
            if not merged:
                return reading.part(windows, shape, kind)
            pieces = list(windows)
            result = np.array(reading.part(pieces, shape, np.dtype(np.float32)))
            for adapter in merged:
                adapter.merge(weight, pieces, result)
            return converted(result, kind, saved.path, [name])

        array = jax.block_until_ready(own.build(part))
        reading.verify()
        return ReadParameter(array, [] if stored == kind else [stored.name])

    with ThreadPoolExecutor(READERS) as readers:
        return gather(saved.path, weights, kept, readers.map(read, weights, kept), settings.progress)


def saved_forms(
    saved: SavedDirectory, weights: Iterable[Weight], adapters: Sequence[BoundAdapter]
) -> dict[ParameterPath, PackedForm]:
    """Return the form of each parameter that is saved packed; see `packed_forms`."""
    return {
        weight.path: saved_form(saved, dotted(weight.path))
        for weight in weights
        if dotted(weight.path) in saved.packed and not any(adapter.touches(weight) for adapter in adapters)
    }


def saved_form(saved: SavedDirectory, name: str) -> PackedForm:
    """Return the form of a parameter that is saved packed."""
    one = saved.packed[name]
    scale = saved.parameters[one.parts["scale"]]
    zero = saved.parameters[one.parts["zero"]].dtype.name if "zero" in one.parts else None
    return PackedForm(one.kind, one.inputs, scale.shape[-1], scale.dtype.name, "whole" in one.parts, zero)


class _Parts:
    """The arrays of a packed parameter while this process reads its shards."""

    def __init__(self, saved: SavedDirectory, name: str):
        self._saved, self._parts = saved, saved.packed[name].parts
        self._readings = {role: _Reading(saved, part) for role, part in self._parts.items()}

    def rows(self, window: ArraySlice) -> Iterator[Rows]:
        """Yield the rows of a window of the parameter, with all columns of each array."""
        found = {}
        for role, part in self._parts.items():
            parameter = self._saved.parameters[part]
            rows = tuple(slice(*one.indices(size)) for one, size in zip(window, parameter.shape[:-1], strict=False))
            whole = (*rows, slice(0, parameter.shape[-1]))
            shape = tuple(one.stop - one.start for one in whole)
            every = tuple(slice(0, size) for size in shape)
            found[role] = self._readings[role].part([(whole, every)], shape, parameter.dtype)
        yield (slice(None),) * len(window), found

    def verify(self) -> None:
        """Compare tiles with their checksums, as `_Reading.verify` does."""
        for reading in self._readings.values():
            reading.verify()


def _require_parameters(saved: SavedDirectory, family: Family, weights: Iterable[Weight]) -> None:
    faults = []
    if saved.family != family.name:
        faults.append(f"expected the family {family.name}, as config.json says, found one saved of {saved.family}")
    expected = {dotted(weight.path): tuple(weight.shape) for weight in weights}
    found = saved.shapes
    for name, shape in expected.items():
        if name not in found:
            faults.append(f"missing {name}: expected shape {shape}, found no parameter of that name")
        elif found[name] != shape:
            faults.append(f"mis-shaped {name}: expected {shape}, found {found[name]}")
    allowed = expected.keys() | head_parameters(saved, family)
    faults += [f"unexpected {name}" for name in found if name not in allowed]
    if faults:
        raise CheckpointError(saved.path, faults, AGAIN)


def head_parameters(saved: SavedDirectory, family: Family) -> set[str]:
    """Return the names of the saved parameters that belong to the multi-token-prediction head."""
    if family.with_head is None:
        return set()
    bare, whole = (
        {dotted(weight.path) for weight in one.weights(one.read_config(saved.config))}
        for one in (family, family.with_head)
    )
    return (whole - bare) & saved.shapes.keys()


class _Reading:
    """One parameter while this process reads its shards."""

    def __init__(self, saved: SavedDirectory, name: str):
        self._saved, self._name, self._parameter = saved, name, saved.parameters[name]
        self._read = Counter[Tile]()
        self._verified: set[Tile] = set()

    def part(
        self, windows: Iterable[tuple[ArraySlice, ArraySlice]], shape: tuple[int, ...], kind: np.dtype
    ) -> np.ndarray:
        """Return an array of pieces of the parameter.

        Args:
            windows: for each piece its place in the parameter and its place in the result.
            shape, kind: of the result.
        """
        stored = self._parameter.dtype
        result = aligned_empty(shape, stored)
        for source, target in windows:
            begin = [one.indices(size)[0] for one, size in zip(source, self._parameter.shape, strict=True)]
            piece = result[(*target, ...)]
            for tile in self._parameter.tiles:
                self._copy(tile, begin, piece)
        return result if kind == stored else converted(result, kind, self._saved.path, [self._name])

    def _copy(self, tile: Tile, begin: list[int], piece: np.ndarray) -> None:
        """Copy the intersection of a tile and a piece; the piece begins at `begin` in the parameter."""
        low = [max(a, b) for a, b in zip(tile.at, begin, strict=True)]
        ends = ((a + m, b + n) for a, m, b, n in zip(tile.at, tile.shape, begin, piece.shape, strict=True))
        high = [min(pair) for pair in ends]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            return
        target = piece[tuple(slice(a - b, c - b) for a, b, c in zip(low, begin, high, strict=True))]
        self._read[tile] += target.size
        if target.shape == tile.shape and target.flags.c_contiguous:
            self._fill(tile, target)
        else:
            inside = tuple(slice(a - b, c - b) for a, b, c in zip(low, tile.at, high, strict=True))
            target[...] = self._mapped(tile)[inside]

    def _fill(self, tile: Tile, target: np.ndarray) -> None:
        rest = target.reshape(-1).view(np.uint8).data
        with (self._saved.path / tile.file).open("rb", buffering=0) as file:
            while len(rest) and (count := file.readinto(rest)):
                rest = rest[count:]
        if len(rest):
            raise CheckpointError(self._saved.path / tile.file, "has become shorter while it was read")
        self._compare(tile, target)

    def _mapped(self, tile: Tile) -> np.ndarray:
        return np.memmap(self._saved.path / tile.file, self._parameter.dtype, "r", shape=tile.shape)

    def verify(self) -> None:
        """Compare the tiles that were read completely, but in pieces, with their checksums."""
        for tile, count in self._read.items():
            if tile not in self._verified and count >= math.prod(tile.shape):
                self._compare(tile, self._mapped(tile))

    def _compare(self, tile: Tile, content: np.ndarray) -> None:
        if checksum(content) != tile.checksum:
            raise CheckpointError(
                self._saved.path / tile.file,
                f"is not what was saved, by its checksum (a part of {self._name})",
                AGAIN,
            )
        self._verified.add(tile)
