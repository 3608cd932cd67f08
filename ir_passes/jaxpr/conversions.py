"""Conversions between dtypes: representable numbers and finite results.

A conversion to a float dtype keeps finite values finite if the dtype's greatest number is at least the source's, and if
the dtype represents 0 and -1 (float8_e8m0fnu converts both to nan). A dtype without negative zero uses its bit pattern
for nan, and XLA may round a small negative number to it.

A number that becomes subnormal counts as lost: processors may flush it to zero.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ir_passes.jaxpr.dtypes import is_integer, is_key, limits


def holds(dtype: Any, number: float) -> bool:
    """True if a dtype represents a number, such as 0 or -inf; False for nan."""
    if not _is_number(dtype):
        return False
    if is_whole(dtype):
        low, high = _bounds(dtype)
        return low <= number <= high and number == round(number) and not (number == 0 and bool(np.signbit(number)))
    with np.errstate(all="ignore"):
        converted = float(np.float64(number).astype(dtype))
    is_lost = converted != 0 and abs(converted) < float(jnp.finfo(dtype).smallest_normal)
    return converted == number and bool(np.signbit(converted) == np.signbit(number)) and not is_lost


def stays_finite(source: Any, target: Any) -> bool:
    if source == target or is_whole(target):
        return True
    if not _is_number(source) or not _is_number(target) or not (is_whole(source) or holds(target, -0.0)):
        return False
    greatest = max(map(abs, _bounds(source))) if is_whole(source) else float(jnp.finfo(source).max)
    return holds(target, 0) and holds(target, -1) and greatest <= float(jnp.finfo(target).max)


def is_whole(dtype: Any) -> bool:
    return dtype == np.bool_ or is_integer(dtype)


def _is_number(dtype: Any) -> bool:
    # Tokens have no dtype, and NumPy reads None as float64.
    return dtype is not None and not is_key(dtype) and (is_whole(dtype) or bool(jnp.issubdtype(dtype, jnp.floating)))


def _bounds(dtype: Any) -> tuple[int, int]:
    return (0, 1) if dtype == np.bool_ else limits(dtype)
