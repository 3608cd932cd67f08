"""Scores of options, by labels or a linear head."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hybridlm.checkpoint.cast import finite_tensor
from hybridlm.checkpoint.directory import open_directory
from hybridlm.checkpoint.safetensors import open_safetensors
from hybridlm.decision_models.questions import KINDS, DecisionQuestion
from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import is_positive
from hybridlm.text.tokenizer import Tokenizer

MODEL = "config.json"
DEFAULT_ROWS, DEFAULT_OFFSETS = 24, {"noul": 0, "score": 2, "choice": 8}
"""Head rows of a model that transformers saved, by default."""
MAX_OPTIONS = 1024
"""Labels of a question type, and rows of a head."""


@dataclass(frozen=True)
class SlotHead:
    """A linear head with a row per option (`jev`, pplx-decider, d3); float64 sums.

    Attributes:
        weight: float32 [rows, hidden].
        bias: float32 [rows].
        softcap: `softcap * tanh(score / softcap)`, or None.
        offsets: row of a type's first option.
    """

    weight: np.ndarray
    bias: np.ndarray
    softcap: float | None
    offsets: Mapping[str, int]

    def check(self, question: DecisionQuestion) -> None:
        """Raise ValueError for a type without rows, or too many options."""
        if question.type not in self.offsets:
            raise ValueError(f"questions[{question.name!r}]: this model has no rows for {question.type} questions")
        limit = len(self.weight) - self.offsets[question.type]
        if len(question.options) > limit:
            raise ValueError(
                f"questions[{question.name!r}]: expected at most {limit} options, as many as this model has rows for "
                f"{question.type} questions, got {len(question.options)}"
            )

    def scores(self, vector: np.ndarray, question: DecisionQuestion) -> np.ndarray:
        """Return the scores of options, float64 [option], soft-capped."""
        first = self.offsets[question.type]
        rows = slice(first, first + len(question.options))
        weight = self.weight[rows].astype(np.float64)
        scores = (weight * vector.astype(np.float64)).sum(axis=1) + self.bias[rows]
        cap = self.softcap
        return scores if cap is None else cap * np.tanh(scores / cap)


def saved_head(directory: Path, fields: Mapping[str, Any], hidden_size: int) -> SlotHead:
    """Return the head of a "jev" model of transformers; raises CheckpointError."""
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
    """Return the float32 tensors of a head's file; raises CheckpointError for others."""
    if not path.is_file():
        raise CheckpointError(path, "expected the head of the decision model, found no file")
    file = open_safetensors(path)
    shapes = {name: info.shape for name, info in file.tensors.items()}
    if shapes != expected:
        raise CheckpointError(path, f"expected the tensors {expected}, found {dict(list(shapes.items())[:5])}")
    return [finite_tensor(path, name, file.read(name)) for name in expected]


@dataclass(frozen=True)
class LabelHead:
    """Logits of the options' labels, all distinct tokens.

    Attributes:
        rows: token ids -> vocabulary head rows with all logit factors, float64 [ids, hidden].
        dtype: dtype of the residual stream in the product.
    """

    tokenizer: Tokenizer
    rows: Callable[[Sequence[int]], np.ndarray]
    dtype: np.dtype
    _label_rows: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict)

    def check(self, question: DecisionQuestion) -> None:
        """Read the label rows; raises ValueError unless labels are distinct single tokens."""
        if question.labels not in self._label_rows:
            self._label_rows[question.labels] = self.rows(self._ids(question))

    def scores(self, vector: np.ndarray, question: DecisionQuestion) -> np.ndarray:
        """Return the logits of option labels, float64 [option], at a float32 [hidden]."""
        rounded = vector.astype(self.dtype).astype(np.float64)
        return (self._label_rows[question.labels] * rounded).sum(axis=1)

    def _ids(self, question: DecisionQuestion) -> list[int]:
        encoded = {label: self.tokenizer.encode(label, add_special_tokens=False) for label in question.labels}
        unk_token = self.tokenizer.special_tokens.get("unk_token")
        nothing = None if unk_token is None else self.tokenizer.token_to_id(unk_token)
        wrong = [repr(label) for label, ids in encoded.items() if len(ids) != 1 or ids[0] == nothing]
        wrong += [
            f"{label!r} again"
            for label in {label_text for label_text in question.labels if question.labels.count(label_text) > 1}
        ]
        ids = [label_ids[0] for label_ids in encoded.values() if label_ids]
        if wrong or len(set(ids)) != len(question.labels):
            raise ValueError(
                f"questions[{question.name!r}]: expected labels that are distinct single tokens of this model, "
                f"{', '.join(wrong) or 'two of them'} {'are' if len(wrong) > 1 else 'is'} not; choose others in "
                f"decision.json (labels.{question.type})"
            )
        return ids
