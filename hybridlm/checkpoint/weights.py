"""Reader of parameters: from tensors of a checkpoint or from tiles of a saved model."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hybridlm.checkpoint.adapters import BoundAdapter, build_merged
from hybridlm.checkpoint.cast import DTYPES, convert
from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.header_check import ChosenSource, check
from hybridlm.checkpoint.model import OpenModel
from hybridlm.checkpoint.packed.layout import Packed, PackedLayout
from hybridlm.checkpoint.packed.parameters import PackedParameters, laid_out, load_packed, packed_forms
from hybridlm.checkpoint.safetensors import READABLE
from hybridlm.checkpoint.saved.index import SavedDirectory
from hybridlm.checkpoint.saved.read import read_saved, require_parameters, saved_forms
from hybridlm.checkpoint.shards import ALL_WHOLE, ParameterPath, Shards, dotted, shards_of
from hybridlm.quantised.health import lost_rows
from models import Weight
from models.weights.sources import ArraySlice

Progress = Callable[[int, int, str], None]
READERS = 4


@dataclass(frozen=True, eq=False)
class LoadedWeights:
    """Parameters of a checkpoint, with a report.

    Attributes:
        arrays: parameters by path.
        parameters, bytes: size of the arrays.
        skipped: number of unread tensors by pattern.
        converted: number of converted parameters by stored dtype or scheme, except those always in float32.
    """

    arrays: dict[ParameterPath, Any]
    path: Path
    parameters: int
    bytes: int
    skipped: Mapping[str, int]
    converted: Mapping[str, int]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        lines = [f"{self.path}: {note}" for note in self.notes]
        if self.skipped:
            patterns = ", ".join(f"{count} of {pattern}" for pattern, count in self.skipped.items())
            lines.append(f"{self.path}: {sum(self.skipped.values())} tensors are not used by this model: {patterns}")
        return lines

    def conversions(self, dtype: str) -> list[str]:
        """Return a sentence per stored dtype."""
        return [
            f"{self.path}: {count} of the parameters are stored as {stored} and kept as {dtype}, as most are stored; "
            f'dtype="float32" keeps every bit'
            for stored, count in self.converted.items()
        ]


def load_parameters(
    model: OpenModel,
    dtype: str,
    progress: Progress | None = None,
    shards: Mapping[ParameterPath, Shards] = ALL_WHOLE,
    adapters: Sequence[BoundAdapter] = (),
    only: Collection[ParameterPath] | None = None,
    packed: PackedParameters | None = None,
) -> LoadedWeights:
    """Read every parameter of a model.

    Args:
        dtype: "bfloat16", "float16" or "float32"; parameters marked `float32` stay float32.
        progress: (bytes done, all bytes, path), before the first parameter and after each.
        adapters: merged in float32, in order, and rounded once.
        only: None for all paths.
        packed: from `packed_parameters` with the same arguments.

    Raises:
        CheckpointError: all faults of the headers; a changed tile, or values that `dtype` cannot hold.
    """
    checkpoint, family, config = model
    packed = PackedParameters() if packed is None else packed
    skipped, notes = MappingProxyType({}), ()
    if isinstance(checkpoint, SavedDirectory):
        weights = family.weights(config)
        require_parameters(checkpoint, family, weights)
        sources = {weight.path: partial(read_saved, checkpoint, weight) for weight in weights}
    else:
        plan = packed.plan or check(checkpoint, family, config)
        weights, skipped = [choice.weight for choice in plan.choices], plan.skipped
        notes = (*checkpoint.notes, *plan.notes)
        sources = {choice.weight.path: partial(_read_tensors, checkpoint, choice) for choice in plan.choices}
    assert len(sources) == len(weights), f"{checkpoint.path}: two parameters have one path"
    if dtype not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    weights = [weight for weight in weights if only is None or weight.path in only]
    kinds = [DTYPES["float32" if weight.float32 else dtype] for weight in weights]
    sizes = [math.prod(weight.shape) * kind.itemsize for weight, kind in zip(weights, kinds, strict=True)]

    def read(weight: Weight, kind: np.dtype) -> tuple[Any, list[str], tuple[str, ...]]:
        merged = [adapter for adapter in adapters if adapter.touches(weight)]
        return sources[weight.path](kind, shards_of(weight, shards), merged, packed.layouts.get(weight.path))

    arrays: dict[ParameterPath, Any] = {}
    conversions, lost, bytes_read = Counter[str](), dict[str, None](), 0
    if progress is not None:
        progress(0, sum(sizes), "")
    with ThreadPoolExecutor(READERS) as readers:
        in_order = readers.map if isinstance(checkpoint, SavedDirectory) else map
        for weight, size, (array, stored, sentences) in zip(
            weights, sizes, in_order(read, weights, kinds), strict=True
        ):
            arrays[weight.path] = array
            if not weight.float32:
                conversions.update(stored)
            lost.update(dict.fromkeys(sentences))
            bytes_read += size
            if progress is not None:
                progress(bytes_read, sum(sizes), dotted(weight.path))
    count, size = sum(math.prod(weight.shape) for weight in weights), sum(array.nbytes for array in arrays.values())
    return LoadedWeights(arrays, checkpoint.path, count, size, skipped, conversions, (*notes, *lost))


def packed_parameters(
    model: OpenModel,
    dtype: str,
    products: Packed,
    adapters: Sequence[BoundAdapter] = (),
    shards: Mapping[ParameterPath, Shards] = ALL_WHOLE,
) -> PackedParameters:
    """Return parameters that can stay packed, from headers; raises CheckpointError."""
    checkpoint, family, config = model
    plan = None
    if isinstance(checkpoint, SavedDirectory):
        forms = saved_forms(checkpoint, family.weights(config), adapters)
    else:
        plan = check(checkpoint, family, config)
        forms = packed_forms(checkpoint, plan, adapters)
    layouts = {weight.path: shards_of(weight, shards) for weight in family.weights(config)}
    return laid_out(forms, layouts, dtype, products, plan)


def _read_tensors(
    checkpoint: CheckpointDirectory,
    choice: ChosenSource,
    kind: np.dtype,
    shards: Shards,
    adapters: Sequence[BoundAdapter],
    layout: PackedLayout | None,
) -> tuple[Any, list[str], tuple[str, ...]]:
    """Read a parameter from its tensors.

    Only parts for this process's devices are read. Besides the result, one tensor is in memory (its pages can be
    dropped), and on an accelerator one shard.

    Returns:
        The parameter, stored dtypes if converted, and a sentence per tensor with lost rows.
    """
    weight, source, names = choice.weight, choice.source, choice.names
    lost, stored = dict[str, None](), {checkpoint.stored_as(name) for name in names.values()}

    def fill(window: ArraySlice, result: np.ndarray) -> None:
        filled = 0
        for piece in choice.pieces(checkpoint, window):
            tensor = checkpoint.read(names[piece.name])
            if names[piece.name] in checkpoint.grouped.quantised and (zero := lost_rows(tensor)):
                lost[f"{names[piece.name]}: {zero} of its rows are zero: it was quantised too coarsely"] = None
            values, into = source.take(tensor, piece.taken), result[(*piece.place, ...)]
            assert values.shape == into.shape, f"{weight.path}: {piece} has {values.shape}, expected {into.shape}"
            convert(values, into, checkpoint.path, [names[piece.name]])
            filled += into.size
        assert filled == result.size, f"{weight.path}: the tensors made {filled} entries of {result.size}"

    if layout is None:
        array = build_merged(shards, weight, kind, adapters, checkpoint.path, names.values(), fill)
        converted_from = [dtype for dtype in stored if READABLE.get(dtype) != kind]
    else:
        (array, sentences), converted_from = load_packed(checkpoint, choice, layout), []
        lost = dict.fromkeys(sentences)
    for name in names.values():
        checkpoint.release(name)
    return array, converted_from, tuple(lost)
