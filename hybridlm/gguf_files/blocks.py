"""Codes and scales, by groups of columns, from the blocks of GGUF files.

The numbers equal `gguf.quants.dequantize`: `code * scale`, or `code * scale - zero`, exact in float32 and so rounded
once. Scales of K-quants are products, in 32 bits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Shaped, UInt8

from hybridlm.quantised.packed import PackedForm
from models.ops.quantised_codes import Codes as Kind

Raw = UInt8[np.ndarray, "block bytes"]
Codes = Shaped[np.ndarray, "block column"]
Scales = Float32[np.ndarray, "block group"]


Parts = tuple[Codes, Scales] | tuple[Codes, Scales, Scales]
"""Codes of columns (4-bit numbers or signed integers), scales and perhaps zeros of groups."""


class BlockType(NamedTuple):
    """A type of blocks with a packed form.

    Attributes:
        group: columns of a scale.
        parts: bytes of blocks -> codes, scales and perhaps zeros.
    """

    kind: Kind
    group: int
    scale_dtype: str
    has_zero: bool
    parts: Callable[[Raw], Parts]

    def form(self, columns: int) -> PackedForm:
        zero = "float32" if self.has_zero else None
        return PackedForm(self.kind, columns, columns // self.group, self.scale_dtype, False, zero)


def _half(raw: Raw) -> Scales:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _nibbles(raw: Raw, width: int) -> Codes:
    """Return the low halves of each `width` bytes, then the high ones."""
    parts = raw.reshape(len(raw), -1, 1, width)
    return np.concatenate([parts & 15, parts >> 4], axis=2).reshape(len(raw), -1)


def _bits(raw: np.ndarray, width: int, shifts: Sequence[int], mask: int) -> Codes:
    parts = raw.reshape(len(raw), -1, 1, width) >> np.array(shifts, raw.dtype).reshape(1, 1, -1, 1)
    return (parts & raw.dtype.type(mask)).astype(np.uint8).reshape(len(raw), -1)


def _signed(codes: Codes, zero: int) -> Codes:
    return codes.astype(np.int8) - np.int8(zero)


def _scales_and_zeros(raw: Raw) -> tuple[Scales, Scales]:
    """Return scales and offsets of the eight groups of Q4_K and Q5_K blocks."""
    low, high, rest = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scale = np.concatenate([low & 63, rest & 15 | low >> 2 & 48], axis=1)
    zero = np.concatenate([high & 63, rest >> 4 | high >> 2 & 48], axis=1)
    return _half(raw[:, :2]) * scale.astype(np.float32), _half(raw[:, 2:4]) * zero.astype(np.float32)


def _q5_k(raw: Raw) -> Parts:
    codes = _nibbles(raw[:, 48:], 32) | _bits(raw[:, 16:48], 32, range(8), 1) << 4
    return codes.astype(np.int8), *_scales_and_zeros(raw)


def _q6_k(raw: Raw) -> Parts:
    codes = _nibbles(raw[:, :128], 64) | _bits(raw[:, 128:192], 32, (0, 2, 4, 6), 3) << 4
    return _signed(codes, 32), _half(raw[:, 208:]) * raw[:, 192:208].view(np.int8).astype(np.float32)


def _q3_k(raw: Raw) -> Parts:
    codes = _bits(raw[:, 32:96], 32, (0, 2, 4, 6), 3) | _bits(raw[:, :32], 32, range(8), 1) << 2
    scale = _nibbles(raw[:, 96:104], 8) | _bits(raw[:, 104:108], 4, (0, 2, 4, 6), 3) << 4
    return _signed(codes, 4), _half(raw[:, 108:]) * _signed(scale, 32).astype(np.float32)


def _q2_k(raw: Raw) -> Parts:
    scale = _half(raw[:, 80:82]) * (raw[:, :16] & 15).astype(np.float32)
    zero = _half(raw[:, 82:]) * (raw[:, :16] >> 4).astype(np.float32)
    return _bits(raw[:, 16:80], 32, (0, 2, 4, 6), 3), scale, zero


def _q5_0(raw: Raw, start: int = 2) -> Codes:
    high = np.unpackbits(raw[:, start : start + 4], axis=1, bitorder="little")
    return _nibbles(raw[:, start + 4 :], 16) | high << 4


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def _iq4_xs(raw: Raw) -> Parts:
    high = np.ascontiguousarray(raw[:, 2:4]).view(np.uint16)
    scale = _nibbles(raw[:, 4:8], 1) | _bits(high, 1, range(0, 16, 2), 3) << 4
    return _IQ4[_nibbles(raw[:, 8:], 16)], _half(raw[:, :2]) * _signed(scale, 32).astype(np.float32)


def _mxfp4(raw: Raw) -> Parts:
    # 2^(code - 127), also for the largest code, which is NaN elsewhere.
    return _nibbles(raw[:, 1:], 16), np.ldexp(np.float32(1), raw[:, :1].astype(np.int32) - 127)


PACKED_TYPES: Mapping[str, BlockType] = {
    "Q8_0": BlockType("int8", 32, "float16", False, lambda raw: (raw[:, 2:].view(np.int8), _half(raw[:, :2]))),
    "Q4_0": BlockType("int4", 32, "float16", False, lambda raw: (_nibbles(raw[:, 2:], 16), _half(raw[:, :2]))),
    "Q4_1": BlockType(
        "int4", 32, "float16", True,
        lambda raw: (_nibbles(raw[:, 4:], 16), _half(raw[:, :2]), -_half(raw[:, 2:4])),
    ),
    "Q5_0": BlockType("int8", 32, "float16", False, lambda raw: (_signed(_q5_0(raw), 16), _half(raw[:, :2]))),
    "Q5_1": BlockType(
        "int8", 32, "float16", True,
        lambda raw: (_q5_0(raw, 4).astype(np.int8), _half(raw[:, :2]), -_half(raw[:, 2:4])),
    ),
    "Q2_K": BlockType("int4", 16, "float32", True, _q2_k),
    "Q3_K": BlockType("int8", 16, "float32", False, _q3_k),
    "Q4_K": BlockType(
        "int4", 32, "float32", True, lambda raw: (_nibbles(raw[:, 16:], 32), *_scales_and_zeros(raw))
    ),
    "Q5_K": BlockType("int8", 32, "float32", True, _q5_k),
    "Q6_K": BlockType("int8", 16, "float32", False, _q6_k),
    "IQ4_NL": BlockType(
        "int8", 32, "float16", False, lambda raw: (_IQ4[_nibbles(raw[:, 2:], 16)], _half(raw[:, :2]))
    ),
    "IQ4_XS": BlockType("int8", 32, "float32", False, _iq4_xs),
    "MXFP4": BlockType("e2m1", 32, "float32", False, _mxfp4),
}  # fmt: skip
"""Type of blocks -> its packed form; other readable types are dequantised."""
