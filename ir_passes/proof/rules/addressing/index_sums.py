"""Sums of indices and `cu_seqlens` entries, and their comparisons.

A place p is in lane i if cu_seqlens[i] <= p < cu_seqlens[i + 1]. `in_lane` derives both inequalities from a mask's
conditions: entries never fall, and a real token is within its lane.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ir_passes.proof.intervals import fits
from ir_passes.proof.owners import Symbol
from ir_passes.proof.rules.addressing.access import constant_of
from ir_passes.proof.site import Site
from ir_passes.proof.values import Condition, Fact, IndexSum, Iota, Mask, OffsetEntry, SegmentIds, Term, Value

NON_NEGATIVE = 1 << 62
"""`IndexSum.below` if only elements with a negative sum are unspecified."""


def total(terms: Iterable[tuple[Term, int]], by: int = 0, below: int | None = None) -> IndexSum:
    factors = Counter[Term]()
    for term, factor in terms:
        factors[term] += factor
    return IndexSum(frozenset((term, factor) for term, factor in factors.items() if factor), by, below)


def single(term: Term, by: int = 0) -> IndexSum:
    return IndexSum(frozenset({(term, 1)}), by)


def difference(x: IndexSum, y: IndexSum, by: int = 0) -> IndexSum:
    """Return x - y + `by`; both are specified everywhere."""
    return total([*x.terms, *((term, -factor) for term, factor in y.terms)], x.by - y.by + by)


def sum_of(value: Value) -> IndexSum | None:
    fact, constant = value.fact, constant_of(value)
    if isinstance(fact, IndexSum):
        return fact
    if constant is not None:
        return IndexSum(frozenset(), constant)
    return single(fact) if isinstance(fact, SegmentIds) or (isinstance(fact, Iota) and fact.div == 1) else None


def as_fact(value: IndexSum) -> Fact | None:
    """Return the simplest fact about a sum, except a constant."""
    ((term, _),) = value.terms if len(value.terms) == 1 else ((None, 0),)
    if isinstance(term, Iota | SegmentIds) and value == single(term):
        return term
    return value if value.terms else None


def entry_of(fact: Fact | None) -> tuple[OffsetEntry, int] | None:
    """Return an array as an entry of cu_seqlens plus a constant."""
    if not isinstance(fact, IndexSum) or fact.below is not None or len(fact.terms) != 1:
        return None
    ((term, factor),) = fact.terms
    return (term, fact.by) if isinstance(term, OffsetEntry) and factor == 1 else None


def axes_of(value: IndexSum) -> set[int]:
    return {axis for term, _ in value.terms if (axis := getattr(term, "axis", None)) is not None}


def is_full(site: Site, operand: int, axes: Iterable[int]) -> bool:
    """True if an operand has the result's rank, and its length along `axes`."""
    shape = site.shapes[operand]
    if shape == ():
        return not [*axes]
    return len(shape) == len(site.shape) and all(shape[axis] == site.shape[axis] for axis in axes)


def is_representable(site: Site, value: IndexSum) -> bool:
    """True if the dtype of the result holds the sum in every layout."""
    low = high = value.by
    for term, factor in value.terms:
        match term:
            case Iota(axis):
                limit: int | None = max(site.shape[axis] - 1, 0)
            case Symbol(_, size):
                limit = size
            case SegmentIds():
                limit = site.prover.bound.lanes
            case OffsetEntry(layout):
                limit = site.prover.bound.layouts[layout]
        if limit is None:
            return False
        low, high = low + min(factor * limit, 0), high + max(factor * limit, 0)
    return fits(site.eqn.outvars[0].aval, low, high)


def mapped(fact: IndexSum | Mask, change: Callable[[IndexSum], IndexSum | None]) -> IndexSum | Mask | None:
    """Change a sum, or the sums of a mask's conditions; drop lost conditions."""
    if isinstance(fact, IndexSum):
        return change(fact)
    sides = []
    for conditions in (fact.if_true, fact.if_false):
        pairs = ((condition, change(condition.sum)) for condition in conditions)
        sides.append(frozenset(replace(condition, sum=new) for condition, new in pairs if new is not None))
    return Mask(*sides) if any(sides) else None


def substituted(term_of: Callable[[Term], tuple[Term | None, int] | None]) -> Callable[[IndexSum], IndexSum | None]:
    """Return the change of a sum by replacement of its terms.

    A term becomes another one, or 0 (None), plus a constant; None is a lost sum.
    """

    def change(value: IndexSum) -> IndexSum | None:
        terms, by = [], value.by
        for term, factor in value.terms:
            new = term_of(term)
            if new is None:
                return None
            by += factor * new[1]
            terms += [] if new[0] is None else [(new[0], factor)]
        return total(terms, by, value.below)

    return change


def with_axes(new_axis_of: Callable[[int], int | None]) -> Callable[[IndexSum], IndexSum | None]:
    def term_of(term: Term) -> tuple[Term, int] | None:
        if isinstance(term, Symbol) or term.axis is None:
            return term, 0
        axis = new_axis_of(term.axis)
        return None if axis is None else (replace(term, axis=axis), 0)

    return substituted(term_of)


def sliced(shape: Sequence[int], starts: Sequence[int]) -> Callable[[IndexSum], IndexSum | None]:

    def term_of(term: Term) -> tuple[Term | None, int] | None:
        axis = getattr(term, "axis", None)
        if axis is None:
            return term, 0
        start, is_single = int(starts[axis]), shape[axis] == 1
        match term:
            case Iota():
                return None if is_single else term, start
            case OffsetEntry(of_token=""):
                return replace(term, axis=None if is_single else axis, first=term.first + start), 0
        return (term, 0) if not start else None

    return substituted(term_of)


def at_number(symbol_of: Callable[[str], Symbol | None], value: IndexSum) -> IndexSum | None:
    """Return a sum at one index along axis 0.

    Args:
        symbol_of: layout of the axis, "" for lanes -> the index, if known.
    """
    entries = [term for term, _ in value.terms if isinstance(term, OffsetEntry)]
    lanes = any(term.axis == 0 and not term.of_token for term in entries)
    layouts = {term.of_token or term.layout for term in entries if term.of_token or not lanes}
    symbol = symbol_of(layouts.pop() if layouts else "") if len(layouts) <= 1 - lanes else None

    def term_of(term: Term) -> tuple[Term, int] | None:
        if isinstance(term, Symbol) or term.axis is None:
            return term, 0
        if term.axis:
            return replace(term, axis=term.axis - 1), 0
        if symbol is None or isinstance(term, SegmentIds):
            return None
        return (symbol if isinstance(term, Iota) else replace(term, axis=None, symbol=symbol)), 0

    return substituted(term_of)(value)


def _least_difference(x: Term, y: Term) -> int | None:
    """Return a lower bound of x - y for real tokens."""
    match x, y:
        case OffsetEntry(), OffsetEntry() if replace(x, first=y.first) == y and x.first >= y.first:
            return int(x.of_token == x.layout and x.first > 0 >= y.first)
        case index, OffsetEntry(layout, first, of_token=of_token) if of_token == layout and index == token_of(y):
            return 0 if first <= 0 else None
        case OffsetEntry(layout, first, of_token=of_token), index if of_token == layout and index == token_of(x):
            return 1 if first >= 1 else None
    return None


def token_of(bound: OffsetEntry) -> Term:
    return bound.symbol or Iota(bound.axis or 0)


def is_never_negative(value: IndexSum) -> bool:
    for x, positive in value.terms:
        for y, negative in value.terms:
            bound = _least_difference(x, y) if positive > 0 > negative else None
            if bound is not None:
                return is_never_negative(total([*value.terms, (x, -1), (y, 1)], value.by + bound))
    return value.by >= 0 and all(factor > 0 for _, factor in value.terms)


def is_implied(value: IndexSum, conditions: Iterable[Condition], last_indices: Mapping[int, int] | None = None) -> bool:
    """True if a sum is never negative, where the conditions hold.

    Args:
        last_indices: axis -> last index along it, for axes of this value that may be replaced by a bound.
    """
    known_sums = [condition.sum for condition in conditions if not condition.differs]
    # a condition with the lane of another token does not hold for padding
    known_sums = [known_sum for known_sum in known_sums if _lanes_of_tokens(known_sum) <= _lanes_of_tokens(value)]
    remainders = [difference(value, known_sum) for known_sum in (IndexSum(frozenset()), *known_sums)]
    for axis, last in (last_indices or {}).items():
        factors = [(remainder, dict(remainder.terms).get(Iota(axis), 0)) for remainder in remainders]
        # the least number of a falling sum is at the last index
        remainders += [
            total([*remainder.terms, (Iota(axis), -factor)], remainder.by + factor * last)
            for remainder, factor in factors
            if factor < 0
        ]
    return any(map(is_never_negative, remainders))


def _lanes_of_tokens(value: IndexSum) -> set[OffsetEntry]:
    return {replace(term, first=0) for term, _ in value.terms if isinstance(term, OffsetEntry) and term.of_token}


def in_lane(
    place: IndexSum, start: OffsetEntry, conditions: Iterable[Condition], last_indices: Mapping[int, int] | None = None
) -> bool:
    """True if a place is in the lane beginning at an entry.

    With an axis or a symbol, it is the lane of this index. `last_indices` is as in `is_implied`.
    """
    if start.first < 0 or (start.first and (start.axis is not None or start.symbol is not None)):
        return False
    begin, stop = single(start), single(replace(start, first=start.first + 1))
    ends = difference(place, begin), difference(stop, place, -1)
    return all(is_implied(end, conditions, last_indices) for end in ends)


def lane_number(start: OffsetEntry) -> int | Symbol | None:
    """Return the lane that begins at an entry, as in `OneLane`."""
    if start.axis is not None or start.of_token or (start.symbol is not None and start.first):
        return None
    return start.first if start.symbol is None else start.symbol


def conditions_of(fact: Fact | None, when: bool) -> frozenset[Condition]:
    return frozenset() if fact is None else fact.implied(when)


def full_conditions(site: Site, operand: int, fact: Fact | None, when: bool) -> frozenset[Condition]:
    """Return the conditions of an operand that hold at the result's indices."""
    conditions = conditions_of(fact, when)
    return frozenset(condition for condition in conditions if is_full(site, operand, axes_of(condition.sum)))


def real_tokens(site: Site, layout: str, index: Iota | Symbol) -> Condition:
    return Condition(difference(single(OffsetEntry(layout, site.prover.bound.lanes)), single(index), -1))
