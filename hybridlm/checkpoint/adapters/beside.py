"""The adapter of a model: in its folder, or named by a decision model."""

from pathlib import Path

from hybridlm.checkpoint.adapters.adapter import MAX_CONFIG_BYTES, has_adapter
from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import read_object

DECISION, JUDGE = "decision.json", "judge_config.json"
"""Files of decision models."""


def own_adapter(directory: Path) -> Path | None:
    """Return the folder of the adapter that `load` merges by default, or None.

    The folder may be missing, in a decision model from the Hub.

    Raises:
        CheckpointError: a file that may name it cannot be read.
    """
    if has_adapter(directory):
        return directory
    folder = adapter_folder(directory)
    return None if folder is None else directory / folder


def adapter_folder(directory: Path) -> str | None:
    """Return the name of a decision model's adapter folder, or None.

    Raises:
        CheckpointError: a file cannot be read.
    """
    if (directory / JUDGE).is_file():
        name = read_object(directory / JUDGE, MAX_CONFIG_BYTES).get("adapter_subfolder", "adapter")
    elif (directory / DECISION).is_file():
        name = read_object(directory / DECISION, MAX_CONFIG_BYTES).get("adapter")
    else:
        return None
    if name is not None and (
        not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts
    ):
        raise CheckpointError(directory, f"adapter: expected the name of a folder in the directory, found {name!r}")
    return name
