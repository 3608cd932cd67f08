"""Weight loading: parameters from a Hugging Face checkpoint, headers checked first, then tensors read one by one."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from hybridlm.checkpoint.adapters import BoundAdapter
from hybridlm.checkpoint.cast import aligned_empty, convert, converted
from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.header_check import ChosenSource, check
from hybridlm.checkpoint.packed.parameters import load_packed
from hybridlm.checkpoint.read_settings import ReadSettings
from hybridlm.checkpoint.report import LoadedWeights, ReadParameter, gather, kept_dtypes
from hybridlm.checkpoint.safetensors import READABLE
from hybridlm.checkpoint.shards import Shards, shards_of
from hybridlm.quantised.health import lost_rows
from models import Family
from models.weights.sources import ArraySlice


def read_tensors(checkpoint: CheckpointDirectory, family: Family, config: Any, settings: ReadSettings) -> LoadedWeights:
    """Read the parameters of a model; see `load_parameters`.

    Only the tensors, and the parts of them, that devices of this process need are read, and they are converted directly
    into their final place. Beside the result about one tensor is in memory at a time (without file-backed pages, which
    the system can drop at any time), and on an accelerator one shard of a parameter. The arrays share no memory with
    the files.
    """
    dtype, packed = settings.dtype, settings.packed
    plan = check(checkpoint, family, config) if packed is None or packed.plan is None else packed.plan
    choices = [choice for choice in plan.choices if settings.reads(choice.weight)]
    weights = [choice.weight for choice in choices]
    kept = kept_dtypes(weights, dtype)
    layouts = {} if packed is None else packed.layouts

    def read() -> Iterator[ReadParameter]:
        for choice, kind in zip(choices, kept, strict=True):
            names = choice.names.values()
            if packed is not None and choice.weight.path in layouts:
                found, lost = load_packed(checkpoint, choice, layouts[choice.weight.path], dtype, packed.products)
                for name in names:
                    checkpoint.release(name)
                yield ReadParameter(found, [], lost)
                continue
            merged, shards = settings.adapters_of(choice.weight), shards_of(choice.weight, settings.shards)
            array, lost = _load(checkpoint, choice, kind, shards, merged)
            stored = {checkpoint.stored_as(name) for name in names}
            for name in names:
                checkpoint.release(name)
            yield ReadParameter(array, [name for name in stored if READABLE.get(name) != kind], lost)

    return gather(
        checkpoint.path, weights, kept, read(), settings.progress, plan.skipped, (*checkpoint.notes, *plan.notes)
    )


def _load(
    checkpoint: CheckpointDirectory,
    choice: ChosenSource,
    kind: np.dtype,
    shards: Shards,
    adapters: Sequence[BoundAdapter],
) -> tuple[jax.Array, tuple[str, ...]]:
    """Return a parameter, and a sentence for each of its quantised tensors whose rows were lost."""
    weight, source, names = choice.weight, choice.source, choice.names
    lost: dict[str, None] = {}

    def part(windows: Iterator[tuple[ArraySlice, ArraySlice]], shape: tuple[int, ...]) -> np.ndarray:
        # A copy that XLA takes over; a view of the mapped file would change with the file.
        result, filled = aligned_empty(shape, np.dtype(np.float32) if adapters else kind), 0
        pieces = list(windows)
        for window, target in pieces:
            # The ellipsis makes the index of a scalar a view.
            whole = result[(*target, ...)]
            for piece in choice.pieces(checkpoint, window):
                tensor = checkpoint.read(names[piece.name])
                if names[piece.name] in checkpoint.grouped.quantised and (zero := lost_rows(tensor)):
                    lost[f"{names[piece.name]}: {zero} of its rows are zero: it was quantised too coarsely"] = None
                found, into = source.take(tensor, piece.taken), whole[(*piece.place, ...)]
                assert found.shape == into.shape, f"{weight.path}: {piece} has {found.shape}, expected {into.shape}"
                convert(found, into, checkpoint.path, [names[piece.name]])
                filled += into.size
        assert filled == result.size, f"{weight.path}: the tensors made {filled} entries of {result.size}"
        for adapter in adapters:
            adapter.merge(weight, pieces, result)
        return converted(result, kind, checkpoint.path, names.values()) if adapters else result

    return jax.block_until_ready(shards.build(part)), tuple(lost)
