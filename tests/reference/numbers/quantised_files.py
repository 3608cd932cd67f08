"""Quantised files: read into weights, and written again with changed tensors."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quantised_checkpoint import Stored, write_tensors

from hybridlm.checkpoint import ArrayFile, open_safetensors
from hybridlm.quantised import GroupedTensors, group_tensors, read_settings


def group(
    folder: Path, tensors: Mapping[str, Stored], config: Mapping[str, Any] | None = None
) -> tuple[GroupedTensors, ArrayFile]:
    """Write a file and return its weights, by the hints of a configuration, and the file."""
    write_tensors(folder / "m.safetensors", tensors)
    file = open_safetensors(folder / "m.safetensors")
    hints = read_settings({"quantization_config": config} if config else {}, None).hints
    return group_tensors(file.tensors, file.read_stored, hints, lambda _: file.metadata), file


def rewrite(path: Path, change: Callable[[dict[str, Stored]], Any]) -> None:
    """Change the tensors of a file."""
    file = open_safetensors(path)
    tensors = {name: (info.dtype, file.read_stored(name).copy()) for name, info in file.tensors.items()}
    change(tensors)
    path.unlink()  # a mapped file must not be rewritten in place
    write_tensors(path, tensors)
