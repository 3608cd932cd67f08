"""A GGUF file as a checkpoint, with the Hugging Face names of its tensors."""

import os
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hybridlm.checkpoint.directory import CheckpointDirectory, listed
from hybridlm.checkpoint.safetensors import ArrayFile
from hybridlm.gguf_files import GgufHeader, NamedTensor, named_tensors, read_architecture, read_header
from hybridlm.quantised.packed import PackedArrays, PackedForm
from hybridlm.quantised.shapes import TensorInfo


class GgufFile(ArrayFile):
    """A mapped GGUF file.

    Attributes:
        tensors: by Hugging Face name; the dtype is a type of blocks ("Q4_K") or "F32", "F16" or "BF16".
    """

    def __init__(self, header: GgufHeader, named: dict[str, NamedTensor]) -> None:
        tensors = {
            name: TensorInfo(tensor.stored.dtype, tensor.shape, tensor.begin, tensor.end)
            for name, tensor in named.items()
        }
        super().__init__(header.path, MappingProxyType(tensors))
        self._named = named

    def read(self, name: str) -> np.ndarray:
        """Return one tensor; blocks are dequantised in float32.

        Raises:
            CheckpointError: a scale that is not finite, or a shortened file.
        """
        return self._named[name].numbers(self._raw(name), self.path)

    read_stored = read

    def packed_form(self, name: str) -> PackedForm | None:
        return self._named[name].packed_form()

    def read_packed(self, name: str, form: PackedForm) -> PackedArrays:
        return self._named[name].packed(self._raw(name), form, self.path)

    def _raw(self, name: str) -> np.ndarray:
        begin, end = self.place(name)
        return np.frombuffer(self._map, np.uint8, end - begin, begin)


def is_gguf(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() == ".gguf" and Path(path).is_file()


def open_gguf(path: str | os.PathLike[str]) -> CheckpointDirectory:
    """Open a GGUF file of a known architecture (`hybridlm.gguf_files.config.ARCHITECTURES`).

    Raises:
        CheckpointError: a damaged file, or an unsupported part, by name.
    """
    header = read_header(path)
    config, unused = read_architecture(header)
    named = named_tensors(header, config)
    file = GgufFile(header, named)
    files = MappingProxyType(dict.fromkeys(named, file))
    notes = (f"metadata that are not used: {listed(unused)}",) if unused else ()
    return CheckpointDirectory(header.path, config, files, notes=notes)
