"""Reader of saved parameters: the shards of each device, several files at a time."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hybridlm.checkpoint.adapters import BoundAdapter, build_merged
from hybridlm.checkpoint.cast import aligned_empty, convert
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
    stored = saved.packed.get(name)
    parts = {"": name} if stored is None else {role: f"{name}.{role}" for role in stored.roles}
    readings = {role: _Reading(saved, part) for role, part in parts.items()}
    if layout is not None:
        array, converted_from = layout.build(partial(_rows, readings)), []
    elif stored is None:
        dtype = readings[""].parameter.dtype
        array = build_merged(shards, weight, kind, adapters, saved.path, [name], readings[""].fill)
        converted_from = [] if dtype == kind else [dtype.name]
    else:
        layout = packed_layout(stored, Shards(saved.shapes[name]))
        assert layout is not None
        numbers, converted_from = np.asarray(layout.build(partial(_rows, readings)).numbers()), [stored.kind]

        def fill(window: ArraySlice, result: np.ndarray) -> None:
            convert(numbers[(*window, ...)], result, saved.path, [name])

        array = build_merged(shards, weight, kind, adapters, saved.path, [name], fill)
    for reading in readings.values():
        reading.verify()
    return array, converted_from, ()


def _rows(readings: "Mapping[str, _Reading]", window: ArraySlice) -> Iterator[Rows]:
    """Yield a window's rows of a packed parameter, with all columns."""
    arrays = {}
    for role, reading in readings.items():
        *sizes, columns = reading.parameter.shape
        rows = [place.indices(size)[:2] for place, size in zip(window, sizes, strict=False)]
        arrays[role] = aligned_empty((*(stop - start for start, stop in rows), columns), reading.parameter.dtype)
        reading.fill((*(slice(*row) for row in rows), slice(0, columns)), arrays[role])
    yield (slice(None),) * len(window), arrays


def saved_forms(
    saved: SavedDirectory, weights: Iterable[Weight], adapters: Sequence[BoundAdapter]
) -> dict[ParameterPath, PackedForm]:
    return {
        weight.path: saved.packed[dotted(weight.path)]
        for weight in weights
        if dotted(weight.path) in saved.packed and not any(adapter.touches(weight) for adapter in adapters)
    }


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

    def fill(self, window: ArraySlice, result: np.ndarray) -> None:
        """Write a window of the parameter into an array, converted to its dtype."""
        begin = [part.indices(size)[0] for part, size in zip(window, self.parameter.shape, strict=True)]
        for tile in self.parameter.tiles:
            self._copy(tile, begin, result)

    def _copy(self, tile: Tile, begin: list[int], piece: np.ndarray) -> None:
        low = [max(a, b) for a, b in zip(tile.start, begin, strict=True)]
        ends = ((a + m, b + n) for a, m, b, n in zip(tile.start, tile.shape, begin, piece.shape, strict=True))
        high = [min(pair) for pair in ends]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            return
        target = piece[(*(slice(a - b, c - b) for a, b, c in zip(low, begin, high, strict=True)), ...)]
        self._read[tile] += target.size
        if target.shape == tile.shape and target.flags.c_contiguous and target.dtype == self.parameter.dtype:
            self._fill(tile, target)
        else:
            window = tuple(slice(a - b, c - b) for a, b, c in zip(low, tile.start, high, strict=True))
            convert(self._mapped(tile)[window], target, self._saved.path, [self._name])

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
