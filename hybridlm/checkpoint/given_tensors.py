"""Arrays in memory as a checkpoint."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.safetensors import READABLE, TensorFile
from hybridlm.quantised.shapes import TensorInfo

WHERE = "params"
"""Name of the arrays in messages."""
NAMES = {kind: name for name, kind in READABLE.items()}
"""NumPy's dtype -> its name in the format."""


class GivenTensors(TensorFile):
    """Arrays by name, with the interface of a file of tensors.

    Args:
        arrays: NumPy or JAX; `read` returns the values at its call.

    Attributes:
        tensors: dtypes other than floats of 16 or 32 bits have NumPy's names.
    """

    def __init__(self, arrays: Mapping[str, Any]):
        self._arrays = arrays
        tensors = dict[str, TensorInfo]()
        for name, array in arrays.items():
            dtype, shape = np.dtype(array.dtype), tuple(array.shape)
            tensors[name] = TensorInfo(NAMES.get(dtype, dtype.name), shape, 0, dtype.itemsize * int(np.prod(shape)))
        super().__init__(Path(WHERE), MappingProxyType(tensors))

    def read(self, name: str) -> np.ndarray:
        """Return an array on the host, perhaps in the caller's memory."""
        return np.asarray(jax.device_get(self._arrays[name]))


def given_checkpoint(arrays: Mapping[str, Any]) -> CheckpointDirectory:
    return CheckpointDirectory(Path(WHERE), {}, dict.fromkeys(arrays, GivenTensors(arrays)))


def imported(tensor: Any) -> np.ndarray | jax.Array:
    """Return an array that shares the memory of a tensor, through DLPack.

    NumPy and JAX arrays are unchanged; only a PyTorch tensor with gaps and a dtype outside NumPy (bfloat16) is copied.

    Raises:
        TypeError: an object without DLPack.
        ValueError: a sparse tensor, one of a device outside JAX, or one without memory (DLPack exports PyTorch's
            DTensor as uninitialised numbers).
    """
    if isinstance(tensor, np.ndarray | jax.Array):
        return tensor
    if not hasattr(tensor, "__dlpack__"):
        raise TypeError(f"expected an array, found {type(tensor).__name__}")
    try:
        if hasattr(tensor, "data_ptr"):
            tensor = tensor.detach()
            tensor.data_ptr()
        try:
            return np.from_dlpack(tensor)
        except (BufferError, RuntimeError):  # NumPy has no bfloat16 and no other device
            return jax.dlpack.from_dlpack(tensor.contiguous() if hasattr(tensor, "contiguous") else tensor)
    except (BufferError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        kind = f"{type(tensor).__name__} on {getattr(tensor, 'device', 'an unknown device')}"
        raise ValueError(
            f"expected a dense tensor in host memory (.cpu(), .full_tensor()), found {kind}: {error}"
        ) from error


SEEDS = (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F)
"""Seeds of the four words of a digest, from well-known hash functions."""
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def content_fingerprint(params: Mapping[str, Array], description: str) -> str:
    """Return a SHA-256 of a description and each parameter's name, dtype, shape and bits.

    Each device reduces a parameter to 128 bits, in one pass. The order of parts over the mesh changes the result.
    """
    digest = hashlib.sha256(description.encode())
    words = jax.device_get({name: array_digest(array) for name, array in params.items()})
    for name in sorted(words):
        array = params[name]
        digest.update(json.dumps([name, str(array.dtype), array.shape, words[name].tolist()]).encode())
    return digest.hexdigest()


@jax.jit
def array_digest(x: Array) -> Array:
    """Return uint32 [4]: sums of mixed bits and places, for every order of summation."""
    bits = lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)
    place = jnp.zeros(x.shape, jnp.uint32)
    stride = 1
    for dim in reversed(range(x.ndim)):
        place += lax.broadcasted_iota(jnp.uint32, x.shape, dim) * np.uint32(stride % (1 << 32))
        stride *= x.shape[dim]
    words = [jnp.sum(_mixed(bits ^ _mixed(place + np.uint32(seed))), dtype=jnp.uint32) for seed in SEEDS]
    return jnp.stack(words)


def _mixed(x: Array) -> Array:
    """Mix the bits of each word bijectively (the finalizer of MurmurHash3)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
