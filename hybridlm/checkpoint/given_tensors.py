"""Arrays that a caller gives, as a checkpoint: they are checked and read as the tensors of a file are."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.safetensors import READABLE
from hybridlm.checkpoint.tensor_file import TensorFile
from hybridlm.quantised import GroupedTensors, QuantisationSettings
from hybridlm.quantised.shapes import TensorInfo

NAMES = {kind: name for name, kind in READABLE.items()}
"""NumPy's dtype -> the format's name of it."""


class GivenTensors(TensorFile):
    """Arrays by name, as a file of tensors.

    Args:
        arrays: host or device arrays; they are read as they are at that moment.
        where: name of their source, for errors.

    Attributes:
        path: that name.
        tensors: dtype and shape of each; a dtype that is no float of 16 or 32 bits has NumPy's name.
    """

    def __init__(self, arrays: Mapping[str, Any], where: str):
        self._arrays = arrays
        tensors = {name: _info(np.dtype(array.dtype), tuple(array.shape)) for name, array in arrays.items()}
        super().__init__(Path(where), MappingProxyType(tensors))

    def read(self, name: str) -> np.ndarray:
        """Return an array on the host, which may share memory with the one that was given."""
        return np.asarray(jax.device_get(self._arrays[name]))


def _info(dtype: np.dtype, shape: tuple[int, ...]) -> TensorInfo:
    return TensorInfo(NAMES.get(dtype, dtype.name), shape, 0, dtype.itemsize * int(np.prod(shape)))


def given_checkpoint(arrays: Mapping[str, Any], where: str) -> CheckpointDirectory:
    """Return arrays as an opened checkpoint, for `load_parameters`.

    Args:
        arrays: by the names of tensors.
        where: name of their source, for errors.
    """
    file = GivenTensors(arrays, where)
    plain = GroupedTensors(MappingProxyType({}), MappingProxyType({}), MappingProxyType({}))
    return CheckpointDirectory(Path(where), {}, dict.fromkeys(arrays, file), plain, QuantisationSettings())
