"""Builds a model's parameters from an opened checkpoint: headers first, then one tensor at a time is read."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from hybridlm.checkpoint.check import Choice, check
from hybridlm.checkpoint.converting import aligned_empty, convert
from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.loaded import LoadedWeights, ParameterPath, Progress, Read, gather, kept_dtypes
from hybridlm.checkpoint.safetensors_file import READABLE
from hybridlm.checkpoint.shards import ALL_WHOLE, Shards, Window
from models import Family


def load_weights(
    checkpoint: CheckpointDirectory,
    family: Family,
    config: Any,
    dtype: str,
    progress: Progress | None = None,
    shards: Mapping[ParameterPath, Shards] = ALL_WHOLE,
) -> LoadedWeights:
    """Reads every parameter of a model.

    Beside the arrays that are kept, at most about one parameter is in memory at a time (file-backed pages, which the
    system can drop whenever it wants, not counted); of a parameter that is one tensor only what the devices of this
    process have. The arrays share no memory with the files.

    Args:
        checkpoint: an opened directory.
        family: says which parameters there are and how they are built.
        config: what `family.read_config` made of `checkpoint.config`.
        dtype: "bfloat16", "float16" or "float32"; parameters marked `float32` are float32 whatever it says.
        progress: called as `progress(bytes_done, bytes_total, path)` before the first parameter and after each.
        shards: how parameters lie over devices; those that are not named are whole on JAX's default device.

    Raises:
        CheckpointError: all faults that headers show (see `check`); or a value that `dtype` cannot hold.
        ValueError: an unknown `dtype`.
    """
    plan = check(checkpoint, family, config)
    weights = [choice.weight for choice in plan.choices]
    kept = kept_dtypes(weights, dtype)

    def read() -> Iterator[Read]:
        for choice, kind in zip(plan.choices, kept, strict=True):
            weight, names = choice.weight, choice.names.values()
            array = _load(checkpoint, choice, kind, shards.get(weight.path) or Shards(tuple(weight.shape)))
            stored = {checkpoint.info(name).dtype for name in names}
            for name in names:
                checkpoint.files[name].release(name)
            yield Read(array, [name for name in stored if READABLE[name] != kind])

    return gather(checkpoint.path, weights, kept, read(), progress, plan.skipped, checkpoint.notes)


def _load(checkpoint: CheckpointDirectory, choice: Choice, kind: np.dtype, shards: Shards) -> jax.Array:
    weight, source, names = choice.weight, choice.source, choice.names
    # A builder fills one array: tensors of different dtypes would lose bits in it, in float32 none does.
    mixed = len({checkpoint.info(name).dtype for name in names.values()}) > 1

    def read(name: str) -> np.ndarray:
        array = checkpoint.read(names[name])
        return array.astype(np.float32) if mixed else array

    if source.build is None:
        assert len(names) == 1, f"{weight.path}: a source of several tensors needs a builder"
        array = read(next(iter(names)))
    else:
        array = source.build(read)
    assert array.shape == tuple(weight.shape), f"{weight.path}: built {array.shape}, expected {weight.shape}"
    # Only an array that owns its memory is handed on as it is: a view may show the file, or keep something larger.
    ready = array.dtype == kind and array.flags.owndata and array.flags.c_contiguous

    def part(windows: Iterator[tuple[Window, Window]], shape: tuple[int, ...]) -> np.ndarray:
        if ready and not shards.split:
            return array
        result = aligned_empty(shape, kind)
        for source, target in windows:
            # With an ellipsis a scalar is a view too.
            convert(array[(*source, ...)], result[(*target, ...)], checkpoint.path, names.values())
        return result

    return jax.block_until_ready(shards.build(part))
