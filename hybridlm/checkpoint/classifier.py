"""Heads of sequence-classification and reward models, in place of a vocabulary head."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybridlm.checkpoint.cast import finite_tensor
from hybridlm.checkpoint.model import Checkpoint
from hybridlm.checkpoint.saved.index import SavedDirectory
from hybridlm.errors import CheckpointError
from models import JEV, JEV_HEAD, DecoderConfig, Family, text_fields

SCORE = "score.weight"
"""Name of the matrix in transformers' `ForSequenceClassification`."""
DECISION_HEADS = ("judge_config.json", "decision_config.json")
"""Files of a decision model's head; its weights may have no vocabulary head."""
SCORE_PATTERN = r"score\.weight"
READ_ELSEWHERE = frozenset({SCORE_PATTERN, *JEV_HEAD})
"""Patterns of skipped tensors that are heads, and not left out."""


@dataclass(frozen=True)
class Classifier:
    """Head of a sequence-classification or reward model; `weight` is float32 [labels, hidden]."""

    weight: np.ndarray
    labels: tuple[str, ...]


def read_classifier(
    directory: Checkpoint, family: Family, config: DecoderConfig
) -> tuple[Family, DecoderConfig, Classifier | None, bool]:
    """Read the head of texts of a checkpoint, if it has one.

    Returns:
        Family and configuration of the other tensors, the head, and whether a vocabulary head exists. Without one,
        the model has its embedding there, and no result may depend on it.

    Raises:
        CheckpointError: a shape differs from config.json, or a number is not finite.
    """
    if isinstance(directory, SavedDirectory):
        return family, config, None, True
    names = set(directory.names)
    bare = not any(name.endswith("lm_head.weight") for name in names)
    if SCORE not in names:
        # A model saved without any head, like embedding models.
        models = [str(name) for name in directory.config.get("architectures") or ()]
        headless = (models and all(name.endswith("Model") for name in models)) or (
            any((directory.path / name).is_file() for name in DECISION_HEADS)
            or directory.config.get("model_type") == JEV
        )
        if bare and not config.tied and headless:
            return family, replace(config, tied=True), None, False
        return family, config, None, True
    labels = _labels(directory.config)
    shape, expected = directory.shape(SCORE), (len(labels), config.hidden_size)
    if len(shape) != 2 or shape[1] != config.hidden_size or (labels and shape != expected):
        raise CheckpointError(directory.path, f"{SCORE}: expected the shape {expected} of config.json, found {shape}")
    weight = finite_tensor(directory.path, SCORE, directory.read(SCORE))
    directory.release(SCORE)
    names_of = labels or tuple(f"LABEL_{i}" for i in range(shape[0]))
    family = replace(family, skipped=(*family.skipped, SCORE_PATTERN))
    return family, replace(config, tied=config.tied or bare), Classifier(weight, names_of), False


def _labels(fields: Mapping[str, Any]) -> tuple[str, ...]:
    labels = fields.get("id2label") or text_fields(fields).get("id2label")
    if not isinstance(labels, Mapping):
        return ()
    return tuple(str(labels.get(str(i), f"LABEL_{i}")) for i in range(len(labels)))
