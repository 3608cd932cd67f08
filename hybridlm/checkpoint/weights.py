"""Parameters of a model from a Hugging Face checkpoint: headers are checked first, then tensors are read one by one."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hybridlm.checkpoint.adapter import BoundAdapter
from hybridlm.checkpoint.cast import aligned_empty, convert, converted
from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.header_check import ChosenSource, check
from hybridlm.checkpoint.packed.parameters import PackedParameters, load_packed
from hybridlm.checkpoint.report import LoadedWeights, ParameterPath, Progress, ReadParameter, gather, kept_dtypes
from hybridlm.checkpoint.safetensors import READABLE
from hybridlm.checkpoint.shards import ALL_WHOLE, Shards, shards_of
from hybridlm.quantised.health import lost_rows
from models import Family
from models.weights.sources import ArraySlice


def load_weights(
    checkpoint: CheckpointDirectory,
    family: Family,
    config: Any,
    dtype: str,
    progress: Progress | None = None,
    shards: Mapping[ParameterPath, Shards] = ALL_WHOLE,
    adapters: Sequence[BoundAdapter] = (),
    only: Collection[ParameterPath] | None = None,
    packed: PackedParameters | None = None,
) -> LoadedWeights:
    """Read every parameter of a model.

    Only the tensors, and the parts of them, that devices of this process need are read, and they are converted directly
    into their final place. Beside the result about one tensor is in memory at a time (without file-backed pages, which
    the system can drop at any time), and on an accelerator one shard of a parameter. The arrays share no memory with
    the files.

    Args:
        checkpoint: an opened directory.
        family: lists the parameters and how they are built from tensors.
        config: the result of `family.read_config(checkpoint.config)`.
        dtype: "bfloat16", "float16" or "float32"; parameters marked `float32` are always float32.
        progress: called as `progress(bytes_done, bytes_total, path)` before the first parameter and after each.
        shards: layout of parameters over devices; others are whole on JAX's default device.
        adapters: are merged in float32, in order; the result is rounded once.
        only: paths of the parameters that are read; None for all.
        packed: quantised matrices that are kept packed (`packed_parameters`, with the same checkpoint, family,
            configuration, adapters and shards); None: none.

    Raises:
        CheckpointError: all faults of the headers (see `check`); or a value that `dtype` cannot hold.
        ValueError: an unknown `dtype`.
    """
    plan = check(checkpoint, family, config) if packed is None or packed.plan is None else packed.plan
    choices = [choice for choice in plan.choices if only is None or choice.weight.path in only]
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
            merged = [adapter for adapter in adapters if adapter.touches(choice.weight)]
            array, lost = _load(checkpoint, choice, kind, shards_of(choice.weight, shards), merged)
            stored = {checkpoint.stored_as(name) for name in names}
            for name in names:
                checkpoint.release(name)
            yield ReadParameter(array, [name for name in stored if READABLE.get(name) != kind], lost)

    return gather(checkpoint.path, weights, kept, read(), progress, plan.skipped, (*checkpoint.notes, *plan.notes))


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
