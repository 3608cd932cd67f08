"""Facts about arrays computed from `cu_seqlens`: lanes of tokens, bounds of lanes, masks.

All facts follow from one promise of the contract: cu_seqlens begins with 0, never falls, and ends at most at the number
of tokens. So the number of entries that are at most t is the lane of token t, plus one. Elements of padding are
unspecified unless a fact names them.

A comparison with the bounds of a lane gives the mask `WithinLane`. For example, `t - 2 >= start` puts the tokens t - 2,
t - 1 and t into one lane.

More than 300 lines: one rule for each operation on a layout.
"""

from collections.abc import Callable
from dataclasses import replace

from ir_passes.proof.intervals import fits
from ir_passes.proof.owners import Common, Symbol
from ir_passes.proof.rules.addressing import token_tiles
from ir_passes.proof.rules.addressing.access import constant_of, of_gather, of_scatter
from ir_passes.proof.site import Site
from ir_passes.proof.values import (
    AtStart,
    Fact,
    IndexSum,
    Iota,
    LaneBound,
    LaneLimit,
    LaneStarted,
    Lengths,
    Negative,
    NextLane,
    NonPadding,
    NotLater,
    OffsetCounts,
    Offsets,
    OneLaneMask,
    OwnTokens,
    PlusConstant,
    Range,
    SegmentIds,
    ShiftedIds,
    TilePlaces,
    TokenBound,
    TokenOf,
    TokenOfLane,
    Value,
    WithinLane,
    WithinLength,
)

LAYOUT_FACTS = (
    AtStart, IndexSum, LaneBound, LaneLimit, LaneStarted, Lengths, NextLane, NonPadding, NotLater, OffsetCounts,
    Offsets, OneLaneMask, OwnTokens, SegmentIds, ShiftedIds, TilePlaces, TokenBound, TokenOf, TokenOfLane, WithinLane,
    WithinLength,
)  # fmt: skip
"""Facts about arrays that depend on the layout alone."""
_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_FLAGS = AtStart | LaneStarted | LaneLimit | NotLater | NonPadding | OneLaneMask | WithinLane | WithinLength
"""Facts about masks, which a negation keeps."""
_IMPLIED = {
    "ge": (0, True), "gt": (1, True), "lt": (0, False), "le": (1, False), "eq": (0, True), "ne": (0, False),
}  # fmt: skip
"""Comparison of a number with 0 -> least number, for results with this truth value."""
_FactAndBounds = tuple[Fact, Range | None]


def lane_of_token(fact: LaneStarted | OffsetCounts, count: int, axis: int, lanes: int) -> _FactAndBounds | None:
    """Return the fact about `sum(cu_seqlens <= t)`; None if the sum misses lanes.

    Args:
        fact: first entry that is counted.
        count: number of entries that are counted.
        axis: axis of the tokens.
        lanes: N.
    """
    missing = lanes + 1 - fact.first - count
    if fact.first not in (0, 1) or missing not in (0, 1):
        return None
    padding, limit = ("past", lanes) if missing == 0 else ("last", lanes - 1)
    if fact.first == 1:
        return SegmentIds(axis, fact.layout, padding), (0, limit)
    return NextLane(axis, fact.layout, padding), (1, limit + 1)


def refined(site: Site, operands: list[Value], result: Value) -> Value:
    """Return the result of an operation on layouts with its fact."""
    rule = _RULES.get(site.name)
    unchanged = isinstance(result.fact, LAYOUT_FACTS) and any(value.number == result.number for value in operands)
    if rule is None or unchanged or not isinstance(result.owner, Common):
        return result
    fact_and_bounds = rule(site, operands)
    if fact_and_bounds is None:
        return result
    fact, bounds = fact_and_bounds
    if not _is_representable(site, fact):
        return result
    return result.replace(fact=fact, range=result.range if bounds is None else bounds)


def _is_representable(site: Site, fact: Fact) -> bool:
    """True if the dtype holds all numbers of a fact, also plus a constant."""
    match fact:
        case TilePlaces(layout):
            tokens, width = site.prover.bound.layouts[layout], site.shape[fact.window]
            return tokens is not None and fits(site.eqn.outvars[0].aval, fact.plus - width, tokens + fact.plus + width)
        case LaneBound(layout):
            tokens = site.prover.bound.layouts[layout]
            return tokens is not None and fits(site.eqn.outvars[0].aval, fact.plus - 1, tokens + fact.plus)
        case IndexSum(axis, by):
            ends = [0] if fact.window is None else [0, fact.slope * (site.shape[fact.window] - 1)]
            return fits(site.eqn.outvars[0].aval, by + min(ends), site.shape[axis] + by + max(ends))
        case Offsets(layout) | Lengths(layout) | TokenBound(layout):
            tokens = site.prover.bound.layouts[layout]
            return tokens is not None and fits(site.eqn.outvars[0].aval, fact.plus, tokens + fact.plus)
    return True


def _has_full_length(site: Site, operand: int, axis: int | None) -> bool:
    """True if an operand has the result's rank, and its length along an axis."""
    shape = site.shapes[operand]
    return len(shape) == len(site.shape) and (axis is None or shape[axis] == site.shape[axis])


def _sum(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact about a sum of indices, constants, starts and lengths."""
    for x, y in ((0, 1), (1, 0)):
        by = constant_of(operands[y])
        if by is not None and _same_shape(site, x):
            return _plus(site, operands[x], by)
        start, length = operands[x].fact, operands[y].fact
        if isinstance(start, Offsets) and isinstance(length, Lengths) and _same_entries(site, start, length):
            if start.first == length.first:
                return replace(start, first=start.first + 1, plus=start.plus + length.plus), None
        token = token_tiles.token_at(operands[x], operands[y])
        if token is not None:
            return token, None
        counted = _counted(operands[y])
        if counted is not None and isinstance(start, Offsets) and _full_pair(site, (x, start.axis), (y, counted.axis)):
            tile = token_tiles.places(site, operands[x], counted, 1)
            if tile is not None:
                return tile, None
    longest = max(range(2), key=lambda operand: max(site.shapes[operand], default=0))
    return _two_axes(site, operands[longest], operands[1 - longest], (longest, 1 - longest), 1)


def _full_pair(site: Site, first: tuple[int, int | None], second: tuple[int, int | None]) -> bool:
    """Whether two operands, as (operand, axis), have the result's rank and length there."""
    return _has_full_length(site, *first) and _has_full_length(site, *second)


def _same_entries(site: Site, x: Offsets | Lengths, y: Offsets | Lengths) -> bool:
    """True if both operands have entries of one layout along one axis."""
    full_length = _has_full_length(site, 0, x.axis) and _has_full_length(site, 1, y.axis)
    return full_length and (x.layout, x.axis) == (y.layout, y.axis)


def _two_axes(site: Site, x: Value, y: Value, positions: tuple[int, int], slope: int) -> _FactAndBounds | None:
    """Return the fact about indices along two axes, x + `slope` * y.

    Args:
        positions: of x and y among the operands.
    """
    index, window = _counted(x), _counted(y)
    if index is None or window is None or index.axis == window.axis:
        return None
    if not _has_full_length(site, positions[0], index.axis) or not _has_full_length(site, positions[1], window.axis):
        return None
    return IndexSum(index.axis, index.by + slope * window.by, window.axis, slope), None


def _same_shape(site: Site, operand: int) -> bool:
    """True if an operand has the shape of the result."""
    return site.shapes[operand] == site.shape


def _plus(site: Site, x: Value, by: int) -> _FactAndBounds | None:
    """Return the fact about a value plus a constant."""
    fact, lanes = x.fact, site.prover.bound.lanes
    if by >= max(site.shape, default=0) and by != 1:
        return None  # an index from the end of an axis, which `PlusConstant` follows
    if isinstance(fact, NextLane) and by == -1:
        return SegmentIds(fact.axis, fact.layout, fact.padding), (0, lanes - (fact.padding == "last"))
    if isinstance(fact, SegmentIds) and by == 1:
        return NextLane(fact.axis, fact.layout, fact.padding), (1, lanes + (fact.padding == "past"))
    if isinstance(fact, Offsets | Lengths | TokenBound | LaneBound):
        return replace(fact, plus=fact.plus + by), None
    if isinstance(fact, TilePlaces):
        return (replace(fact, plus=fact.plus + by), None) if fact.exact else None
    index = _index(x)
    return (replace(index, by=index.by + by), None) if index is not None and index.exact else None


def _index(x: Value) -> IndexSum | None:
    """Return the fact about indices along one or two axes."""
    if isinstance(x.fact, Iota) and x.fact.div == 1:
        return IndexSum(x.fact.axis, 0)
    return x.fact if isinstance(x.fact, IndexSum) else None


def _counted(x: Value) -> IndexSum | None:
    """Return the fact about exact indices along one axis."""
    index = _index(x)
    return index if index is not None and index.exact and index.window is None else None


def _difference(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact about a difference of indices, tokens, or entries of cu_seqlens."""
    x, y = operands
    by = constant_of(y)
    if by is not None:
        return _plus(site, x, -by) if _same_shape(site, 0) else None
    if isinstance(x.fact, Offsets) and isinstance(y.fact, Offsets | Lengths) and _same_entries(site, x.fact, y.fact):
        if x.fact.first != y.fact.first + 1:
            return None
        if isinstance(y.fact, Lengths):
            return replace(x.fact, first=y.fact.first, plus=x.fact.plus - y.fact.plus), None
        return Lengths(y.fact.layout, y.fact.axis, y.fact.first, x.fact.plus - y.fact.plus), None
    length, counted = token_tiles.length_of(x, y), _counted(y)
    if length is not None:
        return length, None
    if counted is not None and isinstance(x.fact, Offsets) and _full_pair(site, (0, x.fact.axis), (1, counted.axis)):
        tile = token_tiles.places(site, x, counted, -1)
        if tile is not None:
            return tile, None
    fact = _relative(site, operands)
    return _two_axes(site, x, y, (0, 1), -1) if fact is None else (fact, None)


def _relative(site: Site, operands: list[Value]) -> TokenBound | None:
    """Return the difference of a token and a bound of its lane."""
    x, y = operands
    token, bound = _counted(x), y.fact
    if token is not None and isinstance(bound, TokenBound) and bound.base == "start" and bound.axis == token.axis:
        if _has_full_length(site, 0, token.axis) and _has_full_length(site, 1, token.axis):
            return replace(bound, base="position", plus=token.by - bound.plus)
    token, bound = _counted(y), x.fact
    if token is not None and isinstance(bound, TokenBound) and bound.base == "stop" and bound.axis == token.axis:
        if _has_full_length(site, 0, token.axis) and _has_full_length(site, 1, token.axis):
            return replace(bound, base="left", plus=bound.plus - token.by)
    return None


def _compared(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the mask of a comparison, with the operands in either order."""
    fact = _comparison(site, site.name, operands, (0, 1)) or _comparison(
        site, _FLIPPED[site.name], operands[::-1], (1, 0)
    )
    return None if fact is None else (fact, None)


def _comparison(site: Site, name: str, operands: list[Value], positions: tuple[int, int]) -> Fact | None:
    """Return the fact about `x name y`.

    Args:
        positions: of x and y among the operands of the equation.
    """
    x, y = operands
    window = _windows(site, name, operands, positions)
    if window is not None:
        return window
    if site.shape == () and isinstance(y.fact, Offsets) and y.fact.first == site.prover.bound.lanes:
        tokens = site.prover.bound.layouts[y.fact.layout]
        is_index = tokens is not None and constant_of(x) is None and x.range is not None and x.range[0] >= 0
        return _before_padding(name, y.fact, 0, None, Symbol(x.number, tokens or 0)) if is_index else None
    token = _counted(x)
    own = _tile_masks(site, name, operands, positions)
    if own is not None:
        return own
    if token is not None and isinstance(y.fact, Offsets) and _has_full_length(site, positions[0], token.axis):
        return _token_and_offset(site, name, token, y.fact, positions[1])
    if token is not None and token.by == 0 and isinstance(y.fact, Iota) and y.fact.div == 1:
        is_full = _has_full_length(site, positions[0], token.axis) and _has_full_length(site, positions[1], y.fact.axis)
        return _order(name, token.axis, y.fact.axis) if is_full else None
    if isinstance(x.fact, SegmentIds | ShiftedIds) and isinstance(y.fact, SegmentIds | ShiftedIds):
        return _same_ids(site, name, x.fact, y.fact)
    number = constant_of(y)
    if isinstance(x.fact, TokenBound) and number is not None and _has_full_length(site, positions[0], x.fact.axis):
        return _within(name, replace(x.fact, plus=x.fact.plus - number))
    if not isinstance(y.fact, TokenBound) or y.fact.axis is None:
        return None
    if not _has_full_length(site, positions[1], y.fact.axis):
        return None
    if token is None or not _has_full_length(site, positions[0], token.axis):
        return None
    if token.axis != y.fact.axis:
        return _limit(name, token, y.fact)
    if y.fact.base == "start":
        return _within(name, replace(y.fact, base="position", plus=token.by - y.fact.plus))
    if y.fact.base == "stop":
        return _within(_FLIPPED[name], replace(y.fact, base="left", plus=y.fact.plus - token.by))
    return None


def _tile_masks(site: Site, name: str, operands: list[Value], positions: tuple[int, int]) -> Fact | None:
    """Return the mask of comparing tokens of lanes, or tokens, with the bounds of lanes."""
    x, y = operands
    token, axes = _counted(x), [getattr(value.fact, "axis", None) for value in operands]
    if token is not None:
        axes[0] = token.axis
    window = getattr(x.fact, "window", None)
    is_full = site.shapes[positions[1]] == () or _has_full_length(site, positions[1], axes[1])
    if not is_full or not _has_full_length(site, positions[0], axes[0]):
        return None
    if isinstance(x.fact, TilePlaces) and not _has_full_length(site, positions[0], window):
        return None
    mask = token_tiles.length_mask(site, name, x, token, y)
    if mask is not None or token is None or token.axis >= len(site.shape):
        return mask
    is_last = isinstance(y.fact, Offsets) and y.fact.first == site.prover.bound.lanes
    return None if is_last else token_tiles.one_lane_mask(name, token, y)


def _windows(site: Site, name: str, operands: list[Value], positions: tuple[int, int]) -> WithinLane | None:
    """Return the mask of comparing tokens along two axes with the start of a lane."""
    index, y = _index(operands[0]), operands[1]
    if index is not None and index.exact and index.window is not None and isinstance(y.fact, TokenBound):
        full_shape = _has_full_length(site, positions[0], index.axis) and _has_full_length(
            site, positions[0], index.window
        )
        if (
            y.fact.base != "start"
            or y.fact.axis != index.axis
            or not full_shape
            or not _has_full_length(site, positions[1], index.axis)
        ):
            return None
        position, window, slope = index.by - y.fact.plus, index.window, index.slope
        layout, axis = y.fact.layout, index.axis
    else:
        x, distance = operands[0].fact, _counted(y)
        if not isinstance(x, TokenBound) or x.base != "position" or distance is None or x.axis in (None, distance.axis):
            return None
        if not _has_full_length(site, positions[0], x.axis) or not _has_full_length(site, positions[1], distance.axis):
            return None
        position, window, slope, layout, axis = x.plus - distance.by, distance.axis, -1, x.layout, x.axis
    # t - start + position + slope * k, compared with 0
    minimum, when = _IMPLIED[name]
    distances = minimum - position, minimum - position - slope * (site.shape[window] - 1)
    if min(distances) < 0:
        return None
    return WithinLane(layout, axis, distances[0], when, window=window, slope=-slope)


def _limit(name: str, token: IndexSum, bound: TokenBound) -> LaneLimit | None:
    """Return the mask of comparing a token with a bound of another token's lane.

    It compares s + by with a bound of the lane of t, for tokens s and t along two axes.
    """
    lead = token.by - bound.plus
    limits = {"start": {"ge": 0, "gt": 1, "lt": 0, "le": 1}, "stop": {"lt": 0, "le": 1, "ge": 0, "gt": 1}}
    if bound.axis is None or bound.base not in limits or name not in limits[bound.base]:
        return None
    # s + lead >= start implies s >= start if lead <= 0; s + lead < stop implies s < stop if lead >= 0
    limit = limits[bound.base][name]
    implied = lead <= limit if bound.base == "start" else lead >= limit
    when = (name in ("ge", "gt")) == (bound.base == "start")
    return LaneLimit(bound.layout, bound.axis, token.axis, bound.base, when) if implied else None


def _order(name: str, x: int, y: int) -> NotLater | None:
    """Return the mask of comparing indices along two axes; rows: the smaller axis."""
    if x >= y:
        return None
    implied = {"ge": True, "gt": True, "lt": False, "le": False}
    return NotLater(x, y, implied[name]) if name in implied else None


def _token_and_offset(site: Site, name: str, token: IndexSum, offset: Offsets, other: int) -> Fact | None:
    """Return the fact about comparing t + by with cu_seqlens[i + first] + plus."""
    lead = token.by - offset.plus
    if name in ("eq", "ne") and offset.axis is not None and _has_full_length(site, other, offset.axis):
        is_all = offset.first == 0 and lead == 0 and site.shape[offset.axis] >= site.prover.bound.lanes
        is_pair = is_all and offset.axis != token.axis
        return AtStart(offset.layout, token.axis, offset.axis, name == "eq") if is_pair else None
    if offset.axis is not None and offset.axis != token.axis and _has_full_length(site, other, offset.axis):
        exact = {("ge", 0): True, ("gt", 1): True, ("lt", 0): False, ("le", 1): False}
        when = exact.get((name, lead))
        return None if when is None else LaneStarted(offset.layout, token.axis, offset.axis, offset.first, when)
    if offset.axis is None and offset.first == site.prover.bound.lanes:
        return _before_padding(name, offset, token.by, token.axis, None)
    return None


def _before_padding(name: str, end: Offsets, by: int, axis: int | None, token: Symbol | None) -> NonPadding | None:
    """Return the mask of comparing a token, plus `by`, with the number of real tokens.

    Args:
        axis, token: as in `NonPadding`.
    """
    exact = {"lt": 0, "le": 1, "ge": 0, "gt": 1}.get(name)
    if exact is None or by - end.plus < exact:
        return None
    return NonPadding(end.layout, axis, token, when=name in ("lt", "le"), exact=by - end.plus == exact)


def _within(name: str, difference: TokenBound) -> WithinLane | None:
    """Return the mask `base + plus name 0`, with the implied minimum of base."""
    minimum = 0 if difference.base == "position" else 1
    if difference.base not in ("position", "left"):
        return None
    zero = -difference.plus
    bound, when = _IMPLIED[name]
    number = zero + bound
    if name in ("eq", "ne") and zero == minimum:
        number, when = minimum + 1, not when
    if number <= minimum:
        return None
    distance = number if difference.base == "position" else 1 - number
    return WithinLane(difference.layout, difference.axis, distance, when, token=difference.token)


def _same_ids(site: Site, name: str, x: SegmentIds | ShiftedIds, y: SegmentIds | ShiftedIds) -> WithinLane | None:
    """Return the mask of equal lanes for two tokens at a distance along one axis."""
    shifts = [getattr(fact, "shift", 0) for fact in (x, y)]
    if name not in ("eq", "ne") or (x.axis, x.layout, x.padding) != (y.axis, y.layout, y.padding):
        return None
    is_full = all(_has_full_length(site, operand, x.axis) for operand in (0, 1))
    if not is_full or shifts[0] == shifts[1]:
        return None
    return WithinLane(x.layout, x.axis, max(shifts) - min(shifts), name == "eq", max(shifts))


def _limited(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact about a value within limits."""
    if site.name == "clamp":
        low, x, high = operands
        limits, is_full = (constant_of(low), constant_of(high)), _same_shape(site, 1)
    else:
        numbers = [constant_of(value) for value in operands]
        operand = 0 if numbers[0] is None else 1
        x, number, is_full = operands[operand], numbers[1 - operand], _same_shape(site, operand)
        if number is None:
            return None
        limits = (number, None) if site.name == "max" else (None, number)
    if not is_full or (site.name == "clamp" and None in limits):
        return None
    low, high = limits
    return _clipped(site, x, low, high)


def _clipped(site: Site, x: Value, low: int | None, high: int | None) -> _FactAndBounds | None:
    """Return the fact about ids, tokens or indices within constant limits."""
    fact, lanes = x.fact, site.prover.bound.lanes
    if isinstance(fact, SegmentIds) and (low is None or low <= 0) and high == lanes - 1:
        return replace(fact, padding="last"), (0, lanes - 1)
    token_of = token_of_lane(fact)
    tokens = None if token_of is None else site.prover.bound.layouts[token_of.layout]
    if token_of is not None and tokens is not None and (low or 0) <= 0 and (high is None or high >= tokens - 1):
        return token_of, None
    if isinstance(fact, TilePlaces) and (low or 0) <= 0:
        tokens = site.prover.bound.layouts[fact.layout]
        is_high = high is None or (tokens is not None and high >= tokens - 1)
        return (replace(fact, exact=False), None) if is_high else None
    index = _index(x)
    if index is None or (low is not None and low > 0):
        return None
    return (replace(index, exact=False), None) if high is None or high >= site.shape[index.axis] - 1 else None


def token_of_lane(fact: Fact | None) -> TokenOfLane | None:
    """Return the fact about the first or last token of one or each lane."""
    if isinstance(fact, TokenOfLane):
        return fact
    if not isinstance(fact, Offsets) or fact.plus not in (0, -1):
        return None
    lane = fact.first + fact.plus
    if fact.axis is None:
        return TokenOfLane(fact.layout, lane) if lane >= 0 else None
    return TokenOfLane(fact.layout) if fact.axis == 0 and lane == 0 else None


def _selected(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact about a select by the sign, or by a padding mask.

    By the sign: `where(x < 0, x + length, x)`. By a padding mask: ids, and the number of lanes at padding.
    """
    if len(operands) != 3 or site.shapes[0] != site.shape:
        return None
    mask, x, other = operands
    own = token_tiles.masked_places(site, mask, [x, other])
    if own is not None:
        return own, None
    if isinstance(mask.fact, NonPadding) and mask.fact.exact:
        ids, filler = operands[1 + mask.fact.when].fact, operands[2 - mask.fact.when]
        lanes = site.prover.bound.lanes
        if not isinstance(ids, SegmentIds) or constant_of(filler) != lanes:
            return None
        same_tokens = (ids.axis, ids.layout) == (mask.fact.axis, mask.fact.layout)
        return (replace(ids, padding="past"), (0, lanes)) if same_tokens else None
    if mask.fact != Negative(x.number):
        return None
    token_of = token_of_lane(x.fact)
    if token_of is not None:
        return token_of, None  # negative only for a lane without tokens
    if isinstance(x.fact, OwnTokens | TokenOf):
        return x.fact, None  # never negative
    if isinstance(x.fact, IndexSum | TilePlaces) and isinstance(other.fact, PlusConstant | IndexSum | TilePlaces):
        return replace(x.fact, exact=False), None
    return None


def _combined_masks(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact about a conjunction or disjunction of masks."""
    masks = [value.fact for k, value in enumerate(operands) if _has_full_shape(site, k, value.fact)]
    when = site.name == "and"
    one_lane = token_tiles.both_sides(site, masks, when)
    if one_lane is not None:
        return one_lane, None
    lengths = [fact for fact in masks if isinstance(fact, WithinLength) and fact.when == when]
    if lengths:
        return max(lengths, key=lambda fact: fact.reach), None
    lane_masks = [fact for fact in masks if isinstance(fact, WithinLane) and fact.when == when]
    if lane_masks:
        united = _united(lane_masks[0], lane_masks[1]) if len(lane_masks) == 2 else None
        return united or max(lane_masks, key=lambda fact: abs(fact.back)), None
    real = [fact for fact in masks if isinstance(fact, NonPadding) and fact.when == when]
    return (replace(real[0], exact=False), None) if real else None


def _united(mask: WithinLane, other_mask: WithinLane) -> WithinLane | None:
    """Return the mask of two overlapping spans in one lane; None without overlap.

    In a span with `back` above 0, t is the last token; if t is real, the other tokens are real too. In a span with
    `back` below 0, t is the first token, and all other tokens are real.
    """
    first, second = sorted((mask, other_mask), key=lambda fact: fact.shift)
    if first.window is not None:
        return None
    if replace(first, shift=second.shift, back=second.back) != second or (first.back > 0) != (second.back > 0):
        return None
    if first.back > 0:
        low = min(first.shift - first.back, second.shift - second.back)
        return replace(second, back=second.shift - low) if second.shift - second.back <= first.shift else None
    high = max(first.shift - first.back, second.shift - second.back)
    return replace(first, back=first.shift - high) if second.shift <= first.shift - first.back else None


def _has_full_shape(site: Site, operand: int, fact: Fact | None) -> bool:
    """True if a mask has the result's length along each of its axes."""
    if not isinstance(fact, WithinLane | NonPadding | OneLaneMask | WithinLength):
        return False
    axes = (fact.axis, getattr(fact, "window", None))
    return all(axis is None or _has_full_length(site, operand, axis) for axis in axes)


def _negated(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the mask of a negation."""
    fact = operands[0].fact
    return (replace(fact, when=not fact.when), None) if isinstance(fact, _FLAGS) else None


def _summed(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the ids from a sum over lanes that have started."""
    fact = operands[0].fact
    if not isinstance(fact, LaneStarted) or not fact.when or tuple(site.params["axes"]) != (fact.lanes,):
        return None
    count = site.shapes[0][fact.lanes]
    axis = fact.tokens - (fact.lanes < fact.tokens)
    return lane_of_token(fact, count, axis, site.prover.bound.lanes) if _dtype_holds(site, count) else None


def _any_start(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the mask of tokens at starts of lanes; others follow a token of their lane."""
    fact = operands[0].fact
    if not isinstance(fact, AtStart) or fact.when != (site.name == "reduce_or"):
        return None
    if tuple(site.params["axes"]) != (fact.lanes,):
        return None
    return WithinLane(fact.layout, fact.tokens - (fact.lanes < fact.tokens), 1, not fact.when), None


def _marked_starts(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the mask of tokens at starts of lanes, written at entries of cu_seqlens."""
    operand, index, updates = operands
    access = of_scatter(site, index)
    column = access.columns.get(0)
    fact = None if column is None else column.fact
    if not isinstance(fact, Offsets) or fact.axis != 0 or fact.first or fact.plus or len(access.full) != 1:
        return None
    tokens, marks = site.prover.bound.layouts[fact.layout], (operand.range, updates.range)
    is_marked = marks in (((0, 0), (1, 1)), ((1, 1), (0, 0))) and site.eqn.outvars[0].aval.dtype == bool
    is_whole = access.sizes == (1,) and access.full[0] == tokens and access.index_shape[0] >= site.prover.bound.lanes
    # a clamped entry marks another token, and marks only separate tokens
    is_replaced = site.params["update_jaxpr"] is None
    return (WithinLane(fact.layout, 0, 1, marks[0] == (1, 1)), None) if is_marked and is_whole and is_replaced else None


def _cumulative_sum(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the entries of cu_seqlens from lengths, or the ids from counted entries."""
    fact = operands[0].fact
    if isinstance(fact, Lengths) and (fact.axis, fact.first, fact.plus) == (site.params["axis"], 0, 0):
        # cu_seqlens begins with 0
        return None if site.params["reverse"] else (Offsets(fact.layout, fact.axis, 1), None)
    if not isinstance(fact, OffsetCounts) or site.params["reverse"] or not _dtype_holds(site, fact.count):
        return None
    return lane_of_token(fact, fact.count, 0, site.prover.bound.lanes)


def _dtype_holds(site: Site, count: int) -> bool:
    """True if the dtype of the result holds a count."""
    return fits(site.eqn.outvars[0].aval, 0, count)


def _counted_entries(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact about zeros with ones added at entries of cu_seqlens."""
    operand, index, updates = operands
    access = of_scatter(site, index)
    column = access.columns.get(0)
    fact = None if column is None else column.fact
    counts = operand.range == (0, 0) and updates.range == (1, 1) and access.sizes == (1,) and len(access.full) == 1
    if not counts or not isinstance(fact, Offsets) or fact.axis != 0 or fact.plus:
        return None
    tokens = site.prover.bound.layouts[fact.layout]
    drops_end = access.drops and access.full[0] == tokens
    count = access.index_shape[0]
    return (
        (OffsetCounts(fact.layout, fact.first, count), (0, count)) if drops_end and _dtype_holds(site, count) else None
    )


def _gathered(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact about cu_seqlens at the lanes of tokens, or at one constant."""
    fact, access = operands[0].fact, of_gather(site, operands[1])
    index = access.columns.get(0)
    if index is None or len(access.full) != 1 or access.sizes != (1,):
        return None
    if isinstance(fact, Iota) and fact.div == 1 and access.inside(0):
        lane = index.fact
        if not isinstance(lane, SegmentIds) or lane.axis >= len(access.index_axes):
            return None
        return replace(lane, axis=access.index_axes[lane.axis]), index.range
    if not isinstance(fact, Offsets) or fact.axis != 0:
        return None
    number = constant_of(index)
    if number is not None and access.inside(0):
        return replace(fact, axis=None, first=fact.first + number), None
    counted = token_tiles.entries(fact, index, access.index_axes) if access.inside(0) else None
    if counted is not None:
        return counted, None
    at_lane = token_tiles.bound_at(site, fact, index) if access.scalar and access.inside(0) else None
    if at_lane is not None:
        return at_lane, None
    lane = index.fact
    if not isinstance(lane, SegmentIds | NextLane) or lane.axis >= len(access.index_axes):
        return None
    offset = fact.first + isinstance(lane, NextLane)
    last = site.prover.bound.lanes - 1 + isinstance(lane, NextLane)
    if offset not in (0, 1) or last >= access.full[0]:
        return None
    axis = access.index_axes[lane.axis]
    return TokenBound(fact.layout, axis, "stop" if offset else "start", fact.plus), None


def _static_slice(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact about a slice; only masks may have a stride."""
    starts, steps = site.params["start_indices"], site.params["strides"]
    fact = operands[0].fact
    if steps is not None and any(step != 1 for step in steps):
        if not isinstance(fact, WithinLane) or fact.axis is None or fact.window is not None:
            return None
        fact, by = replace(fact, shift=fact.shift + fact.stride * starts[fact.axis]), steps[fact.axis]
        return replace(fact, stride=1 if site.shape[fact.axis or 0] == 1 else fact.stride * by), None
    return _slice_from(site, fact, starts)


def _reversed(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the mask of tokens in reverse order."""
    fact = operands[0].fact
    if not isinstance(fact, WithinLane) or fact.axis is None or fact.window is not None:
        return None
    if fact.axis not in site.params["dimensions"]:
        return fact, None
    last = site.shape[fact.axis] - 1
    return replace(fact, shift=fact.shift + fact.stride * last, stride=-fact.stride if last else 1), None


def _slice_from(site: Site, fact: Fact | None, starts: tuple[int, ...]) -> _FactAndBounds | None:
    """Return the fact about a slice of an array that begins at `starts`."""
    if isinstance(fact, Offsets | Lengths):
        if fact.axis is None:
            return fact, None
        first = fact.first + int(starts[fact.axis])
        is_single = site.shape[fact.axis] == 1
        return replace(fact, axis=None if is_single else fact.axis, first=first), None
    if isinstance(fact, SegmentIds | ShiftedIds):
        shift = getattr(fact, "shift", 0) + int(starts[fact.axis])
        return (fact if not shift else ShiftedIds(fact.axis, fact.layout, fact.padding, shift)), None
    if isinstance(fact, WithinLane) and fact.axis is not None and fact.window is None:
        stride = 1 if site.shape[fact.axis] == 1 else fact.stride
        return replace(fact, shift=fact.shift + fact.stride * int(starts[fact.axis]), stride=stride), None
    if isinstance(fact, TokenBound | NonPadding) and not starts[fact.axis or 0]:
        return fact, None
    return None


def _dynamic_slice(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact about an entry of cu_seqlens at a constant or a loop's lane."""
    fact, starts = operands[0].fact, [constant_of(value) for value in operands[1:]]
    if not isinstance(fact, Offsets) or len(starts) != 1 or site.shape != (1,):
        return None
    if starts[0] is None:
        inside = operands[1].range is not None and operands[1].range[1] < site.shapes[0][0]
        bound = token_tiles.bound_at(site, fact, operands[1]) if inside else None
        return None if bound is None else (bound, None)
    return _slice_from(site, fact, (min(max(starts[0], 0), site.shapes[0][0] - 1),))


def _padded(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact about ids or a mask after filler elements."""
    x, filler = operands
    config = [tuple(map(int, amounts)) for amounts in site.params["padding_config"]]
    axis = getattr(x.fact, "axis", None)
    if axis is None or any(any(amounts) for k, amounts in enumerate(config) if k != axis):
        return None
    low, high, gap = config[axis]
    return None if low < 0 or high > 0 or gap else _after_fillers(site, x.fact, [filler], low)


def _joined(site: Site, operands: list[Value]) -> _FactAndBounds | None:
    """Return the fact about ids or a mask concatenated after other elements."""
    axis = site.params["dimension"]
    last = operands[-1].fact
    if getattr(last, "axis", None) != axis or len(operands) < 2:
        return None
    return _after_fillers(site, last, operands[:-1], sum(shape[axis] for shape in site.shapes[:-1]))


def _after_fillers(site: Site, fact: Fact | None, fillers: list[Value], length: int) -> _FactAndBounds | None:
    """Return the fact about ids or a mask after fillers outside all lanes."""
    ranges = [value.range for value in fillers]
    if isinstance(fact, SegmentIds | ShiftedIds):
        shift = getattr(fact, "shift", 0) - length
        if not all(bounds and (bounds[1] < 0 or bounds[0] > site.prover.bound.lanes) for bounds in ranges):
            return None
        return (ShiftedIds(fact.axis, fact.layout, fact.padding, shift) if shift else fact), None
    if isinstance(fact, WithinLane) and fact.stride == 1:
        false_value = int(not fact.when)
        return (replace(fact, shift=fact.shift - length), None) if set(ranges) == {(false_value, false_value)} else None
    return None


_RULES: dict[str, Callable[[Site, list[Value]], _FactAndBounds | None]] = {
    "add": _sum,
    "sub": _difference,
    **dict.fromkeys(_FLIPPED, _compared),
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
    "slice": _static_slice,
    "pad": _padded,
    "concatenate": _joined,
    "rev": _reversed,
}
