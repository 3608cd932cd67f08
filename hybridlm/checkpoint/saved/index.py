"""Index of a checkpoint that `LM.save` wrote, checked against its files when it is opened.

    config.json, tokenizer.json, ...   as in the checkpoint that was loaded
    weights/                           an Orbax checkpoint: an uncompressed Zarr 2 array for each parameter, or piece
    hybridlm.json                      the index: the file and the place of each tile of a parameter

Every data file below `weights` is a tile of a parameter, with the bytes as they are in memory. Tiles are read directly
instead of by Orbax, which takes longer to import than the weights take to read.
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
from hybridlm.quantised.packed import codes_dtype
from models.ops.quantised_codes import TWO_IN_A_BYTE, Codes

INDEX, WEIGHTS = "hybridlm.json", "weights"
FORMAT = 1
"""Version of the index; others are refused."""
AGAIN = "Save it again from the original checkpoint."
MAX_INDEX_BYTES = 256 * MEGABYTE

_ARRAYS = {**DTYPES, "int8": np.dtype(np.int8), "uint8": np.dtype(np.uint8)}


class Tile(NamedTuple):
    """A rectangle of a parameter in a file of its own, in row-major order.

    Attributes:
        file: path below the checkpoint's directory.
        at: index of its first element in the parameter.
        shape: its sizes.
        checksum: of its bytes.
    """

    file: str
    at: tuple[int, ...]
    shape: tuple[int, ...]
    checksum: int


@dataclass(frozen=True)
class SavedParameter:
    """A parameter of a saved model.

    Attributes:
        dtype: of its elements.
        shape: of the whole parameter.
        tiles: cover it.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    tiles: tuple[Tile, ...]


ROLES = ("codes", "scale", "whole", "zero")
"""Arrays of a quantised parameter, as `QuantisedWeight` has them; each is saved as a parameter of its own."""
KINDS: tuple[Codes, ...] = ("e4m3", "e2m1", "int8", "int4")


@dataclass(frozen=True)
class PackedParameter:
    """A quantised parameter of a saved model.

    Attributes:
        kind: of its codes.
        inputs: entries of a row.
        parts: role -> name of the saved array.
    """

    kind: Codes
    inputs: int
    parts: Mapping[str, str]


@dataclass(frozen=True)
class SavedDirectory:
    """An opened checkpoint that `LM.save` wrote. No parameter has been read.

    Attributes:
        path: the directory.
        config: config.json.
        family: name of the model family.
        dtype: of the matrices.
        fingerprint: of the original checkpoint.
        parameters: by dotted name; the arrays of quantised ones have names of their own.
        packed: quantised parameters by dotted name.
    """

    path: Path
    config: dict[str, Any]
    family: str
    dtype: str
    fingerprint: str
    parameters: Mapping[str, SavedParameter]
    packed: Mapping[str, PackedParameter] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name of each parameter of the model -> its shape."""
        parts = {part for one in self.packed.values() for part in one.parts.values()}
        shapes = {name: one.shape for name, one in self.parameters.items() if name not in parts}
        for name, one in self.packed.items():
            shapes[name] = (*self.parameters[one.parts["codes"]].shape[:-1], one.inputs)
        return shapes


def checksum(content: np.ndarray) -> int:
    """Return the sum of the 64-bit words of an array's bytes, padded with zeros, modulo 2**64.

    It detects a damaged disk or a truncated file at the speed of memory; it does not protect against tampering.
    """
    raw = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
    whole = len(raw) // 8 * 8
    rest = int.from_bytes(raw[whole:].tobytes(), "little")
    return (int(np.add.reduce(raw[:whole].view(np.uint64), dtype=np.uint64)) + rest) % 2**64


def is_saved(directory: Path) -> bool:
    """Whether `LM.save` wrote a directory."""
    return (directory / INDEX).exists()


def open_saved(directory: Path) -> SavedDirectory:
    """Open a checkpoint that `LM.save` wrote; check the sizes of its files, and the content of the small ones.

    Raises:
        CheckpointError: another format version, or an index that cannot be read; or every file that is missing, of
            another size, or changed since it was saved.
    """
    index = read_object(directory / INDEX, MAX_INDEX_BYTES)
    if index.get("format") != FORMAT:
        raise CheckpointError(
            directory / INDEX,
            f"expected format {FORMAT}, found {index.get('format')!r} (written by hybridlm {index.get('hybridlm')!r})",
            "Load it with the version that wrote it, or save the original checkpoint anew.",
        )
    named = index.pop("sha256", None)
    if named != digest(dump_index(index)):
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
    faults += [fault for one in parameters.values() for tile in one.tiles if (fault := _fault(directory, one, tile))]
    if faults:
        raise CheckpointError(directory, faults, AGAIN)
    config = read_config(directory / "config.json")
    return SavedDirectory(directory, config, family, dtype, fingerprint, parameters, packed)


def dump_index(index: Mapping[str, Any]) -> bytes:
    """Return the text of an index. Its SHA-256 is computed without the field "sha256"."""
    return json.dumps(index).encode("ascii")


def digest(content: bytes) -> str:
    """Return the SHA-256 of a small file."""
    return hashlib.sha256(content).hexdigest()


def _parameter(fields: Mapping[str, Any]) -> SavedParameter:
    tiles = tuple(Tile(one["file"], tuple(one["at"]), tuple(one["shape"]), one["checksum"]) for one in fields["tiles"])
    shape = tuple(fields["shape"])
    for tile in tiles:
        if ".." in PurePosixPath(tile.file).parts or not tile.file.startswith(f"{WEIGHTS}/"):
            raise ValueError(f"{tile.file!r} is not below {WEIGHTS}")
        ends = [at + size for at, size in zip(tile.at, tile.shape, strict=True)]
        if any(at < 0 or end > size for at, end, size in zip(tile.at, ends, shape, strict=True)):
            raise ValueError(f"{tile.file}: {tile.shape} at {tile.at} is not within {shape}")
    if sum(math.prod(tile.shape) for tile in tiles) != math.prod(shape):
        raise ValueError(f"tiles do not cover {shape}")
    return SavedParameter(_ARRAYS[fields["dtype"]], shape, tiles)


def _packed(name: str, fields: Mapping[str, Any], parameters: Mapping[str, SavedParameter]) -> PackedParameter:
    parts = {role: f"{name}.{role}" for role in ROLES if f"{name}.{role}" in parameters}
    kind, inputs = fields["kind"], fields["inputs"]
    if kind not in KINDS or type(inputs) is not int or name in parameters:
        raise ValueError(f"{name}: {kind!r} of {inputs!r} entries")
    arrays = {role: parameters[part] for role, part in parts.items()}
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
    return PackedParameter(kind, inputs, parts)


def _small_fault(directory: Path, name: str, expected: str) -> str | None:
    parts = PurePosixPath(name).parts
    if not 1 <= len(parts) <= 2 or {"..", "/"} & {*parts}:
        return f"{name}: expected a file of this folder or of one in it"
    path = directory.joinpath(*parts)
    if not path.is_file():
        return f"missing {name}"
    return None if digest(path.read_bytes()) == expected else f"{name}: is not what was saved"


def _fault(directory: Path, parameter: SavedParameter, tile: Tile) -> str | None:
    expected = math.prod(tile.shape) * parameter.dtype.itemsize
    try:
        found = os.stat(directory / tile.file).st_size
    except FileNotFoundError:
        return f"missing {tile.file}"
    return None if found == expected else f"{tile.file}: expected {expected} bytes, found {found}"
