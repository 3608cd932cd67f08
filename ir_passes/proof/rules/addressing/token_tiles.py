"""Rows with the tokens of each lane, and loops over the tokens of one lane.

An index `cu_seqlens[i] + j` may leave lane i. A select by a mask `j < length of lane i` takes an element only if its
token belongs to lane i: so the rows of the result are rows of lanes. The same mask in the index, with a number past the
last token elsewhere, reads and writes tokens of lane i only, if indices out of bounds are dropped.

A loop from `cu_seqlens[i]` to `cu_seqlens[i + 1]` counts the tokens of lane i.
"""

from dataclasses import replace

from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, Symbol
from ir_passes.proof.rules.addressing.access import Access, constant_of
from ir_passes.proof.site import Site
from ir_passes.proof.values import (
    Fact,
    IndexSum,
    Iota,
    LaneBound,
    Lengths,
    NonPadding,
    Offsets,
    OneLaneMask,
    OwnTokens,
    PlusConstant,
    TilePlaces,
    TokenOf,
    TokenSpan,
    Value,
    WithinLength,
)

_LIMITS = {"start": {"ge": 0, "gt": 1, "lt": 0, "le": 1}, "stop": {"lt": 0, "le": 1, "ge": 0, "gt": 1}}
"""Side of a lane -> comparison of a token with this bound -> least or greatest lead of the token."""


def rows_of_lanes(site: Site, axis: int) -> Owner:
    """Return the owner of an array with all lanes along an axis."""
    return OneLane(0) if site.prover.bound.lanes == 1 else LaneRows(axis)


def places(site: Site, offset: Value, index: IndexSum | None, slope: int) -> TilePlaces | None:
    """Return the fact about bounds of lanes plus or minus an index along another axis."""
    fact = offset.fact
    if not isinstance(fact, Offsets) or fact.axis is None or fact.first not in (0, 1) or index is None:
        return None
    if fact.axis == index.axis or site.shape[fact.axis] != site.prover.bound.lanes:
        return None
    return TilePlaces(fact.layout, fact.axis, index.axis, fact.first, fact.plus + slope * index.by, slope)


def length_mask(site: Site, name: str, x: Value, index: IndexSum | None, y: Value) -> WithinLength | None:
    """Return the mask of comparing places with ends of lanes, or an index with lengths.

    Args:
        name: of the comparison.
        x, y: its operands.
        index: of `x`, if it counts along an axis.
    """
    place, end, lanes = x.fact, y.fact, site.prover.bound.lanes
    if isinstance(place, TilePlaces) and isinstance(end, Offsets) and place.exact and end.axis == place.axis:
        if place.layout != end.layout or end.first != 1 - place.base:
            return None
        axis, window, layout = place.axis, place.window, place.layout
        # j + lead < length, with slope 1; j + lead < length + 1, with slope -1
        lead = place.plus - end.plus if place.slope == 1 else end.plus - place.plus
        reaches = {"lt": lead, "le": lead - 1, "ge": lead, "gt": lead - 1}
        when = name in ("lt", "le")
        if place.slope == -1:
            reaches, when = {"ge": lead - 1, "gt": lead, "lt": lead - 1, "le": lead}, name in ("ge", "gt")
        if place.slope != (1 if place.base == 0 else -1):
            return None
    elif isinstance(end, Lengths) and index is not None and end.axis is not None and end.axis != index.axis:
        if end.first != 0:
            return None
        axis, window, layout, lead = end.axis, index.axis, end.layout, index.by - end.plus
        reaches, when = {"lt": lead, "le": lead - 1, "ge": lead, "gt": lead - 1}, name in ("lt", "le")
    else:
        return None
    is_mask = name in reaches and reaches[name] >= 0 and site.shape[axis] == lanes
    return WithinLength(layout, axis, window, reaches[name], when) if is_mask else None


def _within_mask(place: TilePlaces | TokenSpan, mask: WithinLength) -> bool:
    """True if the mask keeps tokens of the lane of each row only."""
    plus = place.plus if isinstance(place, TilePlaces) else place.start
    if (place.layout, place.axis, place.window) != (mask.layout, mask.axis, mask.window):
        return False
    if (place.base, place.slope) == (0, 1):
        return 0 <= plus <= mask.reach
    return (place.base, place.slope) == (1, -1) and 0 <= -plus - 1 <= mask.reach


def masked_places(site: Site, mask: Value, cases: list[Value]) -> OwnTokens | None:
    """Return the fact about places of lanes, past the last token under a false mask."""
    fact = mask.fact
    if not isinstance(fact, WithinLength):
        return None
    place, filler = cases[fact.when], cases[not fact.when]
    tokens = site.prover.bound.layouts[fact.layout]
    is_past = tokens is not None and filler.range is not None and filler.range[0] >= tokens
    if not isinstance(place.fact, TilePlaces) or not is_past or not _within_mask(place.fact, fact):
        return None
    return OwnTokens(fact.layout, LaneRows(fact.axis))


def selected(site: Site, operands: list[Value], result: Value) -> Value:
    """Return the result of a select: tokens of each row's lane, or of one lane."""
    mask, *cases = operands
    fact = mask.fact
    if len(cases) != 2 or not isinstance(fact, WithinLength | OneLaneMask) or site.shapes[0] != site.shape:
        return result
    case, other = cases[fact.when], cases[not fact.when]
    if isinstance(fact, WithinLength):
        is_own = isinstance(case.owner, Mixed) and isinstance(case.fact, TokenSpan) and _within_mask(case.fact, fact)
        lane_owner: Owner = rows_of_lanes(site, fact.axis)
    else:
        is_own = fact.side == "both" and case.owner == LaneRows(fact.axis, packed=fact.layout)
        lane_owner = OneLane(fact.lane)
    if not is_own:
        return result
    owner = site.join(lane_owner, mask.owner, other.owner)
    return result if isinstance(owner, Mixed) else result.replace(owner=owner, fact=None)


def gathered(site: Site, operand: Value, access: Access, result: Value) -> Value:
    """Return the tokens of lanes that an index with places of lanes selects."""
    owner = operand.owner
    if not isinstance(owner, LaneRows) or owner.axis not in access.columns or access.paired:
        return result
    if any(constant_of(value) is None for dim, value in access.columns.items() if dim != owner.axis):
        return result
    axis, index = owner.axis, access.columns[owner.axis]
    tokens = site.prover.bound.layouts.get(owner.packed)
    if tokens is None or owner != LaneRows(axis, packed=owner.packed) or not isinstance(index.owner, Common):
        return result
    fact, size = index.fact, access.sizes[axis]
    if isinstance(fact, OwnTokens) and fact.layout == owner.packed and size == 1:
        is_dropped = access.drops and access.full[axis] == tokens and fact.rows.axis < len(access.index_axes)
        rows = replace(fact.rows, axis=access.index_axes[fact.rows.axis]) if is_dropped else None
        return result if rows is None or site.prover.bound.lanes == 1 else result.replace(owner=rows, fact=None)
    if isinstance(fact, TilePlaces) and fact.layout == owner.packed and size == 1:
        if max(fact.axis, fact.window) >= len(access.index_axes) or not isinstance(result.owner, Mixed):
            return result
        # a clamped place outside of all tokens is in no lane
        places = [access.index_axes[fact.axis], access.index_axes[fact.window]]
        span = TokenSpan(fact.layout, places[0], fact.plus, 1, 0, 0, places[1], fact.slope, fact.base)
        return result.replace(fact=span) if access.full[axis] >= tokens else result
    if not isinstance(fact, Offsets) or (fact.axis, fact.plus) != (0, 0) or fact.first not in (0, 1):
        return result
    if fact.layout == owner.packed and axis in access.window and access.full[axis] - size >= tokens:
        if access.index_shape[0] == site.prover.bound.lanes and isinstance(result.owner, Mixed):
            places = [access.index_axes[0], access.window[axis]]
            return result.replace(fact=TokenSpan(fact.layout, places[0], 0, 1, 0, 0, places[1], 1, fact.first))
    return result


def put(site: Site, owner: Owner, access: Access) -> Owner | None:
    """Return the owner of tokens after lanes write their own tokens; None for other writes.

    Args:
        owner: joint owner of the updates and the indices.
    """
    for dim, index in access.columns.items():
        fact = index.fact
        if not isinstance(fact, OwnTokens | TokenOf):
            continue
        tokens = site.prover.bound.layouts[fact.layout]
        if tokens is None or access.sizes[dim] != 1 or not isinstance(index.owner, Common):
            continue
        rows = LaneRows(dim, packed=fact.layout)
        if isinstance(fact, TokenOf):
            if fact.base == "start" and owner == OneLane(fact.lane) and access.full[dim] >= tokens and access.scalar:
                return rows
        elif access.drops and fact.rows.axis < len(access.index_axes):
            if owner == replace(fact.rows, axis=access.index_axes[fact.rows.axis]):
                return rows
    return None


def token_of(rows: LaneRows, axis: int, index: Value) -> OneLane | None:
    """Return the lane of a token in a loop over tokens of one lane, or None."""
    fact = index.fact
    if not isinstance(fact, TokenOf) or fact.base != "start" or rows != LaneRows(axis, packed=fact.layout):
        return None
    return OneLane(fact.lane)


def bound_at(site: Site, offsets: Offsets, index: Value) -> LaneBound | None:
    """Return the fact about the entry of cu_seqlens at a lane of a loop, or at the lane after it."""
    lanes, number, by = site.prover.bound.lanes, index.number, 0
    if isinstance(index.fact, PlusConstant):
        number, by = index.fact.number, index.fact.by
    first = offsets.first + by
    if offsets.axis != 0 or first not in (0, 1) or not isinstance(index.owner, Common) or index.range is None:
        return None
    if not by <= index.range[0] <= index.range[1] < lanes + by:
        return None
    return LaneBound(offsets.layout, Symbol(number, lanes), ("start", "stop")[first], offsets.plus)


def as_bound(fact: Fact | None, base: str) -> LaneBound | None:
    """Return an entry of cu_seqlens as the start or stop of a lane."""
    if isinstance(fact, Offsets) and fact.axis is None:
        lane = fact.first - (base == "stop")
        return LaneBound(fact.layout, lane, base, fact.plus) if lane >= 0 else None
    return fact if isinstance(fact, LaneBound) and fact.base == base else None


def length_of(x: Value, y: Value) -> LaneBound | None:
    """Return the length of a lane, the difference of its bounds."""
    stop, start = as_bound(x.fact, "stop"), as_bound(y.fact, "start")
    if stop is None or start is None or (stop.layout, stop.lane) != (start.layout, start.lane):
        return None
    return LaneBound(stop.layout, stop.lane, "length", stop.plus - start.plus)


def token_at(x: Value, y: Value) -> TokenOf | None:
    """Return the fact about the start of a lane plus a position in the lane."""
    position, start = x.fact, as_bound(y.fact, "start")
    if not isinstance(position, TokenOf) or position.base != "length" or start is None or start.plus:
        return None
    same_lane = (position.layout, position.lane) == (start.layout, start.lane)
    return TokenOf(position.layout, position.lane) if same_lane else None


def counted(start: Value, bound: Value) -> TokenOf | None:
    """Return the fact about a counter of a loop over the tokens of one lane.

    Args:
        start: the counter before the loop.
        bound: the number that it stays below.
    """
    length = bound.fact
    if isinstance(length, LaneBound) and length.base == "length" and length.plus <= 0:
        is_position = start.range is not None and start.range[0] >= 0
        return TokenOf(length.layout, length.lane, "length") if is_position else None
    begin, stop = as_bound(start.fact, "start"), as_bound(bound.fact, "stop")
    if begin is None or stop is None or begin.plus < 0 or stop.plus > 0:
        return None
    return TokenOf(stop.layout, stop.lane) if (stop.layout, stop.lane) == (begin.layout, begin.lane) else None


def one_lane_mask(name: str, token: IndexSum | None, bound: Value) -> OneLaneMask | None:
    """Return the mask of comparing tokens with the start or end of one lane."""
    if token is None or token.window is not None:
        return None
    base = "start" if name in ("ge", "lt") else "stop"
    for base in ("start", "stop"):
        limit, fact = _LIMITS[base].get(name), as_bound(bound.fact, base)
        if limit is None or fact is None:
            continue
        lead, when = token.by - fact.plus, (name in ("ge", "gt")) == (base == "start")
        # a static entry is the start of one lane and the end of the lane before it: the test tells which
        is_static, tests_start = isinstance(bound.fact, Offsets), name in ("ge", "gt")
        if is_static and tests_start != (base == "start"):
            continue
        if lead <= limit if base == "start" else lead >= limit:
            return OneLaneMask(fact.layout, token.axis, fact.lane, base, when)
    return None


def both_sides(site: Site, facts: list[Fact | None], when: bool) -> OneLaneMask | None:
    """Return the mask of tokens of one lane from the masks of its two bounds."""
    masks = {fact.side: fact for fact in facts if isinstance(fact, OneLaneMask) and fact.when == when}
    start, stop = masks.get("start"), masks.get("stop")
    if start is None:
        return None
    real = [fact for fact in facts if isinstance(fact, NonPadding) and fact.when == when]
    ends_last = start.lane == site.prover.bound.lanes - 1 and real
    if ends_last and (real[0].layout, real[0].axis) == (start.layout, start.axis):
        return replace(start, side="both")  # real tokens from the start of the last lane on
    return replace(start, side="both") if stop is not None and replace(stop, side="start") == start else None


def entries(offsets: Offsets, index: Value, axes: tuple[int, ...]) -> Offsets | None:
    """Return the fact about entries of cu_seqlens at counted indices along one axis."""
    fact, by = index.fact, 0
    if isinstance(fact, IndexSum) and fact.exact and fact.window is None:
        axis, by = fact.axis, fact.by
    elif isinstance(fact, Iota) and fact.div == 1:
        axis = fact.axis
    else:
        return None
    if constant_of(index) is not None or axis >= len(axes):
        return None
    return replace(offsets, axis=axes[axis], first=offsets.first + by)
