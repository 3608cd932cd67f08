"""Facts about arrays computed from `cu_seqlens`: lanes of tokens, bounds of lanes, masks.

All facts follow from one promise of the contract: cu_seqlens begins with 0, never falls, and ends at most at the number
of tokens. So the number of entries that are at most t is the lane of token t, plus one. Elements of padding are
unspecified unless a fact names them.

Comparing a token with a bound of its own lane gives the mask `WithinLane`: `t - 2 >= start` puts the tokens `t - 2`,
`t - 1` and `t` into one lane.

More than 300 lines: one rule for each operation on a layout.
"""

from collections.abc import Callable
from dataclasses import replace

from ir_passes.jaxpr import ir
from ir_passes.proof.intervals import fits
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, Symbol
from ir_passes.proof.rules.addressing import index_sums, token_tiles
from ir_passes.proof.rules.addressing.access import constant_of, of_gather, of_scatter
from ir_passes.proof.rules.addressing.index_sums import (
    conditions_of,
    difference,
    entry_of,
    is_full,
    mapped,
    real_tokens,
    single,
    sliced,
    sum_of,
    total,
)
from ir_passes.proof.site import Site
from ir_passes.proof.values import (
    Condition,
    Fact,
    IndexSum,
    Iota,
    LaneOfToken,
    Mask,
    Negative,
    OffsetCounts,
    OffsetEntry,
    OwnTokens,
    PreviousLane,
    Range,
    RowPlaces,
    SegmentIds,
    ShiftedIds,
    TokenOf,
    TokenOfLane,
    Value,
    WithinLane,
)

LAYOUT_FACTS = (
    IndexSum, Mask, OffsetCounts, OwnTokens, RowPlaces, SegmentIds, ShiftedIds, TokenOf, TokenOfLane, WithinLane,
)  # fmt: skip
"""Facts about arrays that depend on the layout alone."""
_FactAndBounds = tuple[Fact, Range | None]


def lane_of_token(layout: str, first: int, count: int, axis: int, lanes: int) -> _FactAndBounds | None:
    """Return the fact about `sum(cu_seqlens <= t)`; None if the sum misses lanes.

    Args:
        first, count: the counted entries.
        axis: of the tokens.
    """
    missing = lanes + 1 - first - count
    if first not in (0, 1) or missing not in (0, 1):
        return None
    ids = SegmentIds(axis, layout, "past" if missing == 0 else "lane")
    limit = lanes - missing
    return (ids, (0, limit)) if first == 1 else (single(ids, 1), (1, limit + 1))


def refined(site: Site, operands: list[Value], result: Value) -> Value:
    rule = _RULES.get(site.name)
    unchanged = result.fact is not None and any(value.number == result.number for value in operands)
    is_mask = site.name in ("and", "or") and not isinstance(result.owner, Mixed)
    if rule is None or unchanged or not (isinstance(result.owner, Common) or is_mask):
        return result
    fact_and_bounds = rule(site, operands)
    if fact_and_bounds is None or (result.fact is not None and not isinstance(result.owner, Common)):
        return result
    fact, bounds = fact_and_bounds
    return result.replace(fact=fact, range=result.range if bounds is None else bounds)


def _as_result(site: Site, value: IndexSum | None) -> _FactAndBounds | None:
    fact = None if value is None or not index_sums.is_representable(site, value) else index_sums.as_fact(value)
    if value is None or fact is None:
        return None
    ids = [term for term, _ in value.terms if isinstance(term, SegmentIds)]
    if len(ids) == len(value.terms) == 1 and value.below is None and (ids[0], 1) in value.terms:
        return fact, (value.by, value.by + site.prover.bound.lanes - (ids[0].padding == "lane"))
    return fact, None


def _operand(site: Site, operand: int, value: Value) -> IndexSum | None:
    terms = sum_of(value)
    if terms is None or terms.below is not None or not is_full(site, operand, index_sums.axes_of(terms)):
        return None
    return terms


def _operands(site: Site, operands: list[Value]) -> tuple[IndexSum | None, IndexSum | None]:
    x, y = (_operand(site, k, value) for k, value in enumerate(operands))
    if site.shape == ():
        x, y = x or _turn(site, operands[0], y), y or _turn(site, operands[1], x)
    return x, y


def _combined(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    for x, y in (operands, operands[::-1]) if site.name == "add" else ():
        token = token_tiles.token_at(x, y)
        if token is not None:
            return token, None
    x, y = _operands(site, operands)
    if x is None or y is None:
        places = _places_in_rows(site, x, operands[1]) or _places_in_rows(site, y, operands[0])
        return None if places is None or site.name != "add" else (places, None)
    for constant in (x, y):
        is_length = constant.by >= max(site.shape, default=0) and constant.by != 1
        if not constant.terms and is_length and site.name == "add":
            return None  # an index from the end of an axis, which `PlusConstant` follows
    return _as_result(site, difference(x, y) if site.name == "sub" else total([*x.terms, *y.terms], x.by + y.by))


def _places_in_rows(site: Site, start: IndexSum | None, offset: Value) -> RowPlaces | None:
    """Return the fact about places at a multiple of ids plus a smaller offset."""
    ((ids, stride),) = start.terms if start is not None and len(start.terms) == 1 and not start.by else ((None, 0),)
    is_smaller = offset.range is not None and 0 <= offset.range[0] and offset.range[1] < stride
    # padding has the number of lanes as id: a place that wraps would be in another lane's row
    is_exact = _dtype_holds(site, stride * (site.prover.bound.lanes + 1))
    if not isinstance(ids, SegmentIds) or not is_smaller or not is_exact:
        return None
    return RowPlaces(ids.axis, ids.layout, ids.padding, stride)


def _masked_places_in_rows(site: Site, mask: Value, cases: list[Value]) -> RowPlaces | None:
    """Return the fact about places of lanes under a mask, past all places elsewhere."""
    for when in (False, True):
        place, filler = sum_of(cases[when]), cases[not when].range
        if place is None or place.below is not None or filler is None:
            continue
        for ids, stride in place.terms:
            if not isinstance(ids, SegmentIds) or stride <= 0 or filler[0] < stride * site.prover.bound.lanes:
                continue
            offset = difference(place, total([(ids, stride)]))
            ends = offset, difference(IndexSum(frozenset(), stride - 1), offset)
            is_real = padding_of(site, mask.fact, when, ids.layout, Iota(ids.axis))
            if is_real and all(index_sums.is_implied(end, conditions_of(mask.fact, when)) for end in ends):
                return RowPlaces(ids.axis, ids.layout, "past", stride, masked=True)
    return None


def _scaled(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    for k, by in enumerate(map(constant_of, operands[::-1])):
        value = None if by is None else _operand(site, k, operands[k])
        if by is not None and value is not None and value.terms:
            return _as_result(site, total([(term, factor * by) for term, factor in value.terms], value.by * by))
    return None


def _compared(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    x, y = _operands(site, operands)
    lane_mask = _same_ids(site, operands) or _real_lanes(site, operands)
    if lane_mask is not None:
        return lane_mask, None
    if any(isinstance(value.fact, SegmentIds | ShiftedIds | LaneOfToken) for value in operands):
        return None
    if x is None or y is None or not (x.terms or y.terms):
        return None
    mask = _conditions(site.name, difference(x, y))
    for conditions, when in ((mask.if_true, True), (mask.if_false, False)):
        for condition in sorted(conditions, key=str):
            lane_mask = _within(condition, when)
            if lane_mask is not None:
                return replace(lane_mask, exact=site.name not in ("eq", "ne")), None
    terms = difference(x, y).terms
    return (mask, None) if len(terms) > 1 or (x.terms and y.terms and terms) else None


def _conditions(name: str, value: IndexSum) -> Mask:
    if name in ("eq", "ne"):
        sides = value, difference(IndexSum(frozenset()), value)
        equal = frozenset(map(Condition, sides))
        positive = [total(side.terms, side.by - 1) for side in sides if index_sums.is_never_negative(side)]
        unequal = frozenset(map(Condition, positive)) or frozenset({Condition(value, differs=True)})
        return Mask(equal, unequal) if name == "eq" else Mask(unequal, equal)
    lower = replace(value, by=value.by - (name in ("gt", "le")))
    sides = (frozenset({Condition(lower)}), frozenset({Condition(difference(IndexSum(frozenset()), lower, -1))}))
    return Mask(*sides) if name in ("ge", "gt") else Mask(*sides[::-1])


def _turn(site: Site, x: Value, bound: IndexSum | None) -> IndexSum | None:
    end, layouts = site.prover.bound.lanes, set[str]()
    for term, _ in bound.terms if bound is not None else ():
        if isinstance(term, OffsetEntry) and (term.first, term.axis, term.symbol) == (end, None, None):
            layouts.add(term.layout)
        elif isinstance(term, OffsetEntry) and term.symbol is not None and term.symbol.number == x.number:
            layouts.add(term.of_token)
    tokens = site.prover.bound.layouts.get(layouts.pop()) if len(layouts) == 1 else None
    # an index out of bounds is clamped to another token
    in_bounds = tokens is not None and x.range is not None and 0 <= x.range[0] and x.range[1] < tokens
    return single(Symbol(x.number, tokens)) if tokens is not None and in_bounds else None


def _within(condition: Condition, when: bool) -> WithinLane | None:
    factors = dict(condition.sum.terms)
    bounds = [term for term in factors if isinstance(term, OffsetEntry) and term.of_token]
    if len(bounds) != 1 or condition.differs:
        return None
    (bound,), by = bounds, condition.sum.by
    token = index_sums.token_of(bound)
    if bound.of_token != bound.layout:
        return None  # tokens of another layout
    if len(factors) != 2 or factors.get(token) != -factors[bound] or abs(factors[bound]) != 1:
        return None
    if factors[bound] == 1:  # stop - t + by >= 0
        is_known, distance = bound.first == 1 and by <= -2, 1 + by
    else:  # t - back >= start
        is_known, distance = bound.first == 0 and by < 0, -by
    return WithinLane(bound.layout, bound.axis, distance, when, token=bound.symbol) if is_known else None


def _real_lanes(site: Site, operands: list[Value]) -> Mask | None:
    ids, lanes = operands[0].fact, site.prover.bound.lanes
    if not isinstance(ids, SegmentIds | LaneOfToken) or ids.padding != "past" or constant_of(operands[1]) != lanes:
        return None
    if site.shapes[0] != site.shape or site.name not in ("lt", "ne", "ge", "eq"):
        return None
    condition = real_tokens(site, ids.layout, Iota(ids.axis) if isinstance(ids, SegmentIds) else ids.token)
    mask = _conditions("ge", condition.sum)
    return mask if site.name in ("lt", "ne") else Mask(mask.if_false, mask.if_true)


def _without_difference(site: Site, operands: list[Value]) -> tuple[str, list[Value]]:
    """Return the comparison of x with y, for a difference compared with 0 or 1."""
    maker, number = site.maker(site.eqn.invars[0]), constant_of(operands[1])
    name = site.name if number == 0 else {"ge": "gt", "lt": "le"}.get(site.name, "") if number == 1 else ""
    wraps = operands[0].range is None and name not in ("eq", "ne")
    if not name or wraps or maker is None or maker.primitive.name != "sub":
        return site.name, operands
    if ir.shapes(maker.invars) != [site.shape, site.shape]:
        return site.name, operands
    return name, [site.prover.read(site.env, atom) for atom in maker.invars]


def _same_ids(site: Site, operands: list[Value]) -> WithinLane | None:
    """Return the mask of equal lanes for tokens at a distance.

    Lanes of tokens never fall. Elements before the first token are equal to no lane, and below all lanes if their
    bounds are.
    """
    name, sides = _without_difference(site, operands)
    for x, y in ((sides[0].fact, sides[1].fact), (sides[1].fact, sides[0].fact)):
        is_previous = isinstance(x, LaneOfToken) and y == PreviousLane(x.token, x.layout, x.padding)
        if isinstance(x, LaneOfToken) and is_previous and name in ("eq", "ne"):
            return WithinLane(x.layout, None, 1, name == "eq", token=x.token)
    first, second = sorted(sides, key=lambda value: getattr(value.fact, "shift", 0))
    x, y = first.fact, second.fact
    if not isinstance(x, SegmentIds | ShiftedIds) or not isinstance(y, SegmentIds | ShiftedIds):
        return None
    shift = getattr(y, "shift", 0)
    distance = shift - getattr(x, "shift", 0)
    if not distance or (x.axis, x.layout, x.padding) != (y.axis, y.layout, y.padding):
        return None
    if sides is operands and not all(is_full(site, operand, (x.axis,)) for operand in (0, 1)):
        return None
    is_rising = first.range is not None and first.range[1] <= site.prover.bound.lanes
    rising = ("gt", "le") if second is sides[0] else ("lt", "ge")
    differ, equal = (("ne", rising[0]), ("eq", rising[1])) if is_rising else (("ne",), ("eq",))
    return WithinLane(x.layout, x.axis, distance, name in equal, shift) if name in (*differ, *equal) else None


def _limited(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    if site.name == "clamp":
        low, x, high = operands
        limits, is_full = (constant_of(low), constant_of(high)), site.shapes[1] == site.shape
    else:
        numbers = [constant_of(value) for value in operands]
        tokens = token_tiles.limited(site)
        if tokens is not None:
            return tokens, None
        operand = 0 if numbers[0] is None else 1
        x, number, is_full = operands[operand], numbers[1 - operand], site.shapes[operand] == site.shape
        if number is None:
            return None
        limits = (number, None) if site.name == "max" else (None, number)
    if not is_full or (site.name == "clamp" and None in limits):
        return None
    low, high = limits
    return _clipped(site, x, low, high)


def _clipped(site: Site, x: Value, low: int | None, high: int | None) -> _FactAndBounds | None:
    fact, lanes = x.fact, site.prover.bound.lanes
    if low is not None and low > 0:
        return None
    if isinstance(fact, SegmentIds | LaneOfToken):
        padding = "none" if fact.padding == "none" else "lane"
        return (replace(fact, padding=padding), (0, lanes - 1)) if high == lanes - 1 else None
    token_of = fact if isinstance(fact, OwnTokens) and fact.rows.packed else token_of_lane(fact)
    tokens = None if token_of is None else site.prover.bound.layouts[token_of.layout]
    if token_of is not None and tokens is not None and (high is None or high >= tokens - 1):
        return token_of, None
    index = sum_of(x)
    if index is None or not index.terms:
        return None
    limits = (index.below, index_sums.NON_NEGATIVE if high is None else high + 1)
    return replace(index, below=min(limit for limit in limits if limit is not None)), None


def token_of_lane(fact: Fact | None) -> TokenOfLane | None:
    if isinstance(fact, TokenOfLane):
        return fact
    entry, by = entry_of(fact) or (None, 0)
    if entry is None or by not in (0, -1) or entry.symbol is not None or entry.of_token:
        return None
    lane = entry.first + by
    if entry.axis is None:
        return TokenOfLane(entry.layout, lane) if lane >= 0 else None
    return TokenOfLane(entry.layout) if entry.axis == 0 and lane == 0 else None


def _selected(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact about a select.

    By sign: `where(x < 0, x + length, x)`. By a padding mask: ids, and the number of lanes at padding.
    """
    if len(operands) != 3 or site.shapes[0] != site.shape:
        return None
    mask, x, _ = operands
    tokens = token_tiles.masked_places(site, mask, operands[1:]) or _masked_places_in_rows(site, mask, operands[1:])
    if tokens is not None:
        return tokens, None
    index = sum_of(x)
    if mask.fact == Negative(x.number) or (index is not None and mask.fact == _conditions("lt", index)):
        token_of = token_of_lane(x.fact)
        if token_of is not None:
            return token_of, None  # negative only for a lane without tokens
        if isinstance(x.fact, OwnTokens | RowPlaces | TokenOf):
            return x.fact, None  # never negative
        is_sum = index is not None and index.terms and not isinstance(x.fact, SegmentIds)
        below = None if index is None else index.below
        return (replace(index, below=below or index_sums.NON_NEGATIVE), None) if index is not None and is_sum else None
    for when in (False, True):
        ids, filler = operands[1 + when].fact, operands[2 - when]
        if not isinstance(ids, SegmentIds | RowPlaces | LaneOfToken) or filler.range is None:
            continue
        token = ids.token if isinstance(ids, LaneOfToken) else Iota(ids.axis)
        lanes = site.prover.bound.lanes * getattr(ids, "stride", 1)
        padding = "past" if filler.range == (lanes, lanes) else "lane"
        is_lane = 0 <= filler.range[0] and filler.range[1] < lanes + (padding == "past")
        if is_lane and padding_of(site, mask.fact, when, ids.layout, token) == "exact":
            return replace(ids, padding=padding), (0, lanes - (padding == "lane"))
    return None


def token_of_owner(owner: Owner) -> Iota | Symbol | None:
    if isinstance(owner, LaneRows) and owner.packed and owner == LaneRows(owner.axis, packed=owner.packed):
        return Iota(owner.axis)
    if isinstance(owner, OneLane) and owner.packed and owner == OneLane(owner.lane, packed=owner.packed):
        return owner.lane if isinstance(owner.lane, Symbol) else None
    return None


def padding_of(site: Site, fact: Fact | None, when: bool, layout: str, index: Iota | Symbol) -> str:
    """Return how a mask that is `when` tells real tokens from padding.

    Returns:
        "excluded" if the token is no padding; "exact" if it is padding where the mask is not `when`; else "".
    """
    condition = real_tokens(site, layout, index)
    if not index_sums.is_implied(condition.sum, index_sums.conditions_of(fact, when)):
        return ""
    is_padding = difference(IndexSum(frozenset()), condition.sum, -1)
    return "exact" if index_sums.is_implied(is_padding, index_sums.conditions_of(fact, not when)) else "excluded"


def _combined_masks(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    when, masks = site.name == "and", [value.fact for value in operands]
    lane_masks = [
        fact
        for k, fact in enumerate(masks)
        if isinstance(fact, WithinLane)
        and fact.when == when
        and is_full(site, k, [] if fact.axis is None else [fact.axis])
    ]
    if lane_masks:
        if not all(isinstance(value.owner, Common) for value in operands):
            return None
        lane_masks = [replace(fact, exact=False) for fact in lane_masks]
        united = _united(lane_masks[0], lane_masks[1]) if len(lane_masks) == 2 else None
        return united or max(lane_masks, key=lambda fact: abs(fact.back)), None
    sides = [
        [index_sums.full_conditions(site, k, fact, value) for k, fact in enumerate(masks)] for value in (True, False)
    ]
    if_true, if_false = (x | y if value == when else x & y for value, (x, y) in zip((True, False), sides, strict=True))
    return (Mask(if_true, if_false), None) if if_true or if_false else None


def _united(mask: WithinLane, other_mask: WithinLane) -> WithinLane | None:
    """Return the mask of two overlapping spans in one lane; None without overlap.

    With `back` above 0, t is the last token: if it is real, all are. With `back` below 0, t is the first token, and all
    are real.
    """
    first, second = sorted((mask, other_mask), key=lambda fact: fact.shift)
    if replace(first, shift=second.shift, back=second.back) != second or (first.back > 0) != (second.back > 0):
        return None
    if first.back > 0:
        low = min(first.shift - first.back, second.shift - second.back)
        return replace(second, back=second.shift - low) if second.shift - second.back <= first.shift else None
    high = max(first.shift - first.back, second.shift - second.back)
    return replace(first, back=first.shift - high) if second.shift <= first.shift - first.back else None


def _negated(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    fact = operands[0].fact
    if site.eqn.outvars[0].aval.dtype != bool:
        return None
    if isinstance(fact, WithinLane):
        return replace(fact, when=not fact.when), None
    return (Mask(fact.if_false, fact.if_true), None) if isinstance(fact, Mask) else None


def _summed(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the ids from a sum over lanes that have started."""
    for condition in index_sums.conditions_of(operands[0].fact, True):
        starts = [term for term, factor in condition.sum.terms if isinstance(term, OffsetEntry) and factor == -1]
        tokens = [term for term, factor in condition.sum.terms if isinstance(term, Iota) and factor == 1]
        if len(starts) != 1 or len(tokens) != 1:
            continue
        if condition != Condition(difference(single(tokens[0]), single(starts[0]))):
            continue
        (start,), (token,) = starts, tokens
        not_started = Condition(difference(single(start), single(token), -1))
        is_exact = not_started in index_sums.conditions_of(operands[0].fact, False) and not start.of_token
        if is_exact and start.axis is not None and tuple(site.params["axes"]) == (start.axis,) != (token.axis,):
            count, axis = site.shapes[0][start.axis], token.axis - (start.axis < token.axis)
            fact = lane_of_token(start.layout, start.first, count, axis, site.prover.bound.lanes)
            return fact if _dtype_holds(site, count) else None
    return None


def _any_start(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the mask of lanes' first tokens; others follow their lane's token."""
    when = site.name == "reduce_and"
    for condition in index_sums.conditions_of(operands[0].fact, when):
        for start, factor in condition.sum.terms if condition.differs else ():
            if not isinstance(start, OffsetEntry) or start.first or start.of_token or start.axis is None:
                continue
            rest = dict(condition.sum.terms).items() - {(start, factor)}
            ((token, opposite),) = rest if len(rest) == 1 and not condition.sum.by else ((None, 0),)
            if not isinstance(token, Iota) or abs(factor) != 1 or opposite != -factor:
                continue
            if tuple(site.params["axes"]) == (start.axis,) and site.shapes[0][start.axis] >= site.prover.bound.lanes:
                return WithinLane(start.layout, token.axis - (start.axis < token.axis), 1, when), None
    return None


def _marked_starts(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the mask of starts of lanes, written at entries of cu_seqlens."""
    operand, index, updates = operands
    access = of_scatter(site, index)
    entry = _places_of_entries(access.columns.get(0))
    if entry is None or entry.first or len(access.full) != 1:
        return None
    tokens, marks = site.prover.bound.layouts[entry.layout], (operand.range, updates.range)
    is_marked = marks in (((0, 0), (1, 1)), ((1, 1), (0, 0))) and site.eqn.outvars[0].aval.dtype == bool
    is_whole = access.sizes == (1,) and access.full[0] == tokens and access.index_shape[0] >= site.prover.bound.lanes
    # a clamped entry marks another token, and marks only separate tokens
    is_replaced = site.params["update_jaxpr"] is None
    mask = WithinLane(entry.layout, 0, 1, marks[0] == (1, 1))
    return (mask, None) if is_marked and is_whole and is_replaced else None


def _places_of_entries(index: Value | None) -> OffsetEntry | None:
    entry, by = entry_of(None if index is None else index.fact) or (None, 0)
    return entry if entry is not None and entry.axis == 0 and not by and not entry.of_token else None


def _cumulative_sum(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return cu_seqlens from lengths, or ids from counts."""
    fact, axis = operands[0].fact, site.params["axis"]
    if site.params["reverse"]:
        return None
    if isinstance(fact, OffsetCounts):
        holds = _dtype_holds(site, fact.count)
        return lane_of_token(fact.layout, fact.first, fact.count, 0, site.prover.bound.lanes) if holds else None
    terms = fact.terms if isinstance(fact, IndexSum) else ()
    for entry in [term for term, _ in terms if isinstance(term, OffsetEntry)]:
        stop = OffsetEntry(entry.layout, 1, axis)
        if fact == difference(single(stop), single(replace(stop, first=0))):
            return _as_result(site, single(stop))  # cu_seqlens begins with 0
    return None


def _dtype_holds(site: Site, count: int) -> bool:
    return fits(site.eqn.outvars[0].aval, 0, count)


def _counted_entries(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    operand, index, updates = operands
    access = of_scatter(site, index)
    entry = _places_of_entries(access.columns.get(0))
    adds_all = access.sizes == (1,) and not site.params["unique_indices"]
    if operand.range != (0, 0) or updates.range != (1, 1) or not adds_all or entry is None:
        return None
    drops_end = access.drops and access.full[0] == site.prover.bound.layouts[entry.layout]
    count, *repeats = access.index_shape
    fact = OffsetCounts(entry.layout, entry.first, count)
    return (fact, (0, count)) if drops_end and repeats == [1] and _dtype_holds(site, count) else None


def _gathered(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    fact, access = operands[0].fact, of_gather(site, operands[1])
    index = access.columns.get(0)
    if index is None or len(access.full) != 1 or access.sizes != (1,):
        return None
    places = sum_of(index)
    if places is None or not places.terms:
        return _entry_at(site, fact, index, access.full[0]) if access.scalar or places is not None else None
    if places.below is not None or any(axis >= len(access.index_axes) for axis in index_sums.axes_of(places)):
        return None
    places = index_sums.with_axes(lambda axis: access.index_axes[axis])(places)
    ((term, factor),) = places.terms if places is not None and len(places.terms) == 1 else ((None, 0),)
    if places is None or factor != 1:
        return None
    if isinstance(fact, Iota) and fact.div == 1 and access.inside(0) and isinstance(term, SegmentIds):
        return (term, index.range) if not places.by else None
    entry, by = entry_of(fact) or (None, 0)
    if entry is None or entry.axis != 0 or entry.of_token:
        return None
    first = entry.first + places.by
    if isinstance(term, SegmentIds):
        # the index of a real token is in bounds
        in_bounds = places.by >= 0 and site.prover.bound.lanes - 1 + places.by < access.full[0]
        bound = OffsetEntry(entry.layout, first, term.axis, of_token=term.layout)
        return _as_result(site, single(bound, by)) if in_bounds and first in (0, 1) else None
    if not isinstance(term, Iota) or not access.inside(0):
        return None
    return _as_result(site, single(replace(entry, first=first, axis=term.axis), by))


def _entry_at(site: Site, fact: Fact | None, index: Value, length: int) -> _FactAndBounds | None:
    """Return the fact about cu_seqlens at a constant or a loop's lane."""
    entry, by = entry_of(fact) or (None, 0)
    if entry is None or entry.axis != 0 or entry.of_token:
        return None
    number, ids = constant_of(index), index.fact
    if isinstance(ids, LaneOfToken) and entry.first in (0, 1) and site.prover.bound.lanes <= length:
        return _as_result(site, single(OffsetEntry(entry.layout, entry.first, None, ids.token, ids.layout), by))
    if number is not None:
        inside = 0 <= number < length
        return _as_result(site, single(replace(entry, axis=None, first=entry.first + number), by)) if inside else None
    bound = token_tiles.bound_at(site, entry, index, length)
    return None if bound is None else _as_result(site, single(bound, by))


def places_of(site: Site, axis: int) -> tuple[int, int]:
    """Return first index and step along an axis, of a slice or the opposite order."""
    if site.name == "rev":
        return (site.shape[axis] - 1, -1) if axis in site.params["dimensions"] else (0, 1)
    steps = site.params["strides"]
    return int(site.params["start_indices"][axis]), 1 if steps is None else int(steps[axis])


def _part(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact of a part; only masks of neighbours may have a stride."""
    fact = operands[0].fact
    if isinstance(fact, WithinLane):
        if fact.axis is None:
            return None
        first, step = places_of(site, fact.axis)
        stride = 1 if site.shape[fact.axis] == 1 else fact.stride * step
        return replace(fact, shift=fact.shift + fact.stride * first, stride=stride), None
    if site.name == "rev" or any(step != 1 for step in site.params["strides"] or ()):
        return None
    starts = site.params["start_indices"]
    if isinstance(fact, SegmentIds | ShiftedIds):
        return _shifted(fact, int(starts[fact.axis])), None
    if isinstance(fact, Mask):
        mask = mapped(fact, sliced(site.shape, starts))
        return None if mask is None else (mask, None)
    index = sum_of(operands[0])
    return None if index is None else _as_result(site, sliced(site.shape, starts)(index))


def _dynamic_slice(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    if len(operands) != 2 or site.shape != (1,):
        return None
    index, length = operands[1], site.shapes[0][0]
    number = constant_of(index)
    clamped = index if number is None else index.replace(range=(min(max(number, 0), length - 1),) * 2)
    return _entry_at(site, operands[0].fact, clamped, length)


def _padded(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    x, filler = operands
    config = [tuple(map(int, amounts)) for amounts in site.params["padding_config"]]
    axis = getattr(x.fact, "axis", None)
    if axis is None or any(any(amounts) for k, amounts in enumerate(config) if k != axis):
        return None
    low, high, gap = config[axis]
    return None if low < 0 or high > 0 or gap else _after_fillers(site, x.fact, [filler], low)


def _joined(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    axis = site.params["dimension"]
    last = operands[-1].fact
    if getattr(last, "axis", None) != axis or len(operands) < 2:
        return None
    return _after_fillers(site, last, operands[:-1], sum(shape[axis] for shape in site.shapes[:-1]))


def _shifted(fact: SegmentIds | ShiftedIds, by: int) -> SegmentIds | ShiftedIds:
    shift = getattr(fact, "shift", 0) + by
    kind = ShiftedIds if shift else SegmentIds
    return kind(fact.axis, fact.layout, fact.padding, *([shift] if shift else []))


def _after_fillers(site: Site, fact: Fact | None, fillers: list[Value], length: int) -> _FactAndBounds | None:
    """Return ids or a mask after elements outside all lanes."""
    ranges = [value.range for value in fillers]
    if isinstance(fact, SegmentIds | ShiftedIds):
        is_outside = all(bounds and (bounds[1] < 0 or bounds[0] > site.prover.bound.lanes) for bounds in ranges)
        # an element outside all lanes takes the place of no token
        return (_shifted(fact, -length), None) if is_outside and getattr(fact, "shift", 0) <= 0 else None
    if isinstance(fact, WithinLane) and fact.stride == 1:
        false_value = int(not fact.when)
        return (replace(fact, shift=fact.shift - length), None) if set(ranges) == {(false_value, false_value)} else None
    return None


_RULES: dict[str, Callable[[Site, list[Value]], _FactAndBounds | None]] = {
    "add": _combined,
    "sub": _combined,
    "mul": _scaled,
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), _compared),
    "max": _limited,
    "min": _limited,
    "clamp": _limited,
    "select_n": _selected,
    "and": _combined_masks,
    "or": _combined_masks,
    "not": _negated,
    "reduce_sum": _summed,
    "cumsum": _cumulative_sum,
    "reduce_or": _any_start,
    "reduce_and": _any_start,
    "scatter": _marked_starts,
    "scatter-add": _counted_entries,
    "gather": _gathered,
    "dynamic_slice": _dynamic_slice,
    "slice": _part,
    "pad": _padded,
    "concatenate": _joined,
    "rev": _part,
}
