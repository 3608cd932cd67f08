"""Bounds of integer and boolean results from bounds of the operands."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ir_passes.jaxpr.dtypes import is_integer, limits
from ir_passes.proof.values import Range

TRUE, FALSE, EITHER = (1, 1), (0, 0), (0, 1)


def dtype_range(aval: Any) -> Range | None:
    return _range_of(getattr(aval, "dtype", None))


@cache
def _range_of(dtype: Any) -> Range | None:
    if dtype is not None and dtype == np.bool_:
        return EITHER
    return limits(dtype) if dtype is not None and is_integer(dtype) else None


def fits(aval: Any, *numbers: int) -> bool:
    limits = dtype_range(aval)
    return limits is not None and all(limits[0] <= number <= limits[1] for number in numbers)


def interval(name: str, operands: list[Range | None], result: Any, inputs: list[Any]) -> Range | None:
    """Return bounds of an elementwise result, if narrower than its dtype's."""
    rule = _RULES.get(name)
    limits = dtype_range(result)
    if rule is None or limits is None or (name == "not" and result.dtype != np.bool_):
        return None
    bounds = [bounds or dtype_range(aval) for bounds, aval in zip(operands, inputs, strict=True)]
    span = None if None in bounds else rule(*bounds)
    return None if span is None or span[0] < limits[0] or span[1] > limits[1] else span


def hull(*intervals: Range | None) -> Range | None:
    """Return the hull of intervals; None if one is unknown."""
    if not intervals or None in intervals:
        return None
    lows, highs = zip(*filter(None, intervals), strict=True)
    return min(lows), max(highs)


def _corners(combine: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    def rule(a: Range, b: Range) -> Range:
        corners = [combine(x, y) for x in a for y in b]
        return min(corners), max(corners)

    return rule


def _truncated(x: int, y: int) -> int:
    quotient = abs(x) // abs(y)
    return quotient if (x >= 0) == (y >= 0) else -quotient


def _divided(a: Range, b: Range) -> Range | None:
    return None if b[0] <= 0 <= b[1] else _corners(_truncated)(a, b)


def _remainder(a: Range, b: Range) -> Range | None:
    if b[0] <= 0:
        return None
    if 0 <= a[0] and a[1] < b[0]:
        return a
    return (0 if a[0] >= 0 else 1 - b[1], b[1] - 1 if a[1] > 0 else 0)


Test = Callable[[Range, Range], bool]


def _decided(yes: Test, no: Test) -> Callable[[Range, Range], Range]:
    return lambda a, b: TRUE if yes(a, b) else FALSE if no(a, b) else EITHER


def _equal(a: Range, b: Range) -> bool:
    return a[0] == a[1] == b[0] == b[1]


def _apart(a: Range, b: Range) -> bool:
    return a[1] < b[0] or b[1] < a[0]


def _and(a: Range, b: Range) -> Range | None:
    if a[0] < 0 or b[0] < 0:
        # a non-negative operand limits the bits of the result
        masks = [bounds[1] for bounds in (a, b) if bounds[0] >= 0]
        return (0, min(masks)) if masks else None
    if a[1] <= 1 and b[1] <= 1:
        return min(a[0], b[0]), min(a[1], b[1])
    return 0, min(a[1], b[1])


def _or(a: Range, b: Range) -> Range | None:
    if a[0] < 0 or b[0] < 0 or a[1] > 1 or b[1] > 1:
        return None
    return max(a[0], b[0]), max(a[1], b[1])


_below = _decided(lambda a, b: a[1] < b[0], lambda a, b: a[0] >= b[1])
_at_most = _decided(lambda a, b: a[1] <= b[0], lambda a, b: a[0] > b[1])

_RULES: dict[str, Callable[..., Range | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _corners(lambda x, y: x * y),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "div": _divided,
    "rem": _remainder,
    "neg": lambda a: (-a[1], -a[0]),
    "abs": lambda a: (0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1])), max(abs(a[0]), abs(a[1]))),
    "sign": lambda a: ((a[0] > 0) - (a[0] < 0), (a[1] > 0) - (a[1] < 0)),
    "lt": _below,
    "le": _at_most,
    "gt": lambda a, b: _below(b, a),
    "ge": lambda a, b: _at_most(b, a),
    "eq": _decided(_equal, _apart),
    "ne": _decided(_apart, _equal),
    "and": _and,
    "or": _or,
    "not": lambda a: (1 - a[1], 1 - a[0]) if a[0] >= 0 and a[1] <= 1 else None,
    "clamp": lambda low, x, high: (min(max(x[0], low[0]), high[0]), min(max(x[1], low[1]), high[1])),
    "convert_element_type": lambda a: a,
}
