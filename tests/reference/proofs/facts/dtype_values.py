"""The dtypes of XLA's arrays of numbers, and values of each of them."""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from ir_passes.jaxpr import conversions

INTEGERS = "int2 int4 int8 int16 int32 int64 uint2 uint4 uint8 uint16 uint32 uint64".split()
FLOATS = """
float4_e2m1fn float8_e3m4 float8_e4m3 float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz
float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float16 bfloat16 float32 float64
""".split()
DTYPES = ["bool", *INTEGERS, *FLOATS]


def every(dtype: str) -> np.ndarray:
    """All values of at most 16 bits; otherwise extremes and powers of two."""
    bits = 1 if dtype == "bool" else (jnp.finfo if dtype in FLOATS else jnp.iinfo)(jnp.dtype(dtype)).bits
    if dtype in FLOATS and bits <= 16:
        return np.arange(1 << bits, dtype=np.uint8 if bits <= 8 else np.uint16).view(jnp.dtype(dtype))
    if dtype in FLOATS:
        words = np.array([0, 1, *(1 << k for k in range(bits))], f"uint{bits}")
        words = np.concatenate([words, ~words, words - 1, ~(words - 1)])
        greatest = np.array([jnp.finfo(jnp.bfloat16).max, 65504, 65520, 448, 465], dtype)
        return np.concatenate([words.view(dtype), greatest])
    low, high = limits(dtype)
    near = {sign * (1 << k) + step for k in range(bits) for sign in (-1, 1) for step in (-1, 0, 1)}
    chosen = range(low, high + 1) if bits <= 16 else sorted({low, high, *near} & {*near, low, high})
    return np.array([n for n in chosen if low <= n <= high], f"{'u' * (low == 0)}int64").astype(jnp.dtype(dtype))


def limits(dtype: str) -> tuple[int, int]:
    """Least and greatest number of an integer dtype or of booleans."""
    return (0, 1) if dtype == "bool" else (int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max))


def numbers(array: np.ndarray) -> np.ndarray:
    """The values as float64."""
    with np.errstate(invalid="ignore"):  # signalling nans
        return array.astype(np.float64)


def has(dtype: str, number: float) -> bool:
    """True if a dtype represents a number."""
    return conversions.holds(jnp.dtype(dtype), number)


def filled(shape: tuple[int, ...], number: Any, dtype: str) -> np.ndarray:
    """An array of one number."""
    return np.full(shape, number).astype(jnp.dtype(dtype))


def sampled(dtypes: Iterable[str], *sample: str) -> list[Any]:
    """Return the dtypes; all outside the sample are `long`."""
    return [pytest.param(dtype, marks=() if dtype in sample else pytest.mark.long) for dtype in dtypes]
