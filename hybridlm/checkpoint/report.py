"""Loaded parameters and the report on loading them, for checkpoints of both kinds."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridlm.checkpoint.cast import DTYPES
from models import Weight
from models.ops.linear import LinearWeight

Progress = Callable[[int, int, str], None]
ParameterPath = tuple[str | int, ...]


def dotted(path: ParameterPath) -> str:
    """Return the name of a parameter."""
    return ".".join(map(str, path))


@dataclass(frozen=True)
class LoadReport:
    """A report on loading a checkpoint.

    Attributes:
        path: the checkpoint directory.
        parameters: number of weights.
        bytes: their size in memory.
        skipped: pattern of the family -> number of tensors that were not read.
        converted: dtype in the file, or scheme of quantisation -> number of parameters that were converted from it,
            without those that are always float32.
        notes: on the directory (tensors outside the index, ...).
    """

    path: Path
    parameters: int
    bytes: int
    skipped: Mapping[str, int]
    converted: Mapping[str, int]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return sentences on the notes and the tensors that were not read; empty if there are none."""
        lines = [f"{self.path}: {note}" for note in self.notes]
        if self.skipped:
            patterns = ", ".join(f"{count} of {pattern}" for pattern, count in self.skipped.items())
            lines.append(f"{self.path}: {sum(self.skipped.values())} tensors are not used by this model: {patterns}")
        return lines

    def conversions(self, kept: str) -> list[str]:
        """Return a sentence per dtype that parameters were converted from, for users who did not choose `kept`."""
        return [
            f"{self.path}: {count} of the parameters are stored as {stored} and kept as {kept}, as most are stored; "
            f'dtype="float32" keeps every bit'
            for stored, count in self.converted.items()
        ]


class LoadedWeights(NamedTuple):
    """Parameters by their path in the nnx module, each a `jax.Array` or a `LinearWeight`, and the report."""

    arrays: dict[ParameterPath, Any]
    report: LoadReport


class ReadParameter(NamedTuple):
    """One parameter that has been read.

    Attributes:
        array: in the dtype of the model, or packed.
        converted_from: safetensors names of the dtypes, or schemes of quantisation, that it was converted from.
        lost: tensors whose rows were lost when they were quantised, one sentence each.
    """

    array: jax.Array | LinearWeight
    converted_from: Iterable[str]
    lost: tuple[str, ...] = ()


def kept_dtypes(weights: Iterable[Weight], dtype: str) -> list[np.dtype]:
    """Return the dtypes of parameters in memory.

    Raises:
        ValueError: an unknown `dtype`.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    return [DTYPES["float32" if weight.float32 else dtype] for weight in weights]


def gather(
    path: Path,
    weights: Sequence[Weight],
    kept: Sequence[np.dtype],
    read: Iterable[ReadParameter],
    progress: Progress | None,
    skipped: Mapping[str, int] = MappingProxyType({}),
    notes: tuple[str, ...] = (),
) -> LoadedWeights:
    """Collect parameters as they are read, and report progress.

    Args:
        path: of the checkpoint.
        weights: the parameters that are read, in order.
        kept: their dtypes in memory.
        read: yields the parameters.
        progress: called as `progress(bytes_done, bytes_total, path)` before the first parameter and after each.
        skipped, notes: for the report.
    """
    sizes = [math.prod(weight.shape) for weight in weights]
    total = sum(size * kind.itemsize for size, kind in zip(sizes, kept, strict=True))
    arrays: dict[ParameterPath, Any] = {}
    converted, done, lost = Counter[str](), 0, dict[str, None]()
    if progress is not None:
        progress(0, total, "")
    for weight, size, kind, one in zip(weights, sizes, kept, read, strict=True):
        assert weight.path not in arrays, f"the parameter {dotted(weight.path)} is described twice"
        arrays[weight.path] = one.array
        if not weight.float32:
            converted.update(one.converted_from)
        lost.update(dict.fromkeys(one.lost))
        done += size * kind.itemsize
        if progress is not None:
            progress(done, total, dotted(weight.path))
    held = sum(one.nbytes for one in arrays.values())
    return LoadedWeights(arrays, LoadReport(path, sum(sizes), held, skipped, converted, (*notes, *lost)))
