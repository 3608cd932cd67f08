"""Checkpoints of all layouts: Hugging Face, GGUF, `LM.save`."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from hybridlm.checkpoint.adapters import Adapter
from hybridlm.checkpoint.directory import CheckpointDirectory, open_directory
from hybridlm.checkpoint.fingerprint import Fingerprint, checkpoint_fingerprint, fingerprint_of_version, version_of
from hybridlm.checkpoint.gguf_file import is_gguf, open_gguf
from hybridlm.checkpoint.safetensors import READABLE
from hybridlm.checkpoint.saved.index import SavedDirectory, is_saved, open_saved
from hybridlm.checkpoint.saved.read import head_parameters
from hybridlm.gguf_files import BLOCK_TYPES
from models import DecoderConfig, Family, text_fields

Checkpoint = CheckpointDirectory | SavedDirectory


class OpenModel(NamedTuple):
    checkpoint: Checkpoint
    family: Family
    config: DecoderConfig


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a directory or GGUF file and check everything but parameters; raises CheckpointError."""
    if is_gguf(path):
        return open_gguf(path)
    return open_saved(Path(path)) if is_saved(Path(path)) else open_directory(path)


def stored_dtype(checkpoint: Checkpoint) -> str:
    """Return the dtype of most bytes of a checkpoint.

    For a saved model this is the dtype of its matrices; for a quantised one the configuration's, or bfloat16.
    """
    if isinstance(checkpoint, SavedDirectory):
        return checkpoint.dtype
    if checkpoint.grouped.quantised:
        configs = checkpoint.config, text_fields(checkpoint.config)
        names = [config.get(key) for config in configs for key in ("dtype", "torch_dtype")]
        return next((name for name in names if name in ("bfloat16", "float16", "float32")), "bfloat16")
    sizes = Counter[str]()
    for name in checkpoint.files.keys() - checkpoint.grouped.parts.keys():
        info = checkpoint.info(name)
        sizes[info.dtype] += info.end - info.begin
    if BLOCK_TYPES & sizes.keys():
        return "bfloat16"
    return READABLE.get(sizes.most_common(1)[0][0], READABLE["BF16"]).name


def fingerprint_of(
    checkpoint: Checkpoint, dtype: str, adapters: Sequence[Adapter] = (), packed: Collection[str] = ()
) -> Fingerprint:
    """Return the fingerprint of a model after its weights have been read.

    A saved model has the original's, except in another dtype or with other packed weights: saving rounds numbers.

    Args:
        checkpoint: opened before the weights were read; files of the last seconds are hashed here.
    """
    settings = [f" with {adapter.digest}" for adapter in adapters]
    saved = isinstance(checkpoint, SavedDirectory)
    if set(packed) != (checkpoint.packed.keys() if saved else set()):
        settings.insert(0, f" packed {' '.join(sorted(packed))}")
    if saved and dtype != checkpoint.dtype:
        settings.insert(0, f" in {checkpoint.dtype}")

    def derived(text: str) -> str:
        for setting in settings:
            text = hashlib.sha256((text + setting).encode()).hexdigest()
        return text

    if isinstance(checkpoint, SavedDirectory):
        return Fingerprint(derived(checkpoint.fingerprint))
    version = version_of(checkpoint)
    if not version.settled:
        return Fingerprint(derived(checkpoint_fingerprint(checkpoint)))
    return Fingerprint(lambda: derived(fingerprint_of_version(version, open_checkpoint)), (version, *settings))


def has_head(checkpoint: Checkpoint, family: Family) -> bool:
    if isinstance(checkpoint, SavedDirectory):
        return bool(head_parameters(checkpoint, family))
    return any(re.fullmatch(pattern, name) for pattern in head_tensors(family) for name in checkpoint.names)


def head_tensors(family: Family) -> set[str]:
    return set() if family.with_head is None else set(family.skipped) - set(family.with_head.skipped)
