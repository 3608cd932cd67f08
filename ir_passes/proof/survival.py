"""The facts that outlive an operation: one table of facts, operations and dtypes, which all rules consult.

A conversion is exact for a number if the dtype after it has that number. The 8 and 16-bit dtypes, and those of fewer
bits, are enumerated. For 32 and 64 bits arithmetic decides:

* A float with m stored bits of mantissa has every integer up to 2 ** (m + 1), and may lack the next one.
* A float keeps every finite value of another dtype finite if its greatest number is not below that dtype's greatest,
  and if it has zero and -1 (float8_e8m0fnu has neither, and converts both to nan).
* A float of 32 or 64 bits has many nans, and so has every dtype of 16 bits. A conversion keeps neither the sign nor the
  payload of a nan. So a dtype with two nans or more is never converted and converted back without loss.

A number that becomes subnormal counts as lost: processors may flush it to zero.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import DotAlgorithm, DotAlgorithmPreset

from ir_passes.jaxpr.dtypes import is_integer, is_key, limits
from ir_passes.proof.values import Absent, Fact, Finite, OneHot, TokenPairs

MAX_ENUMERATED_BITS = 16
_Floats = np.ndarray[Any, np.dtype[np.float64]]


def outlives(fact: Fact | None, name: str, before: Any, after: Any) -> Fact | None:
    """Return the fact that holds of the result of an operation on an array; None if nothing is known.

    Args:
        fact: of the first operand. The other operands depend on the row's lane only.
        name: of the primitive.
        before, after: dtypes of the first operand and of the result.
    """
    lasting = _TABLE.get((type(fact), name))
    return None if lasting is None else lasting(fact, before, after)


def reversible(before: Any, after: Any) -> bool:
    """True if a conversion to another dtype and back returns every bit of every element."""
    if before == after:
        return True
    if not _is_number(before) or not _is_number(after):
        return False
    if _bits(before) <= MAX_ENUMERATED_BITS:
        numbers = _every(before)
        return np.isnan(numbers).sum() <= 1 and bool(_exact(numbers, after).all())
    return _is_whole(before) and _has_integers(_bounds(before), after)


def holds(dtype: Any, number: float) -> bool:
    """True if a dtype has a number: 0, 1 or minus infinity, for example."""
    return _is_number(dtype) and bool(_exact(np.array([number]), dtype)[0])


def stays_finite(before: Any, after: Any) -> bool:
    """True if a conversion makes neither nan nor infinity of a finite number."""
    if before == after or _is_whole(after):
        return True
    if not _is_number(before) or not _is_number(after):
        return False
    greatest = max(map(abs, _bounds(before))) if _is_whole(before) else float(jnp.finfo(before).max)
    return holds(after, 0) and holds(after, -1) and greatest <= float(jnp.finfo(after).max)


def finite_in_product(fact: Fact | None, dtype: Any, result: Any, precision: Any) -> bool:
    """True if every element is finite, also as an operand of a product, which may round it.

    Args:
        fact: of the operand.
        dtype, result: of the operand and of the product.
        precision: the parameter of the product; an algorithm names the dtype that operands are rounded to.
    """
    rounded = [result]
    if isinstance(precision, DotAlgorithm):
        rounded += [precision.lhs_precision_type, precision.rhs_precision_type]
    if isinstance(precision, DotAlgorithmPreset):
        rounded += [_ROUNDED[part] for part in precision.name.split("_")[:2] if part in _ROUNDED]
    finite = isinstance(fact, Finite) or _is_whole(dtype)
    return finite and all(stays_finite(dtype, other) for other in rounded)


_ROUNDED = {"F16": jnp.float16, "BF16": jnp.bfloat16, "TF32": jnp.bfloat16, "F32": jnp.float32, "F64": jnp.float64}
"""Part of an algorithm's name -> a dtype with the same or a smaller greatest number than the operands then have."""


def _converted_mask(fact: Absent, before: Any, after: Any) -> Absent | None:
    return fact if holds(after, 0 if fact.zero else -np.inf) else None


_TABLE: dict[tuple[type, str], Callable[[Any, Any, Any], Fact | None]] = {
    (Absent, "convert_element_type"): _converted_mask,
    (Finite, "convert_element_type"): lambda fact, before, after: fact if stays_finite(before, after) else None,
    (OneHot, "convert_element_type"): lambda fact, before, after: fact if holds(after, 0) and holds(after, 1) else None,
    (TokenPairs, "convert_element_type"): lambda fact, before, after: fact,
    # minus infinity less anything is minus infinity or nan, and its exponential is zero
    (Absent, "sub"): lambda fact, before, after: None if fact.zero else fact,
    (Absent, "exp"): lambda fact, before, after: None if fact.zero else Absent(fact.rows, fact.columns, True),
    (Absent, "exp2"): lambda fact, before, after: None if fact.zero else Absent(fact.rows, fact.columns, True),
    (Absent, "mul"): lambda fact, before, after: fact if fact.zero else None,
    # zero divided by zero is nan; of integers it is -1
    (Absent, "div"): lambda fact, before, after: fact if fact.zero and not _is_whole(after) else None,
}
"""(fact, primitive) -> the fact of the result. A pair that is not listed keeps nothing."""


def _is_whole(dtype: Any) -> bool:
    return dtype == np.bool_ or is_integer(dtype)


def _is_number(dtype: Any) -> bool:
    return not is_key(dtype) and (_is_whole(dtype) or bool(jnp.issubdtype(dtype, jnp.floating)))


def _bounds(dtype: Any) -> tuple[int, int]:
    return (0, 1) if dtype == np.bool_ else limits(dtype)


def _bits(dtype: Any) -> int:
    if dtype == np.bool_:
        return 1
    return int(jnp.iinfo(dtype).bits if is_integer(dtype) else jnp.finfo(dtype).bits)


@cache
def _every(dtype: Any) -> _Floats:
    """Every value of a dtype of at most 16 bits, one for each bit pattern."""
    if _is_whole(dtype):
        low, high = _bounds(dtype)
        return np.arange(low, high + 1, dtype=np.float64)
    bits = _bits(dtype)
    patterns = np.arange(1 << bits, dtype=np.uint8 if bits <= 8 else np.uint16)
    with np.errstate(all="ignore"):
        return patterns.view(dtype).astype(np.float64)


def _has_integers(bounds: tuple[int, int], dtype: Any) -> bool:
    """True if a dtype has every integer within bounds."""
    if _is_whole(dtype):
        low, high = _bounds(dtype)
        return low <= bounds[0] and bounds[1] <= high
    info, greatest = jnp.finfo(dtype), max(map(abs, bounds))
    return holds(dtype, 0) and greatest <= min(2 ** (int(info.nmant) + 1), float(info.max))


def _exact(numbers: _Floats, dtype: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each number, True if a dtype has it, with the sign of a zero."""
    if _is_whole(dtype):
        low, high = _bounds(dtype)
        negative_zero = (numbers == 0) & np.signbit(numbers)
        return (numbers == np.round(numbers)) & (low <= numbers) & (numbers <= high) & ~negative_zero
    with np.errstate(all="ignore"):
        image = numbers.astype(dtype).astype(np.float64)
    same = (image == numbers) & (np.signbit(image) == np.signbit(numbers)) | np.isnan(image) & np.isnan(numbers)
    return same & ~((image != 0) & (np.abs(image) < float(jnp.finfo(dtype).smallest_normal)))
