"""Conversions between dtypes: the numbers that a dtype has, and the conversions that lose nothing.

A conversion is exact for a number if the new dtype has that number. The dtypes of at most 16 bits are enumerated.
For 32 and 64 bits arithmetic decides:

* A float with m stored bits of mantissa has every integer up to 2 ** (m + 1), and may lack the next one.
* A float keeps every finite value of another dtype finite if its greatest number is not below that dtype's greatest,
  and if it has zero and -1 (float8_e8m0fnu has neither, and converts both to nan). A dtype without negative zero has
  its nan there, and XLA may round a small negative number to it: then the conversion of every number must be exact.
* Most floats have many nans, and a conversion keeps neither the sign nor the payload of one. A dtype with two nans or
  more is never converted and converted back without loss.

A number that becomes subnormal counts as lost: processors may flush it to zero.
"""

from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from ir_passes.jaxpr.dtypes import is_integer, is_key, limits

MAX_ENUMERATED_BITS = 16
_Floats = np.ndarray[Any, np.dtype[np.float64]]


def reversible(source: Any, target: Any) -> bool:
    """True if a conversion to another dtype and back returns every bit of every element."""
    if source == target:
        return True
    if not _is_number(source) or not _is_number(target):
        return False
    if _bits(source) <= MAX_ENUMERATED_BITS:
        numbers = _every(source)
        return np.isnan(numbers).sum() <= 1 and bool(_exact(numbers, target).all())
    return is_whole(source) and _has_integers(_bounds(source), target)


def holds(dtype: Any, number: float) -> bool:
    """True if a dtype has a number: 0, 1 or minus infinity, for example."""
    return _is_number(dtype) and bool(_exact(np.array([number]), dtype)[0])


def stays_finite(source: Any, target: Any) -> bool:
    """True if a conversion makes neither nan nor infinity of a finite number."""
    if source == target or is_whole(target):
        return True
    if not _is_number(source) or not _is_number(target):
        return False
    if not is_whole(source) and not holds(target, -0.0):
        if _bits(source) > MAX_ENUMERATED_BITS:
            return False
        numbers = _every(source)
        return bool(_exact(numbers[np.isfinite(numbers)], target).all())
    greatest = max(map(abs, _bounds(source))) if is_whole(source) else float(jnp.finfo(source).max)
    return holds(target, 0) and holds(target, -1) and greatest <= float(jnp.finfo(target).max)


def is_whole(dtype: Any) -> bool:
    """True for integers of any width and booleans."""
    return dtype == np.bool_ or is_integer(dtype)


def _is_number(dtype: Any) -> bool:
    return not is_key(dtype) and (is_whole(dtype) or bool(jnp.issubdtype(dtype, jnp.floating)))


def _bounds(dtype: Any) -> tuple[int, int]:
    return (0, 1) if dtype == np.bool_ else limits(dtype)


def _bits(dtype: Any) -> int:
    if dtype == np.bool_:
        return 1
    return int(jnp.iinfo(dtype).bits if is_integer(dtype) else jnp.finfo(dtype).bits)


@cache
def _every(dtype: Any) -> _Floats:
    """Every value of a dtype of at most 16 bits, one for each bit pattern."""
    if is_whole(dtype):
        low, high = _bounds(dtype)
        return np.arange(low, high + 1, dtype=np.float64)
    bits = _bits(dtype)
    patterns = np.arange(1 << bits, dtype=np.uint8 if bits <= 8 else np.uint16)
    with np.errstate(all="ignore"):
        return patterns.view(dtype).astype(np.float64)


def _has_integers(bounds: tuple[int, int], dtype: Any) -> bool:
    """True if a dtype has every integer within bounds."""
    if is_whole(dtype):
        low, high = _bounds(dtype)
        return low <= bounds[0] and bounds[1] <= high
    info, greatest = jnp.finfo(dtype), max(map(abs, bounds))
    return holds(dtype, 0) and greatest <= min(2 ** (int(info.nmant) + 1), float(info.max))


def _exact(numbers: _Floats, dtype: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each number, True if a dtype has it, with the sign of a zero."""
    if is_whole(dtype):
        low, high = _bounds(dtype)
        negative_zero = (numbers == 0) & np.signbit(numbers)
        return (numbers == np.round(numbers)) & (low <= numbers) & (numbers <= high) & ~negative_zero
    with np.errstate(all="ignore"):
        image = numbers.astype(dtype).astype(np.float64)
    same = (image == numbers) & (np.signbit(image) == np.signbit(numbers)) | np.isnan(image) & np.isnan(numbers)
    return same & ~((image != 0) & (np.abs(image) < float(jnp.finfo(dtype).smallest_normal)))
