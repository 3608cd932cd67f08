"""Reader of saved parameters: the shards of each device, several files at a time."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from hybridlm.checkpoint.adapters import BoundAdapter
from hybridlm.checkpoint.cast import aligned_empty, convert, converted
from hybridlm.checkpoint.packed.layout import PackedLayout, Rows, packed_layout
from hybridlm.checkpoint.saved.index import AGAIN, SavedDirectory, Tile, checksum
from hybridlm.checkpoint.shards import ParameterPath, Shards, dotted
from hybridlm.errors import CheckpointError
from hybridlm.quantised.packed import PackedForm
from models import ConfigError, Family, Weight
from models.weights.sources import ArraySlice


def read_saved(
    saved: SavedDirectory,
    weight: Weight,
    kind: np.dtype,
    shards: Shards,
    adapters: Sequence[BoundAdapter],
    layout: PackedLayout | None,
) -> tuple[Any, list[str], tuple[str, ...]]:
    """Read a parameter from its tiles.

    Complete tiles are compared with their checksums; no memory is shared with the files.

    Returns:
        The parameter, its stored dtype or kind of codes if converted, and no sentences.
    """
    name = dotted(weight.path)
    parts = saved.packed[name].parts if name in saved.packed else {"": name}
    readings = {role: _Reading(saved, part) for role, part in parts.items()}
    if layout is not None:
        array, converted_from = layout.build(partial(_rows, readings)), []
    else:
        if name in saved.packed:
            read, converted_from = _dequantised(saved, name, readings), [saved.packed[name].kind]
        else:
            stored = saved.parameters[name].dtype
            read, converted_from = readings[""].part, [] if stored == kind else [stored.name]

        def part(windows: Iterable[tuple[ArraySlice, ArraySlice]], shape: tuple[int, ...]) -> np.ndarray:
            pieces = list(windows)
            result = read(pieces, shape, np.dtype(np.float32) if adapters else kind)
            for adapter in adapters:
                adapter.merge(weight, pieces, result)
            return converted(result, kind, saved.path, [name]) if adapters else result

        array = jax.block_until_ready(shards.build(part))
    for reading in readings.values():
        reading.verify()
    return array, converted_from, ()


def _dequantised(
    saved: SavedDirectory, name: str, readings: "Mapping[str, _Reading]"
) -> Callable[[Iterable[tuple[ArraySlice, ArraySlice]], tuple[int, ...], np.dtype], np.ndarray]:
    layout = packed_layout(saved_form(saved, name), Shards(saved.shapes[name]))
    assert layout is not None
    numbers = np.asarray(layout.build(partial(_rows, readings)).numbers())

    def part(windows: Iterable[tuple[ArraySlice, ArraySlice]], shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
        result = aligned_empty(shape, kind)
        for source, target in windows:
            convert(numbers[(*source, ...)], result[(*target, ...)], saved.path, [name])
        return result

    return part


def _rows(readings: "Mapping[str, _Reading]", window: ArraySlice) -> Iterator[Rows]:
    """Yield a window's rows of a packed parameter, with all columns."""
    arrays = {}
    for role, reading in readings.items():
        *sizes, columns = reading.parameter.shape
        rows = tuple(slice(*place.indices(size)) for place, size in zip(window, sizes, strict=False))
        source = (*rows, slice(0, columns))
        shape = tuple(place.stop - place.start for place in source)
        target = tuple(slice(0, size) for size in shape)
        arrays[role] = reading.part([(source, target)], shape, reading.parameter.dtype)
    yield (slice(None),) * len(window), arrays


def saved_forms(
    saved: SavedDirectory, weights: Iterable[Weight], adapters: Sequence[BoundAdapter]
) -> dict[ParameterPath, PackedForm]:
    return {
        weight.path: saved_form(saved, dotted(weight.path))
        for weight in weights
        if dotted(weight.path) in saved.packed and not any(adapter.touches(weight) for adapter in adapters)
    }


def saved_form(saved: SavedDirectory, name: str) -> PackedForm:
    packed = saved.packed[name]
    scale = saved.parameters[packed.parts["scale"]]
    zero = saved.parameters[packed.parts["zero"]].dtype.name if "zero" in packed.parts else None
    return PackedForm(packed.kind, packed.inputs, scale.shape[-1], scale.dtype.name, "whole" in packed.parts, zero)


def require_parameters(saved: SavedDirectory, family: Family, weights: Iterable[Weight]) -> None:
    """Check names and shapes of saved parameters; raises CheckpointError with every fault."""
    faults = []
    if saved.family != family.name:
        faults.append(f"expected the family {family.name} of config.json, found one saved of {saved.family}")
    expected = {dotted(weight.path): tuple(weight.shape) for weight in weights}
    shapes = saved.shapes
    for name, shape in expected.items():
        if name not in shapes:
            faults.append(f"missing {name}: expected shape {shape}, found no parameter of that name")
        elif shapes[name] != shape:
            faults.append(f"mis-shaped {name}: expected {shape}, found {shapes[name]}")
    allowed = expected.keys() | head_parameters(saved, family)
    faults += [f"unexpected {name}" for name in shapes if name not in allowed]
    if faults:
        raise CheckpointError(saved.path, faults, AGAIN)


def head_parameters(saved: SavedDirectory, family: Family) -> set[str]:
    if family.with_head is None:
        return set()
    try:
        bare, complete = (
            {dotted(weight.path) for weight in variant.weights(variant.read_config(saved.config))}
            for variant in (family, family.with_head)
        )
    except ConfigError:
        # config.json describes no head of an implemented form.
        return set()
    return (complete - bare) & saved.shapes.keys()


class _Reading:
    def __init__(self, saved: SavedDirectory, name: str):
        self._saved, self._name, self.parameter = saved, name, saved.parameters[name]
        self._read = Counter[Tile]()
        self._verified: set[Tile] = set()

    def part(
        self, windows: Iterable[tuple[ArraySlice, ArraySlice]], shape: tuple[int, ...], kind: np.dtype
    ) -> np.ndarray:
        """Return an array of pieces of the parameter.

        Args:
            windows: place in the parameter and in the result, by piece.
        """
        stored = self.parameter.dtype
        result = aligned_empty(shape, stored)
        for source, target in windows:
            begin = [part.indices(size)[0] for part, size in zip(source, self.parameter.shape, strict=True)]
            piece = result[(*target, ...)]
            for tile in self.parameter.tiles:
                self._copy(tile, begin, piece)
        return result if kind == stored else converted(result, kind, self._saved.path, [self._name])

    def _copy(self, tile: Tile, begin: list[int], piece: np.ndarray) -> None:
        low = [max(a, b) for a, b in zip(tile.start, begin, strict=True)]
        ends = ((a + m, b + n) for a, m, b, n in zip(tile.start, tile.shape, begin, piece.shape, strict=True))
        high = [min(pair) for pair in ends]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            return
        target = piece[tuple(slice(a - b, c - b) for a, b, c in zip(low, begin, high, strict=True))]
        self._read[tile] += target.size
        if target.shape == tile.shape and target.flags.c_contiguous:
            self._fill(tile, target)
        else:
            window = tuple(slice(a - b, c - b) for a, b, c in zip(low, tile.start, high, strict=True))
            target[...] = self._mapped(tile)[window]

    def _fill(self, tile: Tile, target: np.ndarray) -> None:
        rest = target.reshape(-1).view(np.uint8).data
        with (self._saved.path / tile.file).open("rb", buffering=0) as file:
            while len(rest) and (count := file.readinto(rest)):
                rest = rest[count:]
        if len(rest):
            raise CheckpointError(self._saved.path / tile.file, "has become shorter while it was read")
        self._compare(tile, target)

    def _mapped(self, tile: Tile) -> np.ndarray:
        return np.memmap(self._saved.path / tile.file, self.parameter.dtype, "r", shape=tile.shape)

    def verify(self) -> None:
        for tile, count in self._read.items():
            if tile not in self._verified and count >= math.prod(tile.shape):
                self._compare(tile, self._mapped(tile))

    def _compare(self, tile: Tile, content: np.ndarray) -> None:
        if checksum(content) != tile.checksum:
            raise CheckpointError(
                self._saved.path / tile.file, f"is not what was saved, by its checksum (a part of {self._name})", AGAIN
            )
        self._verified.add(tile)
