"""Builds a model's parameters from an opened checkpoint: headers first, then one tensor at a time is read."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from hybridlm.checkpoint.check import Choice, check
from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.errors import CheckpointError
from hybridlm.checkpoint.safetensors_file import READABLE
from hybridlm.checkpoint.saved import SavedDirectory
from hybridlm.checkpoint.shards import ALL_WHOLE, Shards, Window
from models import Family

Progress = Callable[[int, int, str], None]
ParameterPath = tuple[str | int, ...]

DTYPES: Mapping[str, np.dtype] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}
# Elements that are converted at once: what a conversion needs beside its result stays small.
_BLOCK = 1 << 22
# XLA's CPU client takes an array over without a copy if it is aligned like this.
_ALIGNMENT = 64


@dataclass(frozen=True)
class LoadReport:
    """What loading did that somebody may want to know.

    Attributes:
        path: the checkpoint directory.
        parameters: how many numbers the parameters have.
        bytes: how many bytes they have as they are kept.
        skipped: pattern of the family -> how many tensors it left unread.
        converted: dtype in the file -> how many parameters were converted from it, without those that are float32 in
            any case.
        notes: of the directory (tensors outside the index, ...).
    """

    path: Path
    parameters: int
    bytes: int
    skipped: Mapping[str, int]
    converted: Mapping[str, int]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """One sentence per line: what was left unread and what else is odd; empty where there is nothing to say."""
        lines = [f"{self.path}: {note}" for note in self.notes]
        if self.skipped:
            patterns = ", ".join(f"{count} of {pattern}" for pattern, count in self.skipped.items())
            lines.append(f"{self.path}: {sum(self.skipped.values())} tensors are not used by this model: {patterns}")
        return lines

    def conversions(self, kept: str) -> list[str]:
        """One sentence per dtype of the file that parameters were converted from, for who did not ask for `kept`."""
        return [
            f"{self.path}: {count} of the parameters are stored as {stored} and kept as {kept}, as most are stored; "
            f'dtype="float32" keeps every bit'
            for stored, count in self.converted.items()
        ]


class LoadedWeights(NamedTuple):
    """Parameters by their path in the nnx module, and what there is to report."""

    arrays: dict[ParameterPath, jax.Array]
    report: LoadReport


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
    if dtype not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    plan = check(checkpoint, family, config)
    kept = [DTYPES["float32" if choice.weight.float32 else dtype] for choice in plan.choices]
    sizes = [math.prod(choice.weight.shape) for choice in plan.choices]
    total = sum(size * kind.itemsize for size, kind in zip(sizes, kept, strict=True))
    arrays: dict[ParameterPath, jax.Array] = {}
    converted = Counter[str]()
    done = 0
    if progress is not None:
        progress(0, total, "")
    for choice, size, kind in zip(plan.choices, sizes, kept, strict=True):
        path = choice.weight.path
        assert path not in arrays, f"{family.name} describes the parameter {path} twice"
        arrays[path] = _load(checkpoint, choice, kind, shards.get(path) or Shards(tuple(choice.weight.shape)))
        if not choice.weight.float32:
            stored = {checkpoint.info(name).dtype for name in choice.names.values()}
            converted.update(name for name in stored if READABLE[name] != kind)
        for name in choice.names.values():
            checkpoint.files[name].release(name)
        done += size * kind.itemsize
        if progress is not None:
            progress(done, total, ".".join(map(str, path)))
    return LoadedWeights(
        arrays, LoadReport(checkpoint.path, sum(sizes), total, plan.skipped, converted, checkpoint.notes)
    )


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
        result = _aligned_empty(shape, kind)
        for source, target in windows:
            # With an ellipsis a scalar is a view too.
            _convert(array[(*source, ...)], result[(*target, ...)], checkpoint, names)
        return result

    return jax.block_until_ready(shards.build(part))


def _converted(
    array: np.ndarray, kind: np.dtype, checkpoint: CheckpointDirectory | SavedDirectory, names: Mapping[str, str]
) -> np.ndarray:
    """A contiguous, aligned copy in another dtype; as `_convert`."""
    result = _aligned_empty(array.shape, kind)
    _convert(array, result, checkpoint, names)
    return result


def _convert(
    array: np.ndarray, result: np.ndarray, checkpoint: CheckpointDirectory | SavedDirectory, names: Mapping[str, str]
) -> None:
    """Copy an array into one of another dtype; values beyond its range are an error instead of infinity."""
    kind = result.dtype
    narrowing = kind != array.dtype and kind != np.float32
    # A float16 above 65504 or a float32 above the largest bfloat16 is found below, with its tensor's name.
    with np.errstate(over="ignore"):
        for block in _blocks(array.shape):
            np.copyto(result[block], array[block], casting="unsafe")
            if narrowing and np.isinf(result[block]).sum() != np.isinf(array[block]).sum():
                raise CheckpointError(
                    checkpoint.path,
                    f"{', '.join(list(names.values())[:3])}: holds {array.dtype} values beyond the range of {kind}",
                    'Load with dtype="float32", or "bfloat16" if the checkpoint says so.',
                )


def _blocks(shape: tuple[int, ...]) -> Iterator[slice | EllipsisType]:
    if not shape:
        yield ...
        return
    step = max(1, _BLOCK // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        yield slice(start, start + step)


def _aligned_empty(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    size = math.prod(shape) * kind.itemsize
    buffer = np.empty(size + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + size].view(kind).reshape(shape)
