"""The table of facts that survive an operation, shared by all rules."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.lax import DotAlgorithm, DotAlgorithmPreset

from ir_passes.jaxpr.conversions import holds, is_whole, stays_finite
from ir_passes.proof.values import Fact, Finite, Mask, MaskedOut, OneHot, TokenPairs


def outlives(fact: Fact | None, name: str, source: Any, target: Any) -> Fact | None:
    """Return a result's fact; all operands but the first depend on the row's lane."""
    rule = _TABLE.get((type(fact), name))
    return None if rule is None else rule(fact, source, target)


def finite_in_product(fact: Fact | None, dtype: Any, result: Any, precision: Any) -> bool:
    """True if every element is finite, also rounded by a product without an algorithm."""
    rounds = isinstance(precision, DotAlgorithm | DotAlgorithmPreset)
    return (fact == Finite() or is_whole(dtype)) and not rounds and stays_finite(dtype, result)


_TABLE: dict[tuple[type, str], Callable[[Any, Any, Any], Fact | None]] = {
    (MaskedOut, "convert_element_type"): lambda fact, source, target: (
        fact if holds(target, 0 if fact.zero else -np.inf) else None
    ),
    (Mask, "convert_element_type"): lambda fact, source, target: fact if is_whole(target) else None,
    (Finite, "convert_element_type"): lambda fact, source, target: (
        fact if fact == Finite() and stays_finite(source, target) else None
    ),
    (OneHot, "convert_element_type"): lambda fact, source, target: (
        fact if holds(target, 0) and holds(target, 1) else None
    ),
    (TokenPairs, "convert_element_type"): lambda fact, source, target: fact,
    # minus infinity minus any number is minus infinity or nan; the exponential of minus infinity is zero
    (MaskedOut, "sub"): lambda fact, source, target: None if fact.zero else fact,
    (MaskedOut, "exp"): lambda fact, source, target: None if fact.zero else MaskedOut(fact.rows, fact.columns, True),
    (MaskedOut, "exp2"): lambda fact, source, target: None if fact.zero else MaskedOut(fact.rows, fact.columns, True),
    (MaskedOut, "mul"): lambda fact, source, target: fact if fact.zero else None,
    # zero divided by zero is nan for floats and -1 for integers
    (MaskedOut, "div"): lambda fact, source, target: fact if fact.zero and not is_whole(target) else None,
}
"""(fact, primitive) -> rule for the result's fact. Without an entry no fact survives."""
