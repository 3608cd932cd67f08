"""Schemes of quantised weights: names, tensors, and exact scales and zero points.

A weight is codes [..., out, in] with a scale per group of entries.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped, UInt8

from hybridlm.quantised.codes import awq_integers, float8_e4m3, float8_e8m0, packed_integers

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
    "nf4": "4-bit quantiles of a normal distribution (bitsandbytes), one scale for a block of consecutive numbers",
    "fp4": "4-bit floats (bitsandbytes), one scale for a block of consecutive numbers",
    "llm-int8": "8-bit integers (bitsandbytes), the largest magnitude of each row as its scale",
    "int4-affine": "4-bit integers (torchao), one scale and one offset for a group of columns",
}
"""Scheme -> description of its codes and scales."""

INTEGERS = ("int8", "int-packed", "gptq", "awq", "int4-affine")
"""Schemes that may have zero points, or offsets."""

Read = Callable[[str], np.ndarray]
"""Tensor name -> its stored numbers; codes as uint8."""
_LARGEST = np.float32(512)
"""Bound of codes: 8-bit floats, and integers less their zero points."""
_BLOCK = 1 << 20
"""Codes checked at once."""


class DequantiseError(ValueError):
    """A scale or a code that stands for no number."""

    def __init__(self, tensor: str, fault: str):
        self.tensor, self._fault = tensor, fault
        super().__init__(f"{tensor}: {fault}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tensor, self._fault)


@dataclass(frozen=True)
class QuantisedTensor:
    """A weight that a checkpoint stores as codes and scales.

    Attributes:
        shape: `[out, in]` or `[expert, out, in]`.
        parts: tensor names by role: "codes", "scale", "global", "zero", "order", "table", "nested scale", "nested
            table".
        block: rows and columns with one scale ("fp8-block"); 1 and consecutive numbers ("nf4", "fp4").
        divided: the global scale divides (compressed-tensors) instead of multiplies (modelopt).
        zero_plus_one: zero points are stored less one (first GPTQ version).
        groups: integer scales of a row.
        nested: of scales as 8-bit codes, `table[code] * scale + offset` (bitsandbytes' double quantisation): codes with
            one scale, and the offset.
    """

    scheme: str
    shape: tuple[int, ...]
    parts: Mapping[str, str]
    block: tuple[int, int] = (128, 128)
    bits: int = 8
    divided: bool = False
    zero_plus_one: bool = False
    groups: int | None = None
    nested: tuple[int, float] | None = None
    bytes: int = field(default=0, compare=False)

    @property
    def group(self) -> int | None:
        """Columns with one scale; None for a row or a scale per column."""
        if self.scheme == "fp8-block":
            return min(self.block[1], self.shape[-1])
        return {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}.get(self.scheme)

    def scales(self, read: Read) -> Float32[np.ndarray, "..."]:
        """Return float32 scales; raises DequantiseError unless weights stay finite."""
        stored = read(self.parts["scale"])
        if self.nested is not None:
            numbers = self._nested_scales(read, self.nested)
        elif stored.dtype == np.uint8:
            # 8-bit scales are powers of two, except in NVFP4.
            numbers = (float8_e4m3 if self.scheme == "nvfp4" else float8_e8m0)(stored)
        else:
            numbers = stored.astype(np.float32)
        with np.errstate(over="ignore"):
            _finite(self.parts["scale"], numbers * _LARGEST, "a scale that makes weights which are not finite")
        return numbers

    def row_scales(self, read: Read) -> Float32[np.ndarray, "*expert out group"]:
        """Return the scales of each row and group of columns; raises as `scales`."""
        scale, (*lead, rows, columns) = self.scales(read), self.shape
        if self.scheme in ("gptq", "awq", "int4-affine"):
            return np.swapaxes(scale, -1, -2)
        if self.scheme == "fp8-block":
            height, width = self.block
            grid = scale.reshape(*lead, -(-rows // height), -(-columns // width))
            return np.repeat(grid, height, axis=-2)[..., :rows, :]
        if self.scheme == "fp8-tensor" and scale.size > 1:
            return np.broadcast_to(scale.reshape(*lead, 1, 1), (*lead, rows, 1))
        return self._by_rows(scale)

    def zeros(self, read: Read) -> Shaped[np.ndarray, "*expert out group"] | None:
        """Return the codes of zero points; None without zero points, or with other offsets."""
        if "zero" not in self.parts or self.scheme not in INTEGERS or self.scheme == "int4-affine":
            return None
        stored = read(self.parts["zero"])
        if self.scheme == "int8":
            return np.ascontiguousarray(self._by_rows(stored))
        if self.scheme == "awq":
            codes = awq_integers(stored)
        elif self.scheme == "int-packed":
            codes = packed_integers(np.swapaxes(stored, -1, -2), self.bits, self.shape[-2])
        else:
            # The first version subtracts one from each integer of a word, with borrows.
            increments = np.uint32(0xFFFFFFFF // ((1 << self.bits) - 1)) if self.zero_plus_one else np.uint32(0)
            codes = packed_integers(stored.view(np.uint32) + increments, self.bits, self.shape[0])
        return np.ascontiguousarray(np.swapaxes(codes, -1, -2))

    def _by_rows(self, stored: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "*expert out group"]:
        lead = self.shape[:-1]
        return np.broadcast_to(stored, (*lead, 1)) if stored.size == 1 else stored.reshape(*lead, -1)

    def _nested_scales(self, read: Read, nested: tuple[int, float]) -> Float32[np.ndarray, " block"]:
        stored, table, scale = (read(self.parts[role]) for role in ("scale", "nested table", "nested scale"))
        block, offset = nested
        scale = np.repeat(scale.astype(np.float32), block)[: stored.size]
        with np.errstate(over="ignore", invalid="ignore"):
            return table.astype(np.float32)[stored.reshape(-1)] * scale + np.float32(offset)

    def offsets(self, read: Read) -> Float32[np.ndarray, "*expert out group"]:
        """Return the offsets of "int4-affine", subtracted from code * scale.

        The file has the number of code 8: eight scales less this number are rounded once, as in torchao.

        Raises:
            DequantiseError: not finite.
        """
        centre = np.swapaxes(read(self.parts["zero"]), -1, -2).astype(np.float32)
        _finite(self.parts["zero"], centre, "an offset that is not finite")
        return np.float32(8) * np.swapaxes(self.scales(read), -1, -2) - centre

    def require_e4m3(self, codes: UInt8[np.ndarray, "..."]) -> None:
        """Raise DequantiseError for NaN in 8-bit codes, block by block."""
        stored = codes.reshape(-1)
        for start in range(0, stored.size, _BLOCK):
            if (stored[start : start + _BLOCK] & 0x7F == 0x7F).any():
                _finite(self.parts["codes"], float8_e4m3(codes), "codes that are NaN")

    def whole(self, read: Read) -> Float32[np.ndarray, "..."]:
        """Return the matrix scale, a scalar or [expert, 1, 1].

        Raises:
            DequantiseError: not finite, a divisor of zero, or so large that a weight may be infinite.
        """
        name = self.parts["global"]
        global_scale = _finite(name, read(name).astype(np.float32), "a global scale that is not finite")
        if self.divided and not global_scale.all():
            raise DequantiseError(name, "a global scale of zero, which is a divisor")
        with np.errstate(over="ignore"):
            product = _LARGEST * _LARGEST / global_scale if self.divided else global_scale * _LARGEST * _LARGEST
        _finite(name, product, "a global scale that makes weights which are not finite")
        return global_scale.reshape(*self.shape[:-2], 1, 1) if global_scale.size > 1 else global_scale.reshape(())


def _finite(name: str, numbers: np.ndarray, fault: str) -> np.ndarray:
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        index = tuple(int(indices[0]) for indices in np.nonzero(np.atleast_1d(wrong)))
        raise DequantiseError(name, f"{fault}: {int(wrong.sum())} of {wrong.size}, the first at {list(index)}")
    return numbers
