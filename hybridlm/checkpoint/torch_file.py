"""Reader of `pytorch_model.bin`: torch's zip archive (1.6 or newer) of a plain state dict.

Entries are uncompressed: arrays are views of the mapped file. Nothing is unpickled or executed (`state_dict`).
"""

import io
import math
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from hybridlm.checkpoint.safetensors import DTYPE_BITS, MAX_RANK, ArrayFile
from hybridlm.checkpoint.state_dict import StateDictError, Storage, read_state_dict
from hybridlm.errors import CheckpointError
from hybridlm.quantised.shapes import TensorInfo

MAX_DIRECTORY_BYTES = 16_000_000
"""Most bytes of the archive's table of entries, and of the tensors' description."""
LOCAL_HEADER_BYTES = 30
_ZIP_ERRORS = (
    zipfile.BadZipFile, NotImplementedError, OSError, ValueError, KeyError, EOFError, OverflowError, struct.error
)  # fmt: skip
"""Errors of the library for damaged archives: places out of range, unknown features, short reads."""
ADVICE = (
    "Only plain state dicts are read, as torch.save(model.state_dict(), ...) of torch 1.6 or newer writes them; no "
    "code of a file runs. Convert another file where you trust it: load it with transformers and call "
    "save_pretrained, which writes safetensors."
)


def open_torch(path: str | os.PathLike[str]) -> ArrayFile:
    """Open a `pytorch_model.bin`; raises CheckpointError for anything but a plain state dict."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(path, "expected a file, found no regular file")
    try:
        with _LimitedReads(path) as file:
            tensors = _read_tensors(file)
    except StateDictError as error:
        raise CheckpointError(path, f"data.pkl: {error}", ADVICE) from error
    except _ZIP_ERRORS as error:
        raise CheckpointError(path, f"not a zip archive of torch: {str(error) or repr(error)}", ADVICE) from error
    return ArrayFile(path, tensors)


class _LimitedReads(io.FileIO):
    """A file without reads above `MAX_DIRECTORY_BYTES`, for any claimed size."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > MAX_DIRECTORY_BYTES:
            raise ValueError(f"a table of {size} bytes, above the limit of {MAX_DIRECTORY_BYTES}")
        return super().read(MAX_DIRECTORY_BYTES if size is None or size < 0 else size)


def _read_tensors(file: _LimitedReads) -> Mapping[str, TensorInfo]:
    """Return the archive's tensors, with places from the first byte of the file."""
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        if len(entries) < len(archive.infolist()):
            raise ValueError("several entries with one name")
        tables = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(tables) != 1:
            raise ValueError(f"expected one entry NAME/data.pkl, found {len(tables)}")
        root = tables[0].removesuffix("data.pkl")
        order = _small(archive, entries[root + "byteorder"]) if root + "byteorder" in entries else b"little"
        if order != b"little":
            raise ValueError(f"byteorder: expected b'little', found {order!r:.40}")
        stored = read_state_dict(_small(archive, entries[tables[0]]))
    size, starts = os.fstat(file.fileno()).st_size, dict[Storage, int]()
    tensors = {}
    for name, tensor in stored.items():
        storage, width = tensor.storage, DTYPE_BITS[tensor.storage.dtype] // 8
        if len(tensor.shape) > MAX_RANK:
            raise ValueError(f"{name}: expected at most {MAX_RANK} dimensions, found {len(tensor.shape)}")
        if storage not in starts:
            entry = entries.get(f"{root}data/{storage.key}")
            if entry is None:
                raise ValueError(f"{name}: no entry data/{storage.key}")
            if entry.file_size != storage.count * width:
                expected = f"{storage.count} numbers of {width} bytes"
                raise ValueError(f"{name}: data/{storage.key}: expected {expected}, found {entry.file_size} bytes")
            starts[storage] = _start(file, entry, size)
        begin = starts[storage] + tensor.offset * width
        tensors[name] = TensorInfo(storage.dtype, tensor.shape, begin, begin + math.prod(tensor.shape) * width)
    return MappingProxyType(dict(sorted(tensors.items(), key=lambda item: item[1].begin)))


def _small(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    _require_stored(entry)
    if entry.file_size > MAX_DIRECTORY_BYTES:
        raise ValueError(f"{entry.filename}: {entry.file_size} bytes, above the limit of {MAX_DIRECTORY_BYTES}")
    return archive.read(entry)


def _require_stored(entry: zipfile.ZipInfo) -> None:
    encrypted = entry.flag_bits & 1
    if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size or encrypted:
        raise ValueError(f"{entry.filename!r:.200}: expected an entry without compression and encryption")


def _start(file: _LimitedReads, entry: zipfile.ZipInfo, size: int) -> int:
    """Return the first byte of an entry's content, after its local header."""
    _require_stored(entry)
    file.seek(entry.header_offset)
    header = file.read(LOCAL_HEADER_BYTES)
    name, extra = (int.from_bytes(header[part : part + 2], "little") for part in (26, 28))
    if not header.startswith(b"PK\3\4") or file.read(name) != entry.orig_filename.encode():
        raise ValueError(f"{entry.filename!r:.200}: expected its local header at byte {entry.header_offset}")
    start = entry.header_offset + LOCAL_HEADER_BYTES + name + extra
    if start + entry.file_size > size:
        raise ValueError(f"{entry.filename!r:.200}: truncated: ends at byte {start + entry.file_size} of {size}")
    return start
