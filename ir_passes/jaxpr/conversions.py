"""Conversions between dtypes: representable numbers and exact conversions.

A conversion is exact for a number if the new dtype represents it. Dtypes of at most 16 bits are enumerated. For 32 and
64 bits:

* A float dtype with m stored mantissa bits represents every integer up to 2 ** (m + 1).
* A conversion to a float dtype keeps finite values finite if the dtype's greatest number is at least the source's, and
  if the dtype represents 0 and -1 (float8_e8m0fnu converts both to nan). A dtype without negative zero uses its bit
  pattern for nan, and XLA may round a small negative number to it: then the conversion of every number must be exact.
* A conversion keeps neither sign nor payload of a nan, so a dtype with at least two nans is never converted and back
  without loss.

A number that becomes subnormal counts as lost: processors may flush it to zero.
"""

from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from ir_passes.jaxpr.dtypes import is_integer, is_key, limits

MAX_ENUMERATED_BITS = 16
"""Widest dtype with enumerated values, in bits."""
_Floats = np.ndarray[Any, np.dtype[np.float64]]


def reversible(source: Any, target: Any) -> bool:
    """True if a conversion and back keeps every bit."""
    if source == target:
        return True
    if not _is_number(source) or not _is_number(target):
        return False
    if _bits(source) <= MAX_ENUMERATED_BITS:
        numbers = _all_values(source)
        return np.isnan(numbers).sum() <= 1 and bool(_exact(numbers, target).all())
    return is_whole(source) and _has_integers(_bounds(source), target)


def holds(dtype: Any, number: float) -> bool:
    """True if a dtype represents a number such as 0, 1 or -inf."""
    return _is_number(dtype) and bool(_exact(np.array([number]), dtype)[0])


def stays_finite(source: Any, target: Any) -> bool:
    if source == target or is_whole(target):
        return True
    if not _is_number(source) or not _is_number(target):
        return False
    if not is_whole(source) and not holds(target, -0.0):
        if _bits(source) > MAX_ENUMERATED_BITS:
            return False
        numbers = _all_values(source)
        return bool(_exact(numbers[np.isfinite(numbers)], target).all())
    greatest = max(map(abs, _bounds(source))) if is_whole(source) else float(jnp.finfo(source).max)
    return holds(target, 0) and holds(target, -1) and greatest <= float(jnp.finfo(target).max)


def is_whole(dtype: Any) -> bool:
    return dtype == np.bool_ or is_integer(dtype)


def _is_number(dtype: Any) -> bool:
    # Tokens have no dtype, and NumPy reads None as float64.
    return dtype is not None and not is_key(dtype) and (is_whole(dtype) or bool(jnp.issubdtype(dtype, jnp.floating)))


def _bounds(dtype: Any) -> tuple[int, int]:
    return (0, 1) if dtype == np.bool_ else limits(dtype)


def _bits(dtype: Any) -> int:
    if dtype == np.bool_:
        return 1
    return int(jnp.iinfo(dtype).bits if is_integer(dtype) else jnp.finfo(dtype).bits)


@cache
def _all_values(dtype: Any) -> _Floats:
    if is_whole(dtype):
        low, high = _bounds(dtype)
        return np.arange(low, high + 1, dtype=np.float64)
    bits = _bits(dtype)
    patterns = np.arange(1 << bits, dtype=np.uint8 if bits <= 8 else np.uint16)
    with np.errstate(all="ignore"):
        return patterns.view(dtype).astype(np.float64)


def _has_integers(bounds: tuple[int, int], dtype: Any) -> bool:
    """True if a dtype represents every integer within inclusive bounds."""
    if is_whole(dtype):
        low, high = _bounds(dtype)
        return low <= bounds[0] and bounds[1] <= high
    info, greatest = jnp.finfo(dtype), max(map(abs, bounds))
    return holds(dtype, 0) and greatest <= min(2 ** (int(info.nmant) + 1), float(info.max))


def _exact(numbers: _Floats, dtype: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each number whether a dtype represents it, with the sign of zero."""
    if is_whole(dtype):
        low, high = _bounds(dtype)
        negative_zero = (numbers == 0) & np.signbit(numbers)
        return (numbers == np.round(numbers)) & (low <= numbers) & (numbers <= high) & ~negative_zero
    with np.errstate(all="ignore"):
        converted = numbers.astype(dtype).astype(np.float64)
    exact = (converted == numbers) & (np.signbit(converted) == np.signbit(numbers)) | np.isnan(converted) & np.isnan(
        numbers
    )
    return exact & ~((converted != 0) & (np.abs(converted) < float(jnp.finfo(dtype).smallest_normal)))
