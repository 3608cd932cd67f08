"""Concrete meaning of sums of indices and entries of cu_seqlens, and of masks with conditions of such sums."""

from collections.abc import Mapping
from itertools import product

import numpy as np

from ir_passes.proof.owners import Symbol
from ir_passes.proof.values import Entry, IndexSum, Iota, Mask, SegmentIds, Turn

Numbers = Mapping[Symbol, int]


def evaluated(
    value: IndexSum, shape: tuple[int, ...], cu: np.ndarray, segment: np.ndarray, numbers: Numbers
) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements of a sum, and which of them are specified.

    Args:
        value: the sum.
        shape: of the array.
        cu: [N + 1], cu_seqlens.
        segment: [tokens], the lane of each token; N for padding.
        numbers: number of each iteration.
    """
    lanes, index = len(cu) - 1, np.indices(shape)
    total, is_known = np.full(shape, value.by), np.ones(shape, bool)
    for term, factor in value.terms:
        match term:
            case Turn(symbol):
                part = np.full(shape, numbers[symbol])
            case Iota(axis):
                part = index[axis]
            case SegmentIds(axis, _, padding):
                part = np.minimum(segment[np.minimum(index[axis], len(segment) - 1)], lanes - (padding == "last"))
            case Entry(_, first, axis, symbol, of_token):
                place = numbers[symbol] if symbol is not None else 0
                place = np.full(shape, place) if axis is None else index[axis]
                if of_token:
                    is_known = is_known & (place < len(segment))
                    place = segment[np.minimum(place, len(segment) - 1)]
                    is_known = is_known & (place < lanes)
                part = cu[np.minimum(place + first, lanes)]
        total = total + factor * part
    if value.below is not None:
        is_known = is_known & (total >= 0) & (total < value.below)
    return total, is_known


def sum_or_mask_holds(fact: IndexSum | Mask, array: np.ndarray, cu: np.ndarray, segment: np.ndarray) -> bool:
    """True if a fact holds of an array for some numbers of its loop iterations."""
    sums = [fact] if isinstance(fact, IndexSum) else [each.sum for each in (*fact.if_true, *fact.if_false)]
    symbols = list({symbol for each in sums for term, _ in each.terms if (symbol := _symbol(term)) is not None})
    choices = product(*(range(max(symbol.size, 1)) for symbol in symbols))
    return any(_holds(fact, array, cu, segment, dict(zip(symbols, each, strict=True))) for each in choices)


def _symbol(term: object) -> Symbol | None:
    return term.symbol if isinstance(term, Turn | Entry) else None


def _holds(fact: IndexSum | Mask, array: np.ndarray, cu: np.ndarray, segment: np.ndarray, numbers: Numbers) -> bool:
    if isinstance(fact, IndexSum):
        total, is_known = evaluated(fact, array.shape, cu, segment, numbers)
        return bool((array == total)[is_known].all())
    for conditions, when in ((fact.if_true, True), (fact.if_false, False)):
        for condition in conditions:
            total, is_known = evaluated(condition.sum, array.shape, cu, segment, numbers)
            is_met = total != 0 if condition.differs else total >= 0
            if not is_met[is_known & (array.astype(bool) == when)].all():
                return False
    return True
