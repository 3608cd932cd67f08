"""Concrete meaning of sums of indices and entries of cu_seqlens, and of masks with conditions of such sums."""

from collections.abc import Mapping
from itertools import product

import numpy as np

from ir_passes.proof.owners import Symbol
from ir_passes.proof.values import IndexSum, Iota, Mask, OffsetEntry, SegmentIds

Numbers = Mapping[Symbol, int]
Layouts = Mapping[str, tuple[np.ndarray, np.ndarray]]


def evaluated(
    value: IndexSum, shape: tuple[int, ...], layouts: Layouts, numbers: Numbers
) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements of a sum, and which of them are specified.

    Args:
        value: the sum.
        shape: of the array.
        layouts: name of a layout -> cu_seqlens [N + 1], and the lane of each token [tokens], N for padding.
        numbers: number of each iteration.
    """
    index = np.indices(shape)
    total, is_known = np.full(shape, value.by), np.ones(shape, bool)
    for term, factor in value.terms:
        match term:
            case Symbol():
                part = np.full(shape, numbers[term])
            case Iota(axis):
                part = index[axis]
            case SegmentIds(axis, layout, padding):
                segment, lanes = layouts[layout][1], len(layouts[layout][0]) - 1
                part = segment[np.minimum(index[axis], len(segment) - 1)]
                is_known = is_known & ((part < lanes) | (padding == "past"))
            case OffsetEntry(layout, first, axis, symbol, of_token):
                cu, lanes = layouts[layout][0], len(layouts[layout][0]) - 1
                place = numbers[symbol] if symbol is not None else 0
                place = np.full(shape, place) if axis is None else index[axis]
                if of_token:
                    segment = layouts[of_token][1]
                    is_known = is_known & (place < len(segment))
                    place = segment[np.minimum(place, len(segment) - 1)]
                    is_known = is_known & (place < lanes)
                part = cu[np.minimum(place + first, lanes)]
        total = total + factor * part
    if value.below is not None:
        is_known = is_known & (total >= 0) & (total < value.below)
    return total, is_known


def sum_or_mask_holds(fact: IndexSum | Mask, array: np.ndarray, layouts: Layouts) -> bool:
    """True if a fact holds of an array for some numbers of its loop iterations."""
    sums = [fact] if isinstance(fact, IndexSum) else [each.sum for each in (*fact.if_true, *fact.if_false)]
    symbols = list({symbol for each in sums for term, _ in each.terms if (symbol := symbol_of(term)) is not None})
    choices = product(*(range(max(symbol.size, 1)) for symbol in symbols))
    return any(_holds(fact, array, layouts, dict(zip(symbols, each, strict=True))) for each in choices)


def symbol_of(term: object) -> Symbol | None:
    """Return the number of the iteration of a term, if any."""
    return term if isinstance(term, Symbol) else getattr(term, "symbol", None)


def _holds(fact: IndexSum | Mask, array: np.ndarray, layouts: Layouts, numbers: Numbers) -> bool:
    if isinstance(fact, IndexSum):
        total, is_known = evaluated(fact, array.shape, layouts, numbers)
        return bool((array == total)[is_known].all())
    for conditions, when in ((fact.if_true, True), (fact.if_false, False)):
        for condition in conditions:
            total, is_known = evaluated(condition.sum, array.shape, layouts, numbers)
            is_met = total != 0 if condition.differs else total >= 0
            if not is_met[is_known & (array.astype(bool) == when)].all():
                return False
    return True
