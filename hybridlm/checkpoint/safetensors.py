"""Files of tensors: their interface, and the reader and writer of safetensors.

Format: https://huggingface.co/docs/safetensors. The library gives NumPy no view of the mapped file, does not list every
fault of a header, and copies arrays to write them.
"""

import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from hybridlm.errors import CheckpointError
from hybridlm.files.atomic import FileVersion
from hybridlm.quantised.packed import PackedArrays, PackedForm
from hybridlm.quantised.shapes import TensorInfo
from ir_passes.files.strict_json import parse_json

MAX_HEADER_BYTES = 100_000_000
# NumPy's limit; it also bounds the work on a hostile header.
MAX_RANK = 64

DTYPE_BITS: Mapping[str, int] = MappingProxyType(
    {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
    | dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8)
    | dict.fromkeys(("U16", "I16", "F16", "BF16"), 16)
    | dict.fromkeys(("U32", "I32", "F32"), 32)
    | dict.fromkeys(("U64", "I64", "F64", "C64"), 64)
)
STORED: Mapping[str, np.dtype] = MappingProxyType(
    {
        "BF16": np.dtype(ml_dtypes.bfloat16),
        "F16": np.dtype("<f2"),
        "F32": np.dtype("<f4"),
        "I8": np.dtype("i1"),
        "I32": np.dtype("<i4"),
        "I64": np.dtype("<i8"),
    }
    | dict.fromkeys(("U8", "F8_E4M3", "F8_E8M0"), np.dtype("u1"))
)
"""NumPy dtype by format dtype; floats of 8 bits are codes."""
READABLE: Mapping[str, np.dtype] = MappingProxyType({name: STORED[name] for name in ("BF16", "F16", "F32")})


class TensorFile:
    """A file of tensors. Every method raises KeyError without a tensor of the name.

    Args:
        path: or name of another source.
    """

    def __init__(self, path: Path, tensors: Mapping[str, TensorInfo]):
        self.path, self.tensors = path, tensors

    def read(self, name: str) -> np.ndarray:
        """Return a read-only view of a float32, float16 or bfloat16 tensor; raises CheckpointError."""
        raise NotImplementedError

    def read_stored(self, name: str) -> np.ndarray:
        """Return a read-only view, codes as uint8; raises CheckpointError."""
        return self.read(name)

    def packed_form(self, name: str) -> PackedForm | None:
        return None

    def read_packed(self, name: str, form: PackedForm) -> PackedArrays:
        """Return the arrays in packed form; raises CheckpointError."""
        raise NotImplementedError

    def release(self, name: str) -> None:
        """Let the system drop the pages of a tensor; it can be read again."""


class ArrayFile(TensorFile):
    """A read-only mapped file of plain arrays, with the dtypes of safetensors.

    If the file is rewritten in place, views change or the process crashes; reading a shortened file raises
    CheckpointError.

    Args:
        data_start: byte 0 of a tensor's `begin` and `end`.

    Attributes:
        tensors: in the order of the data.
    """

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, TensorInfo],
        data_start: int = 0,
        metadata: Mapping[str, str] = MappingProxyType({}),
    ):
        super().__init__(path, tensors)
        self._data_start, self.metadata = data_start, metadata
        with path.open("rb") as file:
            self.version = FileVersion.of(os.fstat(file.fileno()))
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, name: str) -> np.ndarray:
        """Return a read-only view of a tensor in bfloat16, float16 or float32."""
        if self.tensors[name].dtype not in READABLE:
            raise CheckpointError(self.path, f"{name}: {unreadable(self.tensors[name].dtype)}")
        return self.read_stored(name)

    def read_stored(self, name: str) -> np.ndarray:
        """Return a read-only view of a tensor of a dtype in `STORED`, codes as uint8."""
        info = self.tensors[name]
        if info.dtype not in STORED:
            raise CheckpointError(self.path, f"{name}: {unreadable(info.dtype)}")
        kind, (begin, end) = STORED[info.dtype], self.place(name)
        # frombuffer refuses an empty view at the end of its buffer.
        if begin == end:
            return np.empty(info.shape, kind)
        return np.frombuffer(self._map, kind, math.prod(info.shape), begin).reshape(info.shape)

    def place(self, name: str) -> tuple[int, int]:
        info, size = self.tensors[name], self._map.size()
        if size < self._data_start + info.end:
            fault = f"{name}: the file ends at byte {size}; it was longer when it was opened. Load again."
            raise CheckpointError(self.path, fault)
        return self._data_start + info.begin, self._data_start + info.end

    def release(self, name: str) -> None:
        info = self.tensors[name]
        start = -(-(self._data_start + info.begin) // mmap.PAGESIZE) * mmap.PAGESIZE
        length = self._data_start + info.end - start
        if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, length)


def open_safetensors(path: str | os.PathLike[str]) -> ArrayFile:
    """Open a safetensors file; raises CheckpointError with every fault of the header."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(path, "expected a safetensors file, found no regular file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = _read_header(path, file.read(8), file.read, size)
    data_start = 8 + len(header)
    tensors, metadata = _parse_header(path, header, size - data_start)
    return ArrayFile(path, tensors, data_start, metadata)


def unreadable(dtype: str) -> str:
    message = f"dtype {dtype} is not read, expected one of {', '.join(READABLE)}"
    if DTYPE_BITS[dtype] <= 8 or dtype in ("I32", "U32"):
        message += " (codes of a quantised weight need scales of a known form)"
    return message


def _read_header(path: Path, prefix: bytes, read: Any, size: int) -> bytes:
    if len(prefix) < 8:
        raise CheckpointError(path, f"truncated: a safetensors file has at least 8 bytes, found {size}")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(path, f"header length {length} is above the limit of {MAX_HEADER_BYTES} bytes")
    if length > size - 8:
        raise CheckpointError(path, f"truncated: a header of {length} bytes, found {size - 8} bytes after its length")
    return read(length)


def _parse_header(path: Path, header: bytes, available: int) -> tuple[Mapping[str, TensorInfo], Mapping[str, str]]:
    if not header.startswith(b"{"):
        raise CheckpointError(
            path, f"not a safetensors file: expected a header that begins with '{{', got {header[:8]!r}"
        )
    try:
        entries = parse_json(header)
    except ValueError as error:
        raise CheckpointError(path, f"the header cannot be read as JSON: {error}") from error
    faults: list[str] = []
    metadata = entries.pop("__metadata__", None)
    # The library writes null where a caller gives no metadata.
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        faults.append(f"__metadata__: expected an object of strings, found {metadata!r:.120}")
        metadata = {}
    tensors: dict[str, TensorInfo] = {}
    for name, entry in entries.items():
        info = _parse_entry(name, entry, faults)
        if info is not None:
            tensors[name] = info
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)))
    # A hole would report the same fault twice.
    if len(tensors) == len(entries):
        _check_layout(ordered, available, faults)
    if faults:
        raise CheckpointError(path, faults)
    return MappingProxyType(ordered), MappingProxyType(metadata)


def _parse_entry(name: str, entry: Any, faults: list[str]) -> TensorInfo | None:
    if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
        faults.append(f"{name!r}: the name is not valid Unicode")
        return None
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        faults.append(f"{name}: expected the keys dtype, shape and data_offsets, found {entry!r:.120}")
        return None
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        faults.append(f"{name}: unknown dtype {dtype!r:.120}, expected one of {', '.join(DTYPE_BITS)}")
        return None
    if not _sizes(shape) or len(shape) > MAX_RANK:
        faults.append(f"{name}: expected a shape of at most {MAX_RANK} sizes, found {shape!r:.120}")
        return None
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        faults.append(f"{name}: expected data_offsets [begin, end] with begin <= end, found {offsets!r:.120}")
        return None
    begin, end = offsets
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits != (end - begin) * 8:
        needed = f"{bits // 8} bytes" if bits % 8 == 0 else f"{bits} bits, not a whole number of bytes,"
        faults.append(f"{name}: {dtype}{shape!r:.120} needs {needed} but data_offsets {offsets} hold {end - begin}")
        return None
    return TensorInfo(dtype, tuple(shape), begin, end)


def _check_layout(ordered: Mapping[str, TensorInfo], available: int, faults: list[str]) -> None:
    position, predecessor = 0, "the header"
    for name, info in ordered.items():
        if info.end > available:
            faults.append(f"{name}: truncated: its data ends at byte {info.end}, the file's at {available}")
        if info.begin < position:
            faults.append(f"{name}: overlaps {predecessor}: begins at byte {info.begin}, which ends at {position}")
        elif info.begin > position:
            faults.append(f"{name}: a hole of {info.begin - position} bytes between it and {predecessor}")
        if info.end >= position:
            position, predecessor = info.end, name
    if position < available:
        faults.append(f"{available - position} bytes after the last tensor: expected {position} bytes of data")


def _sizes(value: Any) -> bool:
    # JSON true is an int in Python.
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


NAMES: Mapping[str, str] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float8_e4m3fn": "F8_E4M3",
                            "int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8"}  # fmt: skip


Types = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype, one of `NAMES`, by name of an array."""


def safetensors_header(types: Types, metadata: Mapping[str, str]) -> bytes:
    end, header = 0, dict[str, object]({"__metadata__": dict(metadata)})
    for name, (shape, dtype) in types.items():
        begin, end = end, end + math.prod(shape) * np.dtype(dtype).itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return (len(text) + -len(text) % 8).to_bytes(8, "little") + text + b" " * (-len(text) % 8)


def write_safetensors(file: BinaryIO, types: Types, arrays: Iterable[np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a header, then the arrays; raises ValueError if one differs from its type."""
    file.write(safetensors_header(types, metadata))
    for (name, (shape, dtype)), array in zip(types.items(), arrays, strict=True):
        if (array.shape, array.dtype.name) != (shape, dtype):
            raise ValueError(f"{name}: expected {dtype}{list(shape)}, got {array.dtype.name}{list(array.shape)}")
        file.write(array.tobytes())


def types_of(arrays: Mapping[str, np.ndarray]) -> Types:
    return {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
