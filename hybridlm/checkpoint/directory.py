"""A Hugging Face checkpoint directory: config.json and safetensors files, or a file of torch."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Any

import numpy as np

from hybridlm.checkpoint.safetensors import ArrayFile, TensorFile, open_safetensors
from hybridlm.checkpoint.torch_file import open_torch
from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import MEGABYTE, read_object
from hybridlm.quantised import (
    DequantiseError,
    GroupedTensors,
    QuantisationSettings,
    dequantise,
    group_tensors,
    read_settings,
)
from hybridlm.quantised.packed import PackedArrays, PackedForm, pack, packed_form
from hybridlm.quantised.settings import quantisation_entries, refused
from hybridlm.quantised.shapes import TensorInfo
from ir_passes.files.strict_json import unique_keys
from models import UnsupportedModel, family_of

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TORCH = "pytorch_model.bin"
"""File of torch, read without safetensors."""
NVIDIA = "hf_quant_config.json"
"""NVIDIA's second description of a quantised checkpoint."""
SEPARATE: Mapping[str, str] = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""File of an older library -> method."""
# Mixed-precision checkpoints list tens of thousands of layers in config.json.
MAX_CONFIG_BYTES = 16 * MEGABYTE
MAX_INDEX_BYTES = 100 * MEGABYTE
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_FLOATS = ("Infinity", "-Infinity", "NaN")


@dataclass(frozen=True)
class CheckpointDirectory:
    """An opened checkpoint: configuration and places of unread tensors.

    Attributes:
        files: by tensor name; codes and scales are separate tensors.
        unindexed: tensors outside the index.
    """

    path: Path
    config: dict[str, Any]
    files: Mapping[str, TensorFile]
    grouped: GroupedTensors = GroupedTensors()
    settings: QuantisationSettings = QuantisationSettings()
    notes: tuple[str, ...] = ()
    unindexed: Mapping[str, TensorFile] = field(default_factory=dict)
    quantisation_file: Mapping[str, Any] | None = None

    @property
    def names(self) -> Iterator[str]:
        """Names of weights."""
        yield from (name for name in self.files if name not in self.grouped.parts)
        yield from self.grouped.quantised
        yield from (name for name in self.grouped.faults if name not in self.files or name in self.grouped.parts)

    def info(self, name: str) -> TensorInfo:
        return self.files[name].tensors[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight; () if its tensors make none."""
        if name in self.grouped.quantised:
            return self.grouped.quantised[name].shape
        return () if name in self.grouped.faults else self.info(name).shape

    def stored_as(self, name: str) -> str:
        """Return a weight's dtype in the format's words, or its quantisation scheme."""
        if name in self.grouped.quantised:
            return self.grouped.quantised[name].scheme
        return self.info(name).dtype

    def read(self, name: str) -> np.ndarray:
        """Return a weight: a read-only view of its file, or dequantised in float32.

        Raises:
            CheckpointError: an unread dtype, a scale or code that is not finite, or a shortened file.
        """
        if name not in self.grouped.quantised:
            return self.files[name].read(name)
        with self._named_faults():
            return dequantise(self.grouped.quantised[name], self.read_part)

    def packed_form(self, name: str) -> PackedForm | None:
        if name not in self.grouped.quantised:
            return self.files[name].packed_form(name)
        tensor = self.grouped.quantised[name]
        return packed_form(tensor, self.info(tensor.parts["scale"]).dtype, self.read_part)

    def read_packed(self, name: str, form: PackedForm) -> PackedArrays:
        """Return a quantised weight; raises as `read`."""
        if name not in self.grouped.quantised:
            return self.files[name].read_packed(name, form)
        with self._named_faults():
            return pack(self.grouped.quantised[name], self.read_part, form)

    def read_part(self, name: str) -> np.ndarray:
        """Return a read-only view of one stored tensor, codes as uint8."""
        return self.files[name].read_stored(name)

    @contextmanager
    def _named_faults(self) -> Iterator[None]:
        try:
            yield
        except DequantiseError as error:
            raise CheckpointError(
                self.files[error.tensor].path, str(error), "The file is damaged, or was written wrongly: get it again."
            ) from error

    def release(self, name: str) -> None:
        """Let the system drop the pages of a weight."""
        quantised = self.grouped.quantised.get(name)
        for part in [name] if quantised is None else quantised.parts.values():
            self.files[part].release(part)


def open_directory(path: str | os.PathLike[str]) -> CheckpointDirectory:
    """Open a checkpoint directory and check config.json, the index and every header.

    As in transformers, model.safetensors precedes an index; `pytorch_model.bin` is read without both.

    Raises:
        CheckpointError: no directory, config.json or weights (other pickles are refused), or all faults of index and
            headers.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise CheckpointError(directory, "expected a checkpoint directory, found none")
    if not (directory / "config.json").exists():
        raise CheckpointError(directory, f"expected config.json, found {_listing(directory)}")
    config = read_config(directory / "config.json")
    notes, unindexed = tuple[str, ...](), dict[str, ArrayFile]()
    if (directory / SINGLE).exists():
        if (directory / INDEX).exists():
            notes = (f"{INDEX} is not used: {SINGLE} is there too",)
        file = open_safetensors(directory / SINGLE)
        files = dict.fromkeys(file.tensors, file)
    elif (directory / INDEX).exists():
        files, unindexed, absent = _open_shards(directory, config)
        notes = tuple(absent) + tuple(
            f"{file.path.name} holds {name}, which {INDEX} does not list" for name, file in unindexed.items()
        )
    elif (directory / TORCH).exists():
        file = open_torch(directory / TORCH)
        files = dict.fromkeys(file.tensors, file)
    else:
        raise CheckpointError(directory, *_no_weights(directory))
    nvidia = read_object(directory / NVIDIA, MAX_CONFIG_BYTES) if (directory / NVIDIA).exists() else None
    for name, method in SEPARATE.items():
        if not quantisation_entries(config) and (directory / name).exists():
            separate = read_object(directory / name, MAX_CONFIG_BYTES)
            config = config | {"quantization_config": {"quant_method": method} | separate}
    settings = read_settings(config, nvidia)
    if any(file.metadata.get("format") == "mlx" for file in files.values()):
        settings = refused("mlx", "safetensors: format mlx")
    tensors = {name: file.tensors[name] for name, file in files.items()}
    grouped = group_tensors(
        tensors, lambda name: files[name].read_stored(name), settings.hints, lambda name: files[name].metadata
    )
    return CheckpointDirectory(
        directory, config, MappingProxyType(files), grouped, settings, notes, MappingProxyType(unindexed), nvidia
    )


def read_config(path: Path) -> dict[str, Any]:
    """Read a config.json of at most 16 MB.

    `{"__float__": "Infinity"}` of transformers 5 is a float.

    Raises:
        CheckpointError: missing, too long, or not a JSON object without duplicate keys.
    """
    return read_object(path, MAX_CONFIG_BYTES, _config_value)


def _config_value(pairs: list[tuple[str, Any]]) -> Any:
    if len(pairs) == 1 and pairs[0][0] == "__float__":
        text = pairs[0][1]
        if text not in _FLOATS:
            raise ValueError(f'"__float__": expected one of {", ".join(_FLOATS)}, found {text!r}')
        return float(text)
    return unique_keys(pairs)


def _open_shards(
    directory: Path, config: Mapping[str, Any]
) -> tuple[dict[str, ArrayFile], dict[str, ArrayFile], list[str]]:
    weight_map = read_object(directory / INDEX, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(directory / INDEX, "expected weight_map, an object of tensor name -> file name")
    faults: list[str] = []
    shards: dict[str, ArrayFile | None] = {}
    for name, file_name in weight_map.items():
        if isinstance(file_name, str) and file_name in shards:
            continue
        if not isinstance(file_name, str) or not _is_inside(file_name):
            faults.append(f"{name}: expected a safetensors file inside the directory, the index says {file_name!r}")
        else:
            shards[file_name] = _open_shard(directory, file_name, faults)
    files: dict[str, ArrayFile] = {}
    skips = _skips(config)
    absent: list[str] = []
    for name, file_name in weight_map.items():
        shard = shards.get(file_name) if isinstance(file_name, str) else None
        if shard is None:
            continue
        if name in shard.tensors:
            files[name] = shard
        elif skips(name):
            absent.append(name)
        else:
            faults.append(f"{name}: the index says {file_name}, which has no tensor of that name")
    if faults:
        raise CheckpointError(directory, faults)
    unindexed = {
        name: shard for shard in shards.values() if shard for name in shard.tensors if files.get(name) is not shard
    }
    note = f"{INDEX} lists tensors that no file has and this model does not use: {listed(absent)}"
    return files, unindexed, [note] if absent else []


def _skips(config: Mapping[str, Any]) -> Callable[[str], bool]:
    try:
        family = family_of(config)
    except UnsupportedModel:
        return lambda name: False
    return lambda name: family.skips(name) or family.skips(family.canonical(name))


def _open_shard(directory: Path, file_name: str, faults: list[str]) -> ArrayFile | None:
    try:
        return open_safetensors(directory / file_name)
    except CheckpointError as error:
        faults.extend(f"{file_name}: {fault}" for fault in error.faults)
        return None


def _is_inside(file_name: str) -> bool:
    """Whether a file name, not resolved (links in the Hub's cache), stays in the directory."""
    parts = PurePosixPath(file_name)
    windows = PureWindowsPath(file_name)
    absolute = parts.is_absolute() or bool(windows.drive) or bool(windows.root)
    odd = "\\" in file_name or "\0" in file_name or ".." in parts.parts
    return not absolute and not odd and file_name.endswith(".safetensors")


def _no_weights(directory: Path) -> tuple[str, str]:
    names = [entry.name for entry in directory.iterdir()]
    expected = f"expected {SINGLE}, {INDEX} or {TORCH}, found {_listing(directory)}"
    pickles = [name for name in names if name.endswith(PICKLES)]
    if any(name.endswith(".safetensors") for name in names):
        return expected, f"Shards need their {INDEX}: copy it from where the checkpoint comes from."
    if pickles:
        advice = (
            f"A pickle checkpoint can run any code when it is opened, so it is refused; of a {TORCH} only tensors are "
            "read. Convert it where you trust it: load it with transformers and call save_pretrained, which writes "
            "safetensors."
        )
        return f"pickle checkpoint ({', '.join(sorted(pickles)[:5])}): {expected}", advice
    return expected, "Point at the folder that holds config.json and the safetensors files."


def _listing(directory: Path) -> str:
    return listed(sorted(entry.name + "/" * entry.is_dir() for entry in directory.iterdir())) or "an empty directory"


def listed(names: Iterable[str], limit: int = 12) -> str:
    """Join at most `limit` names; count the others."""
    names = list(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
