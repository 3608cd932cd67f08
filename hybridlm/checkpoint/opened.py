"""A checkpoint directory of either kind, as Hugging Face writes it or `LM.save` does, and what is asked of both."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridlm.checkpoint.directory import CheckpointDirectory, open_directory
from hybridlm.checkpoint.fingerprint import checkpoint_fingerprint
from hybridlm.checkpoint.report import LoadedWeights, ParameterPath, Progress
from hybridlm.checkpoint.saved_index import SavedDirectory, is_saved, open_saved
from hybridlm.checkpoint.saved_read import head_parameters, load_saved_weights
from hybridlm.checkpoint.shards import ALL_WHOLE, Shards
from hybridlm.checkpoint.weights import load_weights
from models import Family

Checkpoint = CheckpointDirectory | SavedDirectory


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Opens a directory and checks all that can be checked without reading a parameter; raises CheckpointError."""
    return open_saved(Path(path)) if is_saved(Path(path)) else open_directory(path)


def stored_dtype(checkpoint: Checkpoint) -> str:
    """The dtype that most bytes of the checkpoint have, or that its matrices were saved in."""
    if isinstance(checkpoint, SavedDirectory):
        return checkpoint.dtype
    sizes = Counter[str]()
    for name in checkpoint.files:
        info = checkpoint.info(name)
        sizes[info.dtype] += info.end - info.begin
    names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
    return names.get(sizes.most_common(1)[0][0], "bfloat16")


def fingerprint_of(checkpoint: Checkpoint, dtype: str) -> str:
    """The fingerprint of a model that is loaded from it with matrices of a dtype.

    That of a saved model is the one of the original. Loaded in another dtype than it was saved in it has one of its
    own: its numbers are those of the saved dtype, which the original may have more exactly.
    """
    if not isinstance(checkpoint, SavedDirectory):
        return checkpoint_fingerprint(checkpoint)
    if dtype == checkpoint.dtype:
        return checkpoint.fingerprint
    return hashlib.sha256(f"{checkpoint.fingerprint} in {checkpoint.dtype}".encode()).hexdigest()


def has_head(checkpoint: Checkpoint, family: Family) -> bool:
    """Whether there are parameters of a multi-token-prediction head, which the family has an implementation of."""
    if isinstance(checkpoint, SavedDirectory):
        return bool(head_parameters(checkpoint, family))
    return any(re.fullmatch(pattern, name) for pattern in head_tensors(family) for name in checkpoint.files)


def head_tensors(family: Family) -> set[str]:
    """Patterns of tensors that are read with the head alone."""
    return set() if family.with_head is None else set(family.skipped) - set(family.with_head.skipped)


def load_parameters(
    checkpoint: Checkpoint,
    family: Family,
    config: Any,
    dtype: str,
    progress: Progress | None = None,
    shards: Mapping[ParameterPath, Shards] = ALL_WHOLE,
) -> LoadedWeights:
    """Reads every parameter of a model: `load_weights` or `load_saved_weights`."""
    if isinstance(checkpoint, SavedDirectory):
        return load_saved_weights(checkpoint, family, config, dtype, progress, shards)
    return load_weights(checkpoint, family, config, dtype, progress, shards)
