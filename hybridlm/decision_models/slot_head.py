"""Linear heads with one row per option, in separate files or among a model's tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hybridlm.checkpoint.cast import finite_tensor
from hybridlm.checkpoint.directory import open_directory
from hybridlm.checkpoint.safetensors import SafetensorsFile
from hybridlm.decision_models.questions import KINDS
from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import is_positive

MODEL = "config.json"
DEFAULT_ROWS, DEFAULT_OFFSETS = 24, {"noul": 0, "score": 2, "choice": 8}
"""Rows of the head of a model that transformers saved, where its config.json does not say."""
MAX_OPTIONS = 1024
"""Labels of a type of question, and rows of a head."""


@dataclass(frozen=True)
class SlotHead:
    """A linear head with one row per option: the head of `jev`, pplx-decider and d3.

    Attributes:
        weight: float32 [rows, hidden].
        bias: float32 [rows].
        softcap: bound of the scores, `softcap * tanh(score / softcap)`, or None.
        offsets: type -> row of its first option.
    """

    weight: np.ndarray
    bias: np.ndarray
    softcap: float | None
    offsets: Mapping[str, int]


def saved_head(directory: Path, fields: Mapping[str, Any], hidden_size: int) -> SlotHead:
    """Return the head of a model that transformers saved as "jev"; raises CheckpointError."""
    faults: list[str] = []
    rows, softcap = fields.get("num_verbalizers", DEFAULT_ROWS), fields.get("softcap")
    offsets = fields.get("offsets") or DEFAULT_OFFSETS
    if type(rows) is not int or not 0 < rows <= MAX_OPTIONS:
        faults.append(f"num_verbalizers: expected a number of rows from 1 to {MAX_OPTIONS}, found {rows!r}")
        rows = 1
    places = offsets.values() if isinstance(offsets, dict) and set(offsets) <= set(KINDS) else [None]
    if not all(type(offset) is int and 0 <= offset < rows for offset in places):
        faults.append(f"offsets: expected type -> row of its first option, below {rows}, found {offsets!r}")
    if softcap is not None and not is_positive(softcap):
        faults.append(f"softcap: expected a number greater than 0 or null, found {softcap!r}")
    if faults:
        raise CheckpointError(directory / MODEL, faults)
    checkpoint = open_directory(directory)
    expected = {"proj.weight": (rows, hidden_size), "proj.bias": (rows,)}
    shapes = {name: checkpoint.shape(name) for name in expected if name in checkpoint.files}
    if shapes != expected:
        raise CheckpointError(directory, f"expected the tensors {expected} of the head, found {shapes}")
    weight, bias = (finite_tensor(directory, name, checkpoint.read(name)) for name in expected)
    return SlotHead(weight, bias, softcap if softcap is None else float(softcap), offsets)


def read_tensors(path: Path, expected: Mapping[str, tuple[int, ...]]) -> list[np.ndarray]:
    """Return the tensors of a head's file, in float32; there are no others in it."""
    if not path.is_file():
        raise CheckpointError(path, "expected the head of the decision model, found no file")
    file = SafetensorsFile(path)
    shapes = {name: info.shape for name, info in file.tensors.items()}
    if shapes != expected:
        raise CheckpointError(path, f"expected the tensors {expected}, found {dict(list(shapes.items())[:5])}")
    return [finite_tensor(path, name, file.read(name)) for name in expected]
