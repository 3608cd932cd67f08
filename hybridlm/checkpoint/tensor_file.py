"""Interface of tensor files: safetensors, GGUF, or arrays in memory."""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hybridlm.errors import CheckpointError
from hybridlm.files.atomic import FileVersion
from hybridlm.quantised.packed import PackedArrays, PackedForm
from hybridlm.quantised.shapes import TensorInfo


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


class MappedFile(TensorFile):
    """Tensors in a read-only mapped file.

    If the file is rewritten in place, views change or the process crashes; reading a shortened file raises
    CheckpointError.

    Args:
        data_start: byte 0 of a tensor's `begin` and `end`.
    """

    def __init__(self, path: Path, tensors: Mapping[str, TensorInfo], data_start: int = 0):
        super().__init__(path, tensors)
        self._data_start = data_start
        with path.open("rb") as file:
            self.version = FileVersion.of(os.fstat(file.fileno()))
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def place(self, name: str) -> tuple[int, int]:
        info, size = self.tensors[name], self._map.size()
        if size < self._data_start + info.end:
            fault = f"{name}: the file ends at byte {size}; it was longer when it was opened. Load again."
            raise CheckpointError(self.path, fault)
        return self._data_start + info.begin, self._data_start + info.end

    def read_bytes(self, name: str, start: int, length: int) -> bytes:
        """Return a copy of at most `length` bytes of one tensor, from byte `start`."""
        begin, end = self.place(name)
        return self._map[begin + start : min(begin + start + length, end)]

    def release(self, name: str) -> None:
        info = self.tensors[name]
        start = -(-(self._data_start + info.begin) // mmap.PAGESIZE) * mmap.PAGESIZE
        length = self._data_start + info.end - start
        if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, length)
