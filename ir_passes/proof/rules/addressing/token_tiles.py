"""Rows with the tokens of each lane, and loops over the tokens of one lane.

An index `cu_seqlens[i] + j` may leave lane i. A select by a mask `j < length of lane i` takes only elements of lane i's
tokens. The same mask in the index, with a number past the last token elsewhere, reads and writes tokens of lane i only,
if indices out of bounds are dropped.

A loop from `cu_seqlens[i]` to `cu_seqlens[i + 1]` counts the tokens of lane i.
"""

from dataclasses import replace
from itertools import product

from ir_passes.jaxpr import ir
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, Symbol
from ir_passes.proof.rules.addressing.access import Access
from ir_passes.proof.rules.addressing.index_sums import (
    axes_of,
    conditions_of,
    difference,
    entry_of,
    in_lane,
    is_implied,
    lane_number,
    single,
    sum_of,
)
from ir_passes.proof.rules.addressing.lane_guesses import starts_of_lanes
from ir_passes.proof.site import Site
from ir_passes.proof.values import IndexSum, Iota, Mask, OffsetEntry, OwnTokens, PlusConstant, TokenAt, TokenOf, Value


def masked_places(site: Site, mask: Value, cases: list[Value]) -> OwnTokens | None:
    """Return the fact about places of lanes, past the last token under a mask."""
    for when in (False, True):
        place, filler, conditions = cases[when].fact, cases[not when], conditions_of(mask.fact, when)
        if not conditions or not isinstance(place, IndexSum) or place.below is not None or filler.range is None:
            continue
        for start in starts_of_lanes(conditions):
            tokens, axis = site.prover.bound.layouts[start.layout], start.axis
            is_past = tokens is not None and filler.range[0] >= tokens
            if axis is not None and _has_all_lanes(site, start) and is_past and in_lane(place, start, conditions):
                return OwnTokens(start.layout, LaneRows(axis))
    return limited(site)


def limited(site: Site) -> OwnTokens | None:
    """Return the fact about a limited or selected place in its token's lane.

    A maximum is at least the first token if an operand is, and at most the last one if both are.
    """
    layouts = site.prover.bound.layouts
    for layout, of_token, axis in product(layouts, layouts, range(len(site.shape))):
        ends = (single(OffsetEntry(layout, first, axis, of_token=of_token), -first) for first in (0, 1))
        if _within(site, site.eqn, *ends) == (True, True):
            return OwnTokens(layout, LaneRows(axis, packed=of_token))
    return None


def _place(site: Site, atom: ir.Atom) -> IndexSum | None:
    place, shape = sum_of(site.prover.read(site.env, atom)), ir.shape_of(atom)
    if place is None or place.below is not None or len(shape) not in (0, len(site.shape)):
        return None
    return place if all(shape and shape[axis] == site.shape[axis] for axis in axes_of(place)) else None


def _within(site: Site, eqn: ir.JaxprEqn, first: IndexSum, last: IndexSum) -> tuple[bool, bool]:
    """Return whether a place is at least the first, at most the last token."""
    bounds, operands, mask = list[tuple[bool, bool]](), eqn.invars, None
    if eqn.primitive.name == "select_n":
        mask, *operands = eqn.invars
        mask = site.prover.read(site.env, mask).fact if ir.shape_of(mask) == site.shape else None
    for k, atom in enumerate(operands):
        place, maker, conditions = _place(site, atom), site.maker(atom), conditions_of(mask, bool(k))
        if place is not None:
            ends = difference(place, first), difference(last, place)
            bounds.append((is_implied(ends[0], conditions), is_implied(ends[1], conditions)))
        elif maker is not None and maker.primitive.name in ("max", "min", "select_n"):
            bounds.append(_within(site, maker, first, last))
        else:
            bounds.append((False, False))
    begins, stops = zip(*bounds, strict=True)
    begin, stop = {"max": (any, all), "min": (all, any)}.get(eqn.primitive.name, (all, all))
    return begin(begins), stop(stops)


def _has_all_lanes(site: Site, start: OffsetEntry) -> bool:
    return start.axis is not None and not start.of_token and site.shape[start.axis] == site.prover.bound.lanes


def selected(site: Site, operands: list[Value], result: Value) -> Value:
    mask, *cases = operands
    if len(cases) != 2 or not isinstance(mask.fact, Mask) or site.shapes[0] != site.shape:
        return result
    for when in (False, True):
        case, other, conditions = cases[when], cases[not when], conditions_of(mask.fact, when)
        token = _token_of_element(case)
        if token is None:
            continue
        last_indices = {axis: site.shape[axis] - 1 for axis in axes_of(token.place)}
        places = [replace(token.place, by=token.place.by + distance) for distance in {-token.back, token.ahead}]
        for start in starts_of_lanes(conditions):
            is_all, number = _has_all_lanes(site, start), lane_number(start)
            is_one = number is not None and (isinstance(number, Symbol) or number < site.prover.bound.lanes)
            is_row = bool(start.of_token) and start.axis is not None and site.shape[start.axis] > 1
            if start.layout != token.layout or not (is_all or is_one or is_row):
                continue
            if not all(in_lane(place, start, conditions, last_indices) for place in places):
                continue
            is_one = is_one or (site.prover.bound.lanes == 1 and not is_row)
            lane_owner = OneLane(number or 0) if is_one else LaneRows(start.axis or 0, packed=start.of_token)
            owner = site.join(lane_owner, mask.owner, other.owner)
            if not isinstance(owner, Mixed):
                return result.replace(owner=owner, fact=None)
    return result


def _token_of_element(value: Value) -> TokenAt | None:
    owner, fact = value.owner, value.fact
    if isinstance(owner, LaneRows) and owner == LaneRows(owner.axis, packed=owner.packed) and owner.packed:
        return TokenAt(owner.packed, single(Iota(owner.axis)))
    return fact if isinstance(owner, Mixed) and isinstance(fact, TokenAt) else None


def put(site: Site, owner: Owner, access: Access) -> Owner | None:
    """Return the owner of tokens after `owner` writes its own tokens."""
    for dim, index in access.columns.items():
        fact = index.fact
        if not isinstance(fact, OwnTokens | TokenOf):
            continue
        tokens = site.prover.bound.layouts[fact.layout]
        if tokens is None or access.sizes[dim] != 1 or not isinstance(index.owner, Common):
            continue
        rows = LaneRows(dim, packed=fact.layout)
        if isinstance(fact, TokenOf):
            if token_of(rows, dim, index) == owner and access.full[dim] >= tokens and access.scalar:
                return rows
        elif access.drops and not fact.rows.packed and fact.rows.axis < len(access.index_axes):
            if owner == replace(fact.rows, axis=access.index_axes[fact.rows.axis]):
                return rows
    return None


def token_of(rows: LaneRows, axis: int, index: Value) -> OneLane | None:
    fact = index.fact
    if not isinstance(fact, TokenOf) or fact.lane is None or fact.base != "start":
        return None
    return OneLane(fact.lane) if rows == LaneRows(axis, packed=fact.layout) else None


def bound_at(site: Site, entries: OffsetEntry, index: Value, length: int) -> OffsetEntry | None:
    lanes, number, by = site.prover.bound.lanes, index.number, 0
    if isinstance(index.fact, PlusConstant):
        number, by = index.fact.number, index.fact.by
    first = entries.first + by
    if first not in (0, 1) or not isinstance(index.owner, Common) or index.range is None:
        return None
    if not by <= index.range[0] <= index.range[1] < min(lanes + by, length):
        return None
    return OffsetEntry(entries.layout, first, symbol=Symbol(number, lanes))


def token_at(position: Value, start: Value) -> TokenOf | None:
    fact, (entry, by) = position.fact, entry_of(start.fact) or (None, 0)
    if not isinstance(fact, TokenOf) or fact.base != "length" or entry is None or by:
        return None
    same_lane = (fact.layout, fact.lane) == (entry.layout, lane_number(entry))
    return TokenOf(fact.layout, fact.lane) if same_lane else None


def counted(site: Site, start: Value, bound: Value) -> TokenOf | None:
    """Return the fact about a loop's counter of tokens; it begins at 0 or above.

    Args:
        bound: exclusive.
    """
    stop, begin = sum_of(bound), sum_of(start)
    entries = [term for term, factor in stop.terms if isinstance(term, OffsetEntry) and factor == 1] if stop else []
    if stop is None or stop.below is not None or not entries:
        return None
    entry = entries[0]
    previous = replace(entry, first=entry.first - 1)
    lane = lane_number(previous)
    has_lane = previous.first >= 0 and lane is not None and stop.by <= 0
    if has_lane and stop.terms == difference(single(entry), single(previous)).terms:
        return TokenOf(entry.layout, lane, "length") if start.range is not None and start.range[0] >= 0 else None
    begins = begin is not None and begin.below is None and begin.terms == single(previous).terms and begin.by >= 0
    if has_lane and begins and stop.terms == single(entry).terms:
        return TokenOf(entry.layout, lane)
    return TokenOf(entry.layout) if stop == single(OffsetEntry(entry.layout, site.prover.bound.lanes)) else None
