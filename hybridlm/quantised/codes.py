"""Codes in quantised checkpoints: 8-bit and 4-bit floats, powers of two, packed integers.

Sources: the OCP specifications "8-bit Floating Point" (E4M3) and "Microscaling Formats" (E2M1, E8M0), files of
compressed-tensors, GPTQ and AWQ, `get_4bit_type` of bitsandbytes (NF4 is of QLoRA, https://arxiv.org/abs/2305.14314).
"""

import ml_dtypes
import numpy as np
from jaxtyping import Float32, Integer, UInt8

E2M1 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
"""Values of 4-bit floats: sign, two exponent bits, one mantissa bit."""
_E2M1_PAIRS = np.stack([E2M1[np.arange(256) & 15], E2M1[np.arange(256) >> 4]], axis=-1)
_E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
_E8M0 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
"""Values of NF4 codes: quantiles of a normal distribution, at most 1."""
_FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
FP4 = np.concatenate([_FP4, -_FP4])
"""Values of bitsandbytes' 4-bit floats, unlike E2M1: at most 1."""
# Column of a group of eight in each nibble of an AWQ word, the lowest nibble first.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def float8_e4m3(codes: UInt8[np.ndarray, "..."]) -> Float32[np.ndarray, "..."]:
    """Return the values of E4M3 codes (the finite variant); 0x7F and 0xFF are NaN."""
    return _E4M3[codes]


def float8_e8m0(codes: UInt8[np.ndarray, "..."]) -> Float32[np.ndarray, "..."]:
    """Return 2^(code - 127); 0xFF is NaN."""
    return _E8M0[codes]


def float4_e2m1(codes: UInt8[np.ndarray, "*rows bytes"]) -> Float32[np.ndarray, "*rows columns"]:
    """Return the values of E2M1 codes, two per byte, even columns in the low nibble."""
    return _E2M1_PAIRS[codes].reshape(*codes.shape[:-1], 2 * codes.shape[-1])


def table_numbers(
    codes: UInt8[np.ndarray, " byte"], table: Float32[np.ndarray, "16"], count: int
) -> Float32[np.ndarray, " count"]:
    """Return the values of 4-bit codes in a table, two per byte, high nibble first."""
    pairs = np.stack([table[np.arange(256) >> 4], table[np.arange(256) & 15]], axis=-1)
    return pairs[codes].reshape(-1)[:count]


def packed_integers(
    words: Integer[np.ndarray, "*rows words"], bits: int, count: int
) -> Integer[np.ndarray, "*rows count"]:
    """Return unsigned integers from a dense stream of bits, lowest bits and words first.

    Args:
        words: little-endian; an integer may straddle two.
        bits: at most 8.
        count: in each row.
    """
    stream = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return stream[..., :count]
    if bits == 4:
        return np.stack([stream & 15, stream >> 4], axis=-1).reshape(*words.shape[:-1], -1)[..., :count]
    bit_rows = np.unpackbits(stream, axis=-1, count=count * bits, bitorder="little").reshape(
        *words.shape[:-1], count, bits
    )
    return np.packbits(bit_rows, axis=-1, bitorder="little")[..., 0]


def awq_integers(words: Integer[np.ndarray, "rows words"]) -> UInt8[np.ndarray, "rows columns"]:
    """Return the 4-bit integers of AWQ words, in the order of their columns."""
    nibbles = packed_integers(words, 4, 8 * words.shape[-1]).reshape(*words.shape, 8)
    return nibbles[..., np.argsort(AWQ_ORDER)].reshape(*words.shape[:-1], -1)
