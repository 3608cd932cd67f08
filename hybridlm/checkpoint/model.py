"""Models of checkpoints of all layouts (Hugging Face, GGUF, `LM.save`): family, configuration, and MTP head."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hybridlm.checkpoint.adapters import Adapter
from hybridlm.checkpoint.directory import CheckpointDirectory, open_directory, read_config
from hybridlm.checkpoint.fingerprint import Fingerprint, checkpoint_fingerprint, fingerprint_of_version, version_of
from hybridlm.checkpoint.gguf_file import is_gguf, open_gguf
from hybridlm.checkpoint.safetensors import READABLE
from hybridlm.checkpoint.saved.index import SavedDirectory, is_saved, open_saved
from hybridlm.checkpoint.saved.read import head_parameters
from hybridlm.errors import CheckpointError
from hybridlm.gguf_files import BLOCK_TYPES
from ir_passes.files.user_warnings import warn_user
from models import FAMILIES, ConfigError, DecoderConfig, Family, family_named, family_of, text_fields

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


def open_model(path: Path, head: bool = False) -> OpenModel:
    """Open a checkpoint and read its configuration, but no tensor.

    Raises:
        CheckpointError: faults of the files, or no head.
        ConfigError, UnsupportedModel: every fault of config.json.
    """
    try:
        directory = open_checkpoint(path)
    except CheckpointError as error:
        faults = _config_faults(path, head)
        if not faults:
            raise
        where = "" if error.where == str(path) else f"{error.where}: "
        raise CheckpointError(path, [*(where + fault for fault in error.faults), *faults], error.advice) from error
    family, config = read_model(path, directory.config, head)
    if head:
        require_head(directory)
    return OpenModel(directory, family, config)


def read_model(path: Path, fields: dict[str, Any], head: bool = False) -> tuple[Family, DecoderConfig]:
    """Return family and configuration of a config.json; warn of unused fields.

    Raises:
        ConfigError, UnsupportedModel: with every fault.
    """
    family, config = _read(fields, head)
    if config.unknown_keys:
        warn_user(
            f"{path}: config.json has fields that {family.name} does not know and that are not used: "
            + ", ".join(config.unknown_keys),
        )
    return family, config


def _read(fields: dict[str, Any], head: bool) -> tuple[Family, DecoderConfig]:
    family = with_head(family_of(fields)) if head else family_of(fields)
    return family, family.read_config(fields)


def _config_faults(path: Path, head: bool) -> list[str]:
    try:
        _read(read_config(path / "config.json"), head)
    except CheckpointError:
        return []
    except ConfigError as error:
        return [f"config.json: {fault}" for fault in error.faults]
    except ValueError as error:
        return [str(error)]
    return []


def family_of_model(config: DecoderConfig) -> Family:
    family, _ = family_named(config.family)
    return family if config.head is None else with_head(family)


INSTEAD = "speculate='ngram' needs no head."


def with_head(family: Family) -> Family:
    """Return the family's variant with the MTP head; raises ValueError without one."""
    if family.with_head is None:
        names = ", ".join(dict.fromkeys(other.name for other in FAMILIES if other.with_head is not None))
        raise ValueError(
            f"speculate: 'mtp' needs a multi-token-prediction head, and none is implemented for family {family.name} "
            f"(for {names} it is). {INSTEAD}"
        )
    return family.with_head


def require_head(directory: Checkpoint) -> None:
    family = family_of(directory.config)
    with_head(family)
    if not has_head(directory, family):
        names = ", ".join(sorted(head_tensors(family))).replace("\\", "")
        raise CheckpointError(
            directory.path,
            f"speculate='mtp' needs the multi-token-prediction head, and no tensor is named {names}",
            "Some copies of a model leave it out; the original has it. A model is saved with its head where it was "
            f"loaded with it. {INSTEAD}",
        )
