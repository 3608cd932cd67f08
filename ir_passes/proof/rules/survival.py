"""The facts that outlive an operation: one table of facts, operations and dtypes, which all rules consult."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import DotAlgorithm, DotAlgorithmPreset

from ir_passes.jaxpr.conversions import holds, is_whole, stays_finite
from ir_passes.proof.values import Absent, Fact, Finite, OneHot, TokenPairs


def outlives(fact: Fact | None, name: str, source: Any, target: Any) -> Fact | None:
    """Return the fact that holds of the result of an operation on an array; None if nothing is known.

    Args:
        fact: of the first operand. The other operands depend on the row's lane only.
        name: of the primitive.
        source, target: dtypes of the first operand and of the result.
    """
    lasting = _TABLE.get((type(fact), name))
    return None if lasting is None else lasting(fact, source, target)


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
    finite = isinstance(fact, Finite) or is_whole(dtype)
    return finite and all(stays_finite(dtype, other) for other in rounded)


_ROUNDED = {"F16": jnp.float16, "BF16": jnp.bfloat16, "TF32": jnp.bfloat16, "F32": jnp.float32, "F64": jnp.float64}
"""Part of an algorithm's name -> a dtype with the same or a smaller greatest number than the operands then have."""


def _converted_mask(fact: Absent, source: Any, target: Any) -> Absent | None:
    return fact if holds(target, 0 if fact.zero else -np.inf) else None


_TABLE: dict[tuple[type, str], Callable[[Any, Any, Any], Fact | None]] = {
    (Absent, "convert_element_type"): _converted_mask,
    (Finite, "convert_element_type"): lambda fact, source, target: fact if stays_finite(source, target) else None,
    (OneHot, "convert_element_type"): lambda fact, source, target: (
        fact if holds(target, 0) and holds(target, 1) else None
    ),
    (TokenPairs, "convert_element_type"): lambda fact, source, target: fact,
    # minus infinity less anything is minus infinity or nan, and its exponential is zero
    (Absent, "sub"): lambda fact, source, target: None if fact.zero else fact,
    (Absent, "exp"): lambda fact, source, target: None if fact.zero else Absent(fact.rows, fact.columns, True),
    (Absent, "exp2"): lambda fact, source, target: None if fact.zero else Absent(fact.rows, fact.columns, True),
    (Absent, "mul"): lambda fact, source, target: fact if fact.zero else None,
    # zero divided by zero is nan; of integers it is -1
    (Absent, "div"): lambda fact, source, target: fact if fact.zero and not is_whole(target) else None,
}
"""(fact, primitive) -> the fact of the result. A pair that is not listed keeps nothing."""
