"""Header of a GGUF file: metadata, and the place of each tensor.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package's reader trusts the lengths in the
file; this one is bounded.
"""

import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hybridlm.errors import CheckpointError, require_extra
from hybridlm.quantised.shapes import TensorInfo

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_KEYS, MAX_TENSORS = 65_536, 1 << 20
MAX_ITEMS = 1 << 22
"""Items of all metadata arrays; a vocabulary of 250,000 tokens and its merges are 1,000,000."""
MAX_TEXT_BYTES = 64 << 20
"""Bytes of all metadata strings."""
MAX_DIMS = 4
BLOCK_TYPES = frozenset(
    """Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K TQ1_0 TQ2_0 MXFP4 NVFP4 IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S
    IQ1_S IQ1_M IQ4_NL IQ4_XS""".split()
)
"""Readable quantised types; `gguf.quants` dequantises them."""
PLAIN_TYPES = frozenset({"F32", "F16", "BF16"})
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY, _FLOAT32 = 8, 9, 6


@dataclass(frozen=True)
class GgufHeader:
    """Metadata and tensor places of a GGUF file.

    Attributes:
        metadata: numbers, strings, or lists of them.
        tensors: type, shape (outermost dimension first) and bytes by llama.cpp's name.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """Read the header of a GGUF file, but no tensor.

    Raises:
        CheckpointError: unknown version, damaged header, tensors outside of the file or of an unreadable type, or one
            part of several.
    """
    path = Path(path)
    require_extra("GGUF files", "gguf", "gguf")
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < 24:
            raise CheckpointError(path, "truncated: a GGUF file has at least 24 bytes")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _HeaderReader(path, mapped).header()


class _HeaderReader:
    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path, self.mapped, self.size = path, mapped, len(mapped)
        self.position = self.items = self.text_bytes = 0

    def header(self) -> GgufHeader:
        if self.take(4) != b"GGUF":
            raise CheckpointError(self.path, f"not a GGUF file: it begins with {self.mapped[:4]!r}")
        version = self.scalar("<I")
        if version not in VERSIONS:
            swapped = version & 0xFFFF == 0
            raise CheckpointError(
                self.path,
                "is in big-endian order, expected little-endian"
                if swapped
                else f"is of GGUF version {version}, expected one of {VERSIONS}",
                "Convert the model again with a current llama.cpp.",
            )
        tensors, keys = self.scalar("<Q"), self.scalar("<Q")
        self.limit("metadata keys", keys, MAX_KEYS)
        self.limit("tensors", tensors, MAX_TENSORS)
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self.string()
            if key in metadata:
                raise CheckpointError(self.path, f"damaged header: {key} is there twice")
            metadata[key] = self.value(key)
        if metadata.get("split.count", 0) not in (0, 1):
            raise CheckpointError(
                self.path,
                f"is part {metadata.get('split.no', '?')} of {metadata['split.count']}, expected a whole file",
                "Join the parts: llama-gguf-split --merge FIRST_PART.gguf OUT.gguf",
            )
        return GgufHeader(self.path, MappingProxyType(metadata), self.tensors(tensors, metadata))

    def limit(self, noun: str, count: int, maximum: int) -> None:
        if count > maximum:
            raise CheckpointError(self.path, f"damaged header: {count} {noun}, at most {maximum} are read")

    def take(self, count: int) -> bytes:
        if count > self.size - self.position:
            raise CheckpointError(self.path, f"truncated: the header goes on after byte {self.size}, the last one")
        self.position += count
        return self.mapped[self.position - count : self.position]

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        length = self.scalar("<Q")
        self.text_bytes += length
        self.limit("bytes of text", self.text_bytes, MAX_TEXT_BYTES)
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(
                self.path, f"damaged header: text at byte {self.position} is not UTF-8: {error}"
            ) from error

    def value(self, key: str) -> Any:
        kind = self.scalar("<I")
        if kind != _ARRAY:
            return self.item(key, kind)
        kind, count = self.scalar("<I"), self.scalar("<Q")
        self.items += count
        self.limit("items of arrays", self.items, MAX_ITEMS)
        return [self.item(key, kind) for _ in range(count)]

    def item(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind not in _SCALARS:
            raise CheckpointError(self.path, f"damaged header: {key} is of type {kind}, which is not read")
        value = self.scalar(_SCALARS[kind])
        if kind == _FLOAT32 and math.isfinite(value):
            # The shortest decimal, as in the original config.json: 1e-06 instead of 9.999999975e-07.
            import numpy as np

            return float(str(np.float32(value)))
        return value

    def tensors(self, count: int, metadata: Mapping[str, Any]) -> Mapping[str, TensorInfo]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        entries = [self.entry() for _ in range(count)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise CheckpointError(self.path, f"general.alignment: expected a power of two, found {alignment!r}")
        data = -(-self.position // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        faults: list[str] = []
        for name, shape, code, offset in entries:
            kind = next((member for member in GGMLQuantizationType if member == code), None)
            if kind is None or kind.name not in BLOCK_TYPES | PLAIN_TYPES:
                label = f"type {code}" if kind is None else kind.name
                faults.append(f"{name}: {label} is not read")
                continue
            block, size = GGML_QUANT_SIZES[kind]
            if not shape or len(shape) > MAX_DIMS or not all(shape) or shape[-1] % block:
                faults.append(f"{name}: {kind.name} of shape {list(shape)}, expected rows of a multiple of {block}")
                continue
            begin, end = data + offset, data + offset + math.prod(shape) // block * size
            if name in tensors:
                faults.append(f"{name}: is there twice")
            elif end > self.size:
                faults.append(f"{name}: truncated: its data ends at byte {end}, the file's at {self.size}")
            tensors[name] = TensorInfo(kind.name, shape, begin, end)
        ordered = sorted(tensors.items(), key=lambda named: named[1][2:])
        for (name, tensor), (second, overlapping) in pairwise(ordered):
            if overlapping.begin < tensor.end:
                faults.append(
                    f"{second}: overlaps {name}: begins at byte {overlapping.begin}, which ends at {tensor.end}"
                )
        if faults:
            raise CheckpointError(self.path, faults)
        return MappingProxyType(tensors)

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dims = self.string(), self.scalar("<I")
        self.limit(f"dimensions of {name}", dims, MAX_DIMS)
        shape = tuple(self.scalar("<Q") for _ in range(dims))
        return name, shape[::-1], self.scalar("<I"), self.scalar("<Q")
