"""Index of a checkpoint of `LM.save`, checked against its files when it is opened.

    config.json, tokenizer.json, ...   copies from the original checkpoint
    weights/                           an Orbax checkpoint: an uncompressed Zarr 2 array for each parameter, or piece
    hybridlm.json                      the index: the file and the place of each tile of a parameter

Tiles are read without Orbax: its import takes longer than the reading.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from hybridlm.checkpoint.cast import DTYPES
from hybridlm.checkpoint.directory import read_config
from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import MEGABYTE, read_object
from hybridlm.quantised.packed import PackedForm, codes_dtype
from models.ops.quantised_codes import TWO_IN_A_BYTE, Codes

INDEX, WEIGHTS = "hybridlm.json", "weights"
FORMAT = 1
"""Version of the index; others are refused."""
AGAIN = "Save it again from the original checkpoint."
MAX_INDEX_BYTES = 256 * MEGABYTE

_ARRAYS = {**DTYPES, "int8": np.dtype(np.int8), "uint8": np.dtype(np.uint8)}


class Tile(NamedTuple):
    """A rectangle of a parameter in one file, in row-major order, from element `start`."""

    file: str
    start: tuple[int, ...]
    shape: tuple[int, ...]
    checksum: int


@dataclass(frozen=True)
class SavedParameter:
    dtype: np.dtype
    shape: tuple[int, ...]
    tiles: tuple[Tile, ...]


ROLES = ("codes", "scale", "whole", "zero")
"""Arrays of a `QuantisedWeight`, each saved like a parameter."""
KINDS: tuple[Codes, ...] = ("e4m3", "e2m1", "int8", "int4")


@dataclass(frozen=True)
class SavedDirectory:
    """An opened checkpoint of `LM.save`, without its parameters.

    Attributes:
        parameters: by dotted name; a quantised parameter has one for each role, NAME.ROLE.
    """

    path: Path
    config: dict[str, Any]
    family: str
    dtype: str
    fingerprint: str
    parameters: Mapping[str, SavedParameter]
    packed: Mapping[str, PackedForm] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        parts = {f"{name}.{role}" for name, form in self.packed.items() for role in form.roles}
        shapes = {name: parameter.shape for name, parameter in self.parameters.items() if name not in parts}
        for name, form in self.packed.items():
            shapes[name] = (*self.parameters[f"{name}.codes"].shape[:-1], form.inputs)
        return shapes


def checksum(content: np.ndarray) -> int:
    """Return the sum of an array's 64-bit words, padded with zeros, modulo 2**64.

    It detects damage at the speed of memory, not tampering.
    """
    raw = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
    end = len(raw) // 8 * 8
    rest = int.from_bytes(raw[end:].tobytes(), "little")
    return (int(np.add.reduce(raw[:end].view(np.uint64), dtype=np.uint64)) + rest) % 2**64


def is_saved(directory: Path) -> bool:
    return (directory / INDEX).exists()


def open_saved(directory: Path) -> SavedDirectory:
    """Open a checkpoint of `LM.save`; check file sizes and the content of small files.

    Raises:
        CheckpointError: another version, an unreadable index, or every missing or changed file.
    """
    index = read_object(directory / INDEX, MAX_INDEX_BYTES)
    if index.get("format") != FORMAT:
        raise CheckpointError(
            directory / INDEX,
            f"expected format {FORMAT}, found {index.get('format')!r} (written by hybridlm {index.get('hybridlm')!r})",
            "Load it with the version that wrote it, or save the original checkpoint anew.",
        )
    if index.pop("sha256", None) != digest(dump_index(index)):
        raise CheckpointError(directory / INDEX, "is not what was saved, by its checksum", AGAIN)
    try:
        parameters = {name: _parameter(fields) for name, fields in index["parameters"].items()}
        packed = {name: _packed(name, fields, parameters) for name, fields in index.get("packed", {}).items()}
        files, family, dtype, fingerprint = (index[name] for name in ("files", "family", "dtype", "fingerprint"))
        if dtype not in DTYPES or "config.json" not in dict(files):
            raise ValueError(f"dtype {dtype!r}, files {', '.join(files)}")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        fault = f"is not what LM.save writes: {type(error).__name__}: {error}"
        raise CheckpointError(directory / INDEX, fault) from error
    faults = [fault for name, digest in files.items() if (fault := _small_fault(directory, name, digest))]
    tiles = ((parameter, tile) for parameter in parameters.values() for tile in parameter.tiles)
    faults += [fault for parameter, tile in tiles if (fault := _fault(directory, parameter, tile))]
    if faults:
        raise CheckpointError(directory, faults, AGAIN)
    config = read_config(directory / "config.json")
    return SavedDirectory(directory, config, family, dtype, fingerprint, parameters, packed)


def dump_index(index: Mapping[str, Any]) -> bytes:
    """Return an index as text; its SHA-256 leaves out the field "sha256"."""
    return json.dumps(index).encode("ascii")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _parameter(fields: Mapping[str, Any]) -> SavedParameter:
    tiles = tuple(
        Tile(entry["file"], tuple(entry["at"]), tuple(entry["shape"]), entry["checksum"]) for entry in fields["tiles"]
    )
    shape = tuple(fields["shape"])
    for tile in tiles:
        if ".." in PurePosixPath(tile.file).parts or not tile.file.startswith(f"{WEIGHTS}/"):
            raise ValueError(f"{tile.file!r} is not below {WEIGHTS}")
        ends = [start + size for start, size in zip(tile.start, tile.shape, strict=True)]
        if any(start < 0 or end > size for start, end, size in zip(tile.start, ends, shape, strict=True)):
            raise ValueError(f"{tile.file}: {tile.shape} at {tile.start} is not within {shape}")
    if sum(math.prod(tile.shape) for tile in tiles) != math.prod(shape):
        raise ValueError(f"tiles do not cover {shape}")
    return SavedParameter(_ARRAYS[fields["dtype"]], shape, tiles)


def _packed(name: str, fields: Mapping[str, Any], parameters: Mapping[str, SavedParameter]) -> PackedForm:
    kind, inputs = fields["kind"], fields["inputs"]
    if kind not in KINDS or type(inputs) is not int or name in parameters:
        raise ValueError(f"{name}: {kind!r} of {inputs!r} entries")
    arrays = {role: parameters[f"{name}.{role}"] for role in ROLES if f"{name}.{role}" in parameters}
    *lead, groups = arrays["scale"].shape
    stored = inputs // 2 if kind in TWO_IN_A_BYTE else inputs
    codes = codes_dtype(kind)
    shapes = {"codes": (*lead, stored), "scale": (*lead, groups), "whole": (*lead, 1), "zero": (*lead, groups)}
    for role, array in arrays.items():
        allowed = {"codes": [codes], "zero": [codes, np.dtype(np.float32)]}.get(role, DTYPES.values())
        if array.shape != shapes[role] or array.dtype not in allowed:
            raise ValueError(f"{name}.{role}: {array.dtype} {array.shape}, expected {shapes[role]} of {kind}")
    if "codes" not in arrays or groups < 1 or inputs % groups or (kind in TWO_IN_A_BYTE and inputs % 2):
        raise ValueError(f"{name}: {groups} groups of {inputs} entries")
    zero = arrays["zero"].dtype.name if "zero" in arrays else None
    return PackedForm(kind, inputs, groups, arrays["scale"].dtype.name, "whole" in arrays, zero)


def _small_fault(directory: Path, name: str, expected: str) -> str | None:
    parts = PurePosixPath(name).parts
    if not 1 <= len(parts) <= 2 or {"..", "/"} & {*parts}:
        return f"{name}: expected a file of this folder or of a folder in it"
    path = directory.joinpath(*parts)
    if not path.is_file():
        return f"missing {name}"
    return None if digest(path.read_bytes()) == expected else f"{name}: is not what was saved"


def _fault(directory: Path, parameter: SavedParameter, tile: Tile) -> str | None:
    expected = math.prod(tile.shape) * parameter.dtype.itemsize
    try:
        size = os.stat(directory / tile.file).st_size
    except FileNotFoundError:
        return f"missing {tile.file}"
    return None if size == expected else f"{tile.file}: expected {expected} bytes, found {size}"
