"""Model of a checkpoint directory: family, configuration and multi-token-prediction (MTP) head."""

from pathlib import Path
from typing import Any

from hybridlm.checkpoint import Checkpoint, CheckpointError, OpenModel, has_head, head_tensors, open_checkpoint
from hybridlm.checkpoint.directory import read_config
from ir_passes.files.user_warnings import warn_user
from models import FAMILIES, ConfigError, DecoderConfig, Family, family_named, family_of


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
    family, config = _read(directory.config, head)
    _warn_of_unused(path, family, config)
    if head:
        require_head(directory)
    return OpenModel(directory, family, config)


def read_model(path: Path, fields: dict[str, Any], head: bool = False) -> tuple[Family, DecoderConfig]:
    """Return family and configuration of a config.json; warn of unused fields.

    Raises:
        ConfigError, UnsupportedModel: with every fault.
    """
    family, config = _read(fields, head)
    _warn_of_unused(path, family, config)
    return family, config


def _read(fields: dict[str, Any], head: bool) -> tuple[Family, DecoderConfig]:
    family = with_head(family_of(fields)) if head else family_of(fields)
    return family, family.read_config(fields)


def _warn_of_unused(path: Path, family: Family, config: DecoderConfig) -> None:
    if config.unknown_keys:
        warn_user(
            f"{path}: config.json has fields that {family.name} does not know and that are not used: "
            + ", ".join(config.unknown_keys),
        )


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
        names = ", ".join(sorted(head_tensors(family)))
        raise CheckpointError(
            directory.path,
            f"speculate='mtp' needs the multi-token-prediction head, and no tensor is named {names}",
            "Some copies of a model leave it out; the original has it. A model is saved with its head where it was "
            f"loaded with it. {INSTEAD}",
        )
