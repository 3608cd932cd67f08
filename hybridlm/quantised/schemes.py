"""Schemes of quantised weights: names, and exact float32 values of codes and scales.

A quantised weight is codes `[..., out, in]` with one scale for each group of entries. Every scheme is recognised by the
tensors of the weight (`groups`); `dequantise` is the formula. Only weights are dequantised: engines that also quantise
activations compute other numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float32, Integer, UInt8

from hybridlm.quantised.codes import awq_integers, float4_e2m1, float8_e4m3, float8_e8m0, packed_integers

SCHEMES: Mapping[str, str] = {
    "fp8-block": "float8 E4M3, one scale for a block of rows and columns",
    "fp8-channel": "float8 E4M3, one scale for each row",
    "fp8-tensor": "float8 E4M3, one scale",
    "mxfp8": "float8 E4M3, one power of two for 32 columns",
    "nvfp4": "float4 E2M1, one float8 scale for 16 columns and one float32 scale",
    "mxfp4": "float4 E2M1, one power of two for 32 columns",
    "int8": "8-bit integers, one scale for each row or group of columns",
    "int-packed": "integers of at most 8 bits in a stream of bits, one scale for a group of columns",
    "gptq": "4-bit integers in GPTQ's layout",
    "awq": "4-bit integers in AWQ's layout",
}
"""Scheme -> description of its codes and scales."""

Read = Callable[[str], np.ndarray]
"""Tensor name in the files -> its stored numbers; codes as uint8."""
_LARGEST = np.float32(512)
"""Bound of all codes: floats of 8 bits, and integers less their zero points."""
_BLOCK = 1 << 20
"""Codes that are checked at once, which bounds the memory that this takes."""


class DequantiseError(ValueError):
    """A scale or a code that stands for no number.

    Attributes:
        tensor: its name in the files.
    """

    def __init__(self, tensor: str, fault: str):
        self.tensor = tensor
        super().__init__(f"{tensor}: {fault}")


@dataclass(frozen=True)
class QuantisedTensor:
    """A weight that a checkpoint stores as codes and scales.

    Attributes:
        scheme: one of `SCHEMES`.
        shape: shape of the weight: `[out, in]`, or `[expert, out, in]`.
        parts: role -> tensor name in the files. Roles: "codes", "scale", "global", "zero", "order".
        block: rows and columns that share a scale, for "fp8-block".
        bits: bits of an integer.
        divided: the global scale is a divisor (compressed-tensors) instead of a factor (modelopt).
        zero_plus_one: zero points are stored less one (GPTQ, first version).
        groups: scales of a row of integers; None for other schemes.
        bytes: bytes of all parts.
    """

    scheme: str
    shape: tuple[int, ...]
    parts: Mapping[str, str]
    block: tuple[int, int] = (128, 128)
    bits: int = 8
    divided: bool = False
    zero_plus_one: bool = False
    groups: int | None = None
    bytes: int = field(default=0, compare=False)

    def dequantise(self, read: Read) -> Float32[np.ndarray, "..."]:
        """Return the weight in float32: the formula in float32, each product rounded once.

        Raises:
            DequantiseError: a scale or a code that is not finite, or a group that does not exist.
        """
        return _FORMULAS[self.scheme](self, read)

    @property
    def group(self) -> int | None:
        """Columns that share a scale; None for a complete row or a scale per column."""
        if self.scheme == "fp8-block":
            return min(self.block[1], self.shape[-1])
        return {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}.get(self.scheme)

    def scales(self, read: Read) -> Float32[np.ndarray, "..."]:
        """Return the scales of groups, as stored, in float32.

        Raises:
            DequantiseError: one is NaN or infinite, or so large that a weight may be.
        """
        stored = read(self.parts["scale"])
        # 8-bit scales are powers of two, except in NVFP4.
        codes = float8_e4m3 if self.scheme == "nvfp4" else float8_e8m0
        numbers = codes(stored) if stored.dtype == np.uint8 else stored.astype(np.float32)
        with np.errstate(over="ignore"):
            _finite(self.parts["scale"], numbers * _LARGEST, "a scale that makes weights which are not finite")
        return numbers

    def require_e4m3(self, codes: UInt8[np.ndarray, "..."]) -> None:
        """Check stored 8-bit codes, one block at a time.

        Raises:
            DequantiseError: one is NaN.
        """
        stored = codes.reshape(-1)
        for start in range(0, stored.size, _BLOCK):
            if (stored[start : start + _BLOCK] & 0x7F == 0x7F).any():
                _finite(self.parts["codes"], float8_e4m3(codes), "codes that are NaN")

    def whole(self, read: Read) -> Float32[np.ndarray, "..."]:
        """Return the scale of the matrix, a scalar, or of each expert, `[expert, 1, 1]`.

        Raises:
            DequantiseError: it is NaN or infinite, a divisor of zero, or such that a weight may be infinite.
        """
        name = self.parts["global"]
        global_scale = _finite(name, read(name).astype(np.float32), "a global scale that is not finite")
        if self.divided and not global_scale.all():
            raise DequantiseError(name, "a global scale of zero, which is a divisor")
        with np.errstate(over="ignore"):
            product = _LARGEST * _LARGEST / global_scale if self.divided else global_scale * _LARGEST * _LARGEST
        _finite(name, product, "a global scale that makes weights which are not finite")
        return global_scale.reshape(*self.shape[:-2], 1, 1) if global_scale.size > 1 else global_scale.reshape(())

    def zero_codes(self, read: Read) -> UInt8[np.ndarray, "..."]:
        """Return the zero points of "int-packed" groups, `[..., out, group]`.

        They are stored in words along the rows.
        """
        words = np.swapaxes(read(self.parts["zero"]), -1, -2)
        return np.ascontiguousarray(np.swapaxes(packed_integers(words, self.bits, self.shape[-2]), -1, -2))

    def gptq_zero_codes(self, read: Read) -> UInt8[np.ndarray, "out group"]:
        """Return the zero points of "gptq", stored in words along the rows.

        The first version of the format takes one away from all integers of a word at once: where a zero point is 0 it
        borrows from the next, which adding to the whole word pays back.
        """
        words = read(self.parts["zero"]).view(np.uint32)
        increments = np.uint32(0xFFFFFFFF // ((1 << self.bits) - 1)) if self.zero_plus_one else np.uint32(0)
        return packed_integers(words + increments, self.bits, self.shape[0]).T


def _finite(name: str, numbers: np.ndarray, fault: str) -> np.ndarray:
    """Return numbers unchanged; raise DequantiseError with `fault` if one is not finite."""
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        index = tuple(int(indices[0]) for indices in np.nonzero(np.atleast_1d(wrong)))
        raise DequantiseError(name, f"{fault}: {int(wrong.sum())} of {wrong.size}, the first at {list(index)}")
    return numbers


def _fp8(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    codes = read(tensor.parts["codes"])
    tensor.require_e4m3(codes)
    return float8_e4m3(codes)


def _block(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    *lead, rows, columns = tensor.shape
    height, width = tensor.block
    scale = tensor.scales(read).reshape(*lead, -(-rows // height), -(-columns // width))
    # The last block of rows and of columns may be cut.
    scale = np.repeat(scale, width, axis=-1)[..., :columns]
    weight = _fp8(tensor, read)
    for i in range(scale.shape[-2]):
        weight[..., i * height : (i + 1) * height, :] *= scale[..., i : i + 1, :]
    return weight


def _channel(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    weight = _fp8(tensor, read)
    return np.multiply(weight, tensor.scales(read).reshape(*tensor.shape[:-1], 1), out=weight)


def _tensor(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    weight = _fp8(tensor, read)
    lead = tensor.shape[:-2]
    scale = tensor.scales(read)
    return np.multiply(weight, scale.reshape(*lead, 1, 1) if scale.size > 1 else scale.reshape(()), out=weight)


def _by_columns(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Multiply each group of columns by its scale, in place; groups are of equal size."""
    grouped = values.reshape(*scale.shape, -1)
    np.multiply(grouped, scale[..., None], out=grouped)
    return values


def _mxfp8(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    return _by_columns(_fp8(tensor, read), tensor.scales(read))


def _mxfp4(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    return _by_columns(float4_e2m1(read(tensor.parts["codes"]).view(np.uint8)), tensor.scales(read))


def _nvfp4(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    weight = _by_columns(float4_e2m1(read(tensor.parts["codes"])), tensor.scales(read))
    return (np.divide if tensor.divided else np.multiply)(weight, tensor.whole(read), out=weight)


def _integers(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    """Return the formula `(code - zero) * scale` with codes offset to be signed."""
    *lead, rows, columns = tensor.shape
    half = np.float32(1 << (tensor.bits - 1))
    stored = read(tensor.parts["codes"])
    scale = tensor.scales(read).reshape(*lead, rows, -1)
    zero = np.zeros_like(scale)
    if tensor.scheme == "int8":
        codes = stored.astype(np.float32)
        if "zero" in tensor.parts:
            zero = read(tensor.parts["zero"]).astype(np.float32).reshape(scale.shape)
    else:
        codes = packed_integers(stored, tensor.bits, columns).astype(np.float32) - half
        if "zero" in tensor.parts:
            zero = tensor.zero_codes(read).astype(np.float32).reshape(scale.shape) - half
    return _grouped_integers(tensor, read, codes, zero, scale)


def _group_of_column(tensor: QuantisedTensor, read: Read, groups: int) -> Integer[np.ndarray, " columns"]:
    name = tensor.parts["order"]
    group = read(name)
    if group.size and (group.min() < 0 or group.max() >= groups):
        raise DequantiseError(
            name, f"expected groups 0 to {groups - 1}, found {int(group.min())} to {int(group.max())}"
        )
    return group


def _gptq(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    codes = packed_integers(np.ascontiguousarray(read(tensor.parts["codes"]).T), tensor.bits, tensor.shape[-1])
    scale = tensor.scales(read).T
    return _grouped_integers(tensor, read, codes, tensor.gptq_zero_codes(read).astype(np.float32), scale)


def _awq(tensor: QuantisedTensor, read: Read) -> np.ndarray:
    codes = awq_integers(read(tensor.parts["codes"])).T
    zero = awq_integers(read(tensor.parts["zero"])).T.astype(np.float32)
    return _grouped_integers(tensor, read, codes, zero, tensor.scales(read).T)


def _grouped_integers(
    tensor: QuantisedTensor, read: Read, codes: np.ndarray, zero: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    numbers = np.ascontiguousarray(codes, np.float32)
    if "order" in tensor.parts:
        group = _group_of_column(tensor, read, scale.shape[-1])
        numbers -= zero[..., group]
        numbers *= scale[..., group]
    else:
        grouped = numbers.reshape(*scale.shape, -1)
        grouped -= zero[..., None]
        grouped *= scale[..., None]
    return numbers


_FORMULAS: Mapping[str, Callable[[QuantisedTensor, Read], np.ndarray]] = {
    "fp8-block": _block,
    "fp8-channel": _channel,
    "fp8-tensor": _tensor,
    "mxfp8": _mxfp8,
    "nvfp4": _nvfp4,
    "mxfp4": _mxfp4,
    "int8": _integers,
    "int-packed": _integers,
    "gptq": _gptq,
    "awq": _awq,
}
