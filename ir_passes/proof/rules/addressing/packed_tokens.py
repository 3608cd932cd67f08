"""Rules for packed tokens: indexing by token or by lane, and same-lane masks.

Every rule for lanes holds for tokens as separate lanes. An owner with `packed` counts tokens and never joins an owner
that counts lanes. Facts about shared arrays give the tokens of one lane: `SegmentIds`, `TokenOfLane` and `SameLane`.

* `x[segment]`: a real token reads the row of its lane. Padding reads any row, which is allowed.
* `zeros(N).at[segment].add(y)`: row i depends on tokens of lane i only, if the scatter drops padding.
* `y[last]`, with `last` the last token of each lane: row i belongs to lane i. A lane without tokens has another lane's
  row; no claim covers it.
* `where(same, pairs, c)`: an element other than `c` combines two tokens of the row's lane.
* `weights @ values` over tokens: a weight outside the row's lane is zero, or nan because of the row's lane. Zero times
  a finite value is zero; values that may be nan or infinite are refused.

More than 300 lines: one argument for all rules about tokens of one lane.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ir_passes.contract.statements import Assumption
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.conversions import holds
from ir_passes.jaxpr.dtypes import to_numpy
from ir_passes.jaxpr.primitives import ELEMENTWISE
from ir_passes.proof import refusals
from ir_passes.proof.assumed import assume_at
from ir_passes.proof.owners import COMMON, Common, LaneRows, Mixed, OneLane, Owner, PoolRows, Symbol
from ir_passes.proof.rules.addressing import index_sums, token_layout, token_tiles, token_windows
from ir_passes.proof.rules.addressing.access import Access
from ir_passes.proof.rules.addressing.index_sums import is_full
from ir_passes.proof.rules.addressing.lane_guesses import starts_of_lanes
from ir_passes.proof.rules.survival import finite_in_product, outlives
from ir_passes.proof.site import Site
from ir_passes.proof.values import (
    ActiveCount,
    Condition,
    Constant,
    DeviceOffset,
    Fact,
    Finite,
    IndexSum,
    Iota,
    IsFinite,
    LaneOfToken,
    Mask,
    MaskedOut,
    OwnTokens,
    PageEntry,
    PlacedToken,
    RowPlaces,
    SameLane,
    SegmentIds,
    SharedElsewhere,
    ShiftedIds,
    SlotEntry,
    TokenAt,
    TokenOf,
    TokenOfLane,
    TokenPairs,
    TokenSpan,
    Value,
    WithinLane,
)


def tokens(axis: int, layout: str) -> LaneRows:
    return LaneRows(axis, packed=layout)


_OF_ALL_ELEMENTS = ActiveCount, Constant, DeviceOffset, Finite, LaneOfToken, PageEntry, SlotEntry, TokenOf
"""Facts about elements without their indices."""


def relocated(fact: Fact | None, new_axis_of: Callable[[int], int | None]) -> Fact | None:
    """Return a fact after its axes moved, or were removed (None)."""
    if isinstance(fact, _OF_ALL_ELEMENTS):
        return fact
    if isinstance(fact, TokenOfLane):
        return fact if fact.lane is not None or new_axis_of(0) == 0 else None
    if isinstance(fact, IndexSum | Mask):
        return index_sums.mapped(fact, index_sums.with_axes(new_axis_of))
    if isinstance(fact, SharedElsewhere):
        mask = index_sums.mapped(Mask(fact.conditions, frozenset()), index_sums.with_axes(new_axis_of))
        return SharedElsewhere(mask.if_true) if isinstance(mask, Mask) else None
    if isinstance(fact, OwnTokens):
        axis = new_axis_of(fact.rows.axis)
        return None if axis is None else replace(fact, rows=replace(fact.rows, axis=axis))
    if isinstance(fact, Iota | PlacedToken | RowPlaces | SegmentIds | ShiftedIds | TokenSpan | WithinLane):
        axis = None if fact.axis is None else new_axis_of(fact.axis)
        return replace(fact, axis=axis) if axis is not None or fact.axis is None else None
    if isinstance(fact, TokenAt):
        place = index_sums.with_axes(new_axis_of)(fact.place)
        return None if place is None else replace(fact, place=place)
    if isinstance(fact, SameLane | TokenPairs | MaskedOut):
        moved_axes = [(owner, new_axis_of(owner.axis)) for owner in (fact.rows, fact.columns)]
        rows, columns = (None if axis is None else replace(owner, axis=axis) for owner, axis in moved_axes)
        return None if rows is None or columns is None else replace(fact, rows=rows, columns=columns)
    return None


def picked(site: Site, rows: LaneRows, access: Access) -> Owner | None:
    """Return the owner of lanes gathered by token, or tokens gathered by lane."""
    lanes, axis = site.prover.bound.lanes, rows.axis
    index = access.columns[axis]
    if access.sizes[axis] != 1 or not isinstance(index.owner, Common):
        return None
    # a place past a shorter array is clamped to another lane's token
    count = site.prover.bound.layouts.get(rows.packed)
    has_all = access.drops or (count is not None and access.full[axis] >= count)
    token = token_tiles.token_of(rows, axis, index) if access.scalar else None
    if token is not None and has_all:
        return token
    if isinstance(index.fact, SegmentIds) and index.fact.axis >= len(access.index_axes):
        return None
    fact = index.fact
    if isinstance(fact, OwnTokens) and rows == tokens(axis, fact.layout) and lanes > 1:
        is_inside = (access.drops or fact.rows.packed) and access.full[axis] == count
        is_row = is_inside and fact.rows.axis < len(access.index_axes)
        return replace(fact.rows, axis=access.index_axes[fact.rows.axis]) if is_row else None
    if isinstance(fact, RowPlaces) and rows == LaneRows(axis, fact.stride) and access.full[axis] == lanes * fact.stride:
        return None if fact.masked and not access.drops else tokens(access.index_axes[fact.axis], fact.layout)
    by_lane = rows == LaneRows(axis) and access.full[axis] == lanes
    if by_lane and isinstance(index.fact, SegmentIds):
        return tokens(access.index_axes[index.fact.axis], index.fact.layout)
    if by_lane and isinstance(index.fact, LaneOfToken) and access.scalar:
        return OneLane(index.fact.token, packed=index.fact.layout)
    token_of = token_layout.token_of_lane(index.fact)
    if token_of is None or rows != tokens(axis, token_of.layout) or not has_all:
        return None
    if token_of.lane is not None:
        return OneLane(token_of.lane) if token_of.lane < lanes else None
    if access.index_shape[0] == lanes:
        lane_axis = access.index_axes[0]
        return OneLane(0) if lanes == 1 else LaneRows(lane_axis)
    return None


def put(site: Site, owner: LaneRows, updates: Value, access: Access) -> Owner | None:
    """Return the owner of lanes after tokens write them, or of a lane's tokens.

    Padding may reach the last lane if everything that it writes is shared. Updates and indices have one owner.
    """
    for dim, index in access.columns.items():
        layout = _layout_of_masked_places(site, owner, updates, access, dim)
        if layout is not None:
            return tokens(dim, layout)
        fact, is_single = index.fact, access.sizes[dim] == 1 and isinstance(index.owner, Common)
        if not isinstance(fact, SegmentIds | RowPlaces) or not is_single or fact.axis >= len(access.index_axes):
            continue
        is_masked = isinstance(fact, RowPlaces) and fact.masked and not access.drops
        if owner != tokens(access.index_axes[fact.axis], fact.layout) or is_masked:
            continue
        shared, stride = pads_with_shared(site, updates, owner), getattr(fact, "stride", 1)
        # no lane is clamped to another
        is_row = access.drops or access.full[dim] >= site.prover.bound.lanes * stride
        shared = shared and is_row and isinstance(access.owners(site, without=dim), Common)
        if not shared and not drops_padding(site, fact, access, dim):
            return site.mixed(*refusals.PADDING_TO_A_LANE)
        return OneLane(0) if access.full[dim] == site.prover.bound.lanes == 1 else LaneRows(dim, stride)
    return None


def _layout_of_masked_places(site: Site, owner: LaneRows, updates: Value, access: Access, dim: int) -> str | None:
    """Return the layout of places in the writing lane; elements elsewhere are shared."""
    index, fact = access.columns[dim], updates.fact
    if not isinstance(index.fact, IndexSum) or not isinstance(fact, SharedElsewhere) or access.sizes[dim] != 1:
        return None
    if max(index_sums.axes_of(index.fact), default=0) >= len(access.index_axes) or index.owner != COMMON:
        return None
    place = index_sums.with_axes(lambda axis: access.index_axes[axis])(index.fact)
    for start in starts_of_lanes(fact.conditions):
        tokens, is_all = site.prover.bound.layouts[start.layout], owner == LaneRows(start.axis or 0)
        if tokens is None or start.axis is None or start.of_token or not is_all:
            continue
        limit = tokens if access.drops else access.full[dim]  # a place in the lane is not clamped
        is_specified = min(limit, tokens if index.fact.below is None else index.fact.below) >= tokens
        has_all_lanes = access.window_shape[start.axis] == site.prover.bound.lanes
        if place and is_specified and has_all_lanes and index_sums.in_lane(place, start, fact.conditions):
            return start.layout
    return None


def pads_with_shared(site: Site, updates: Value, owner: LaneRows) -> bool:
    real = token_layout.real_tokens(site, owner.packed, Iota(owner.axis)).sum
    return isinstance(updates.fact, SharedElsewhere) and index_sums.is_implied(real, updates.fact.conditions)


def drops_padding(site: Site, fact: SegmentIds | RowPlaces | LaneOfToken, access: Access, dim: int) -> bool:
    """True if a scatter by lane writes no padding to a lane's row."""
    is_dropped = access.drops or access.full[dim] > site.prover.bound.lanes * getattr(fact, "stride", 1)
    return fact.padding == "none" or (fact.padding == "past" and is_dropped)


def loop_token(site: Site, rows: LaneRows, access: Access, dim: int) -> OneLane | None:
    """Return the token that writes its lane's row; None if it may be padding."""
    index = access.columns.get(dim)
    if index is None or not isinstance(index.fact, LaneOfToken) or rows != LaneRows(dim) or not access.scalar:
        return None
    if access.full[dim] < site.prover.bound.lanes or not drops_padding(site, index.fact, access, dim):
        return None
    return OneLane(index.fact.token, packed=index.fact.layout)


def entries_of_padding(access: Access) -> bool:
    facts = [value.fact for value in access.columns.values()]
    paddings = {fact.padding for fact in facts if isinstance(fact, SegmentIds | LaneOfToken)}
    return "lane" in paddings or ("past" in paddings and not access.drops)


def by_token(access: Access) -> bool:
    return any(isinstance(value.fact, SegmentIds | LaneOfToken) for value in access.columns.values())


def at_token(site: Site, operand: Value, access: Access) -> Fact | None:
    (axis,) = access.columns if len(access.columns) == 1 else (-1,)
    if axis != 0 or len(access.full) != 1 or not access.scalar or access.sizes != (1,):
        return None
    index = access.columns[axis]
    if not isinstance(index.owner, Common) or (access.drops and not access.inside(axis)):
        return None  # a fill value is not a lane
    fact = at_index(operand.fact, lambda layout: Symbol(index.number, access.full[axis]) if layout else None)
    if isinstance(fact, LaneOfToken) and index.fact == TokenOf(fact.layout):
        return replace(fact, padding="none")
    return fact


def at_index(fact: Fact | None, symbol_of: Callable[[str], Symbol | None]) -> Fact | None:
    """Return the fact about one index along axis 0, if any.

    Args:
        symbol_of: layout of the axis, "" for lanes -> the index, if known.
    """
    if isinstance(fact, IndexSum | Mask):
        return index_sums.mapped(fact, partial(index_sums.at_number, symbol_of))
    token = symbol_of(fact.layout) if isinstance(fact, SegmentIds | WithinLane) and fact.axis == 0 else None
    if isinstance(fact, SegmentIds) and token is not None:
        return LaneOfToken(token, fact.layout, fact.padding)
    if isinstance(fact, WithinLane) and fact == replace(fact, shift=0, stride=1):
        return None if token is None else replace(fact, axis=None, token=token)
    return None


def real_only(site: Site, mask: Value, cases: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return a select's cases, with entries refined by a padding mask."""
    if len(cases) != 2 or not isinstance(mask.fact, Mask) or site.shapes[0] not in ((), site.shape):
        return cases
    return real_entry(site, mask.fact, False, cases[0]), real_entry(site, mask.fact, True, cases[1])


def in_branch(site: Site, mask: Value, when: bool, operands: tuple[Value, ...]) -> list[Value]:
    """Return the operands of a branch taken if a layout mask is `when`.

    If the mask puts the previous and this iteration's token into one lane, both belong to it. A map or table entry
    belongs to a real token if the mask excludes padding.
    """
    fact, values = mask.fact, list(operands)
    if isinstance(fact, Mask):
        return [real_entry(site, fact, when, _real_index(site, fact, when, value)) for value in values]
    if not isinstance(fact, WithinLane) or fact.token is None or fact.when != when:
        return values
    neighbouring = OneLane(token_windows.neighbour(site, fact.token, fact.back < 0), packed=fact.layout)
    token = OneLane(fact.token, packed=fact.layout)
    return [value.replace(owner=token) if value.owner == neighbouring else value for value in values]


def _real_index(site: Site, mask: Mask, when: bool, value: Value) -> Value:
    fact = value.fact
    if isinstance(fact, LaneOfToken) and token_layout.padding_of(site, mask, when, fact.layout, fact.token):
        return value.replace(fact=replace(fact, padding="none"))
    for layout, size in site.prover.bound.layouts.items() if fact is None and isinstance(value.owner, Common) else ():
        token = Symbol(value.number, size or 0)
        if size is not None and token_layout.padding_of(site, mask, when, layout, token):
            return value.replace(fact=TokenOf(layout))
    return value


def real_entry(site: Site, mask: Mask, when: bool, entry: Value) -> Value:
    """Return a map or table entry under a mask that excludes padding."""
    fact, index = entry.fact, token_layout.token_of_owner(entry.owner)
    if not isinstance(fact, SlotEntry | PageEntry) or index is None:
        return entry
    is_real = token_layout.padding_of(site, mask, when, getattr(entry.owner, "packed", ""), index)
    return entry.replace(fact=replace(fact, alternatives=fact.alternatives - {"last"})) if is_real else entry


def refine(site: Site, operands: list[Value], results: list[Value]) -> list[Value]:
    layout_facts = [site.prover.layout.get(value.number, (None, None)) for value in results]
    results = [
        # The array depends on the layout alone. A reshaped array has the same number, but other axes.
        value if fact is None or len(shape) != 1 else value.replace(owner=COMMON, fact=fact, range=bounds)
        for value, (fact, bounds), shape in zip(results, layout_facts, ir.shapes(site.eqn.outvars), strict=True)
    ]
    if len(results) != 1:
        return token_windows.row_by_row(site, operands, results)
    if 0 in site.shape and not isinstance(results[0].owner, PoolRows):
        return [results[0].replace(owner=COMMON)]  # no element, as in a remainder of an associative scan
    result = token_layout.refined(site, operands, results[0])
    for rule in _REFINED.get(site.name, (_computed, token_windows.computed) if site.name in ELEMENTWISE else ()):
        result = rule(site, operands, result)
    return token_windows.row_by_row(site, operands, [result])


def _tokens_of(value: Value) -> frozenset[LaneRows] | None:
    owner = value.owner
    if isinstance(owner, Common):
        return frozenset()
    if isinstance(owner, LaneRows) and owner == tokens(owner.axis, owner.packed):
        return frozenset({owner})
    if isinstance(owner, Mixed) and isinstance(value.fact, TokenPairs):
        return frozenset({value.fact.rows, value.fact.columns})
    return None


def _paired(site: Site, operands: list[Value]) -> TokenPairs | None:
    token_axes = [_tokens_of(value) for value in operands]
    axes = [tokens for tokens in token_axes if tokens is not None]
    if len(axes) < len(token_axes) or not all(
        is_full(site, k, [owner.axis for owner in tokens]) for k, tokens in enumerate(axes)
    ):
        return None
    return _pairs(frozenset[LaneRows]().union(*axes))


def _pairs(axes: frozenset[LaneRows]) -> TokenPairs | None:
    if len(axes) != 2 or len({owner.axis for owner in axes}) != 2 or not any(owner.packed for owner in axes):
        return None
    return TokenPairs(*sorted(axes, key=lambda owner: (bool(owner.packed), owner.axis)))


def _computed(site: Site, operands: list[Value], result: Value) -> Value:
    x = operands[0].fact
    if site.name in ("and", "or", "not"):
        masked = _masks(site, operands, result)
        if masked is not None:
            return masked
    if isinstance(result.fact, token_layout.LAYOUT_FACTS):
        return result
    finite_mask = _finite_mask(site, operands)
    if finite_mask is not None:
        return result.replace(fact=finite_mask)
    pair = _paired(site, operands)
    if site.name in ("eq", "ne"):
        ids = {owner: value.fact for value in operands if (owner := _lane_numbers(site, value)) is not None}
        pairs = _pairs(frozenset(ids))
        if pairs is not None and all(is_full(site, k, (owner.axis,)) for k, owner in enumerate(ids)):
            padding = getattr(ids[pairs.columns], "padding", "") == "lane"
            return result.replace(fact=SameLane(pairs.rows, pairs.columns, padding, when=site.name == "eq"))
    if isinstance(x, MaskedOut) and isinstance(result.owner, LaneRows):
        is_whole = is_full(site, 0, (x.rows.axis, x.columns.axis))
        dtypes = ir.dtype_of(site.eqn.invars[0]), ir.dtype_of(site.eqn.outvars[0])
        fact = outlives(x, site.name, *dtypes) if is_whole else None
        if fact is not None:
            return result.replace(fact=fact)
    if pair is not None and isinstance(result.owner, Mixed):
        return result.replace(fact=pair)
    shared = _shared_elsewhere(site, operands)
    if shared is not None and not result.fact and isinstance(result.owner, LaneRows | OneLane):
        return result.replace(fact=shared)
    return result if result.fact else result.replace(fact=_limited_numbers(site, operands))


def _shared_elsewhere(site: Site, operands: list[Value]) -> SharedElsewhere | None:
    facts = {value.fact for value in operands if not isinstance(value.owner, Common)}
    (fact,) = facts if len(facts) == 1 else (None,)
    if not isinstance(fact, SharedElsewhere):
        return None
    axes = {axis for condition in fact.conditions for axis in index_sums.axes_of(condition.sum)}
    is_aligned = (isinstance(value.owner, Common) or is_full(site, k, axes) for k, value in enumerate(operands))
    return fact if all(is_aligned) else None


def _masked(site: Site, operands: list[Value], result: Value) -> Value:
    """Select between a lane's and shared elements by a mask with conditions."""
    mask, *cases = operands
    if len(cases) != 2 or result.fact or not isinstance(result.owner, LaneRows | OneLane):
        return result
    for when, other in ((True, cases[0]), (False, cases[1])):
        conditions = index_sums.full_conditions(site, 0, mask.fact, when)
        if conditions and isinstance(other.owner, Common):
            return result.replace(fact=SharedElsewhere(conditions))
    return result


def _finite_mask(site: Site, operands: list[Value]) -> IsFinite | None:
    x = operands[0]
    if site.name == "is_finite":
        return IsFinite(x.number)
    if site.name == "ne" and x.number == operands[1].number and site.shapes[0] == site.shapes[1]:
        return IsFinite(x.number, frozenset({"nan"}), when=False)
    if site.name == "eq" and site.shapes[0] == site.shape and isinstance(site.eqn.invars[1], ir.Literal):
        number = _literal(site, site.eqn.invars[1])
        if number is not None and math.isinf(number):
            return IsFinite(x.number, frozenset({str(number)}), when=False)
    return None


def _limited_numbers(site: Site, operands: list[Value]) -> Finite | None:
    """Return numbers excluded by finite limits; None without such limits.

    An element is an operand's element, or nan if one of these is nan. It is at most a minimum's finite operand, and at
    least a maximum's. `clamp(a, b, c)` is min(max(b, a), c).
    """
    if site.name not in ("max", "min", "clamp"):
        return None
    literals = [_literal(site, atom) for atom in site.eqn.invars]
    numbers = [value.fact for value, literal in zip(operands, literals, strict=True) if literal is None]
    if len(numbers) != 1 or not all(literal is None or math.isfinite(literal) for literal in literals):
        return None
    limits = {"max": {"-inf"}, "min": {"inf"}, "clamp": {"inf", "-inf"}}["min" if literals[2:] == [None] else site.name]
    return Finite(frozenset(limits | (numbers[0].excluded if isinstance(numbers[0], Finite) else set())))


def _lane_numbers(site: Site, value: Value) -> LaneRows | None:
    fact, lanes = value.fact, site.prover.bound.lanes
    if isinstance(fact, SegmentIds):
        return tokens(fact.axis, fact.layout)
    if isinstance(fact, Iota) and fact.div == 1 and value.range == (0, lanes - 1) and lanes > 1:
        return LaneRows(fact.axis)
    return None


def _masks(site: Site, operands: list[Value], result: Value) -> Value | None:
    """Combine masks of pairs: true "and" and false "or" hold for both operands."""
    facts = [value.fact for value in operands]
    same_lane = [fact for fact in facts if isinstance(fact, SameLane)]
    if site.name == "not":
        return result.replace(fact=replace(same_lane[0], when=not same_lane[0].when)) if same_lane else None
    when = site.name == "and"
    if any(fact.when != when for fact in same_lane):
        # "and" and "or" of equal masks return the mask itself
        alike = len({*facts}) == 1 and not isinstance(result.owner, Mixed)
        full_shape = all(is_full(site, k, (same_lane[0].rows.axis, same_lane[0].columns.axis)) for k in (0, 1))
        return result.replace(fact=same_lane[0]) if alike and full_shape else None
    if not same_lane:
        pairs = _pairs_in_lanes(site, index_sums.conditions_of(result.fact, when), when)
        return None if pairs is None else result.replace(fact=pairs)
    mask = same_lane[0]
    operand_axes = [_tokens_of(value) for value in operands]
    if not is_full(site, facts.index(mask), (mask.rows.axis, mask.columns.axis)):
        return None
    if not all(
        axes is not None and axes <= {mask.rows, mask.columns} and is_full(site, k, [owner.axis for owner in axes])
        for k, axes in enumerate(operand_axes)
    ):
        return None
    owner = mask.rows if any(operand_axes) else result.owner
    real = any(_excludes_padding(site, k, fact, mask) for k, fact in enumerate(facts))
    return result.replace(owner=owner, fact=replace(mask, padding=mask.padding and not real))


def _pairs_in_lanes(site: Site, conditions: frozenset[Condition], when: bool) -> SameLane | None:
    """Return the mask of tokens within lanes, or a token's lane."""
    indices = {term for condition in conditions for term, _ in condition.sum.terms if isinstance(term, Iota)}
    lanes = site.prover.bound.lanes
    for start in starts_of_lanes(conditions):
        if start.axis is None or (not start.of_token and (lanes == 1 or site.shape[start.axis] != lanes)):
            continue
        rows = tokens(start.axis, start.of_token) if start.of_token else LaneRows(start.axis)
        for index in sorted(indices, key=str):
            in_order = index.axis > start.axis if start.of_token else index.axis != start.axis
            if in_order and index_sums.in_lane(index_sums.single(index), start, conditions):
                return SameLane(rows, tokens(index.axis, start.layout), when=when)
    return None


def _excludes_padding(site: Site, operand: int, fact: Fact | None, mask: SameLane) -> bool:
    """True if a mask excludes padding along the columns of a same-lane mask.

    Padding follows all real tokens, so a token not later than a real token is real.
    """
    if isinstance(fact, SameLane):
        return (fact.rows, fact.columns, fact.when, fact.padding) == (mask.rows, mask.columns, mask.when, False)
    rows, columns = (index_sums.single(Iota(owner.axis)) for owner in (mask.rows, mask.columns))
    wanted = [token_layout.real_tokens(site, mask.columns.packed, Iota(mask.columns.axis)).sum]
    if mask.rows.packed == mask.columns.packed:
        wanted.append(index_sums.difference(rows, columns))
    conditions = index_sums.full_conditions(site, operand, fact, mask.when)
    return any(index_sums.is_implied(value, conditions) for value in wanted)


def _selected(site: Site, operands: list[Value], result: Value) -> Value:
    """Add facts to the result of `select_n`.

    With a same-lane mask, each row depends on its lane only. Without nan and infinity, elements are finite.
    """
    mask, *cases = operands
    if len(cases) != 2:
        return result
    pair_mask = mask.fact if isinstance(mask.fact, SameLane) and not mask.fact.padding else None
    if pair_mask is not None and is_full(site, 0, (pair_mask.rows.axis, pair_mask.columns.axis)):
        rows, columns = pair_mask.rows, pair_mask.columns
        excluded_axes = [_tokens_of(value) for value in (mask, cases[not pair_mask.when])]
        selected_axes = _tokens_of(cases[pair_mask.when])
        if selected_axes is None or any(axes is None or not axes <= {rows} for axes in excluded_axes):
            return result
        if not selected_axes <= {rows, columns}:
            return result
        number = _literal(site, site.eqn.invars[2 - pair_mask.when])
        masked = MaskedOut(rows, columns, number == 0) if number in (0, -math.inf) else None
        return result.replace(owner=rows, fact=masked)
    finite = mask.fact
    if isinstance(finite, IsFinite) and finite.number == cases[finite.when].number and site.shapes[0] == site.shape:
        number = _literal(site, site.eqn.invars[2 - finite.when])
        case_fact = cases[finite.when].fact
        if number is not None and math.isfinite(number):
            return result.replace(
                fact=Finite(finite.excluded | (case_fact.excluded if isinstance(case_fact, Finite) else set()))
            )
    pair = _paired(site, operands)
    return result.replace(fact=pair) if pair is not None and isinstance(result.owner, Mixed) else result


def _product(site: Site, operands: list[Value], result: Value) -> Value:
    """Add facts to the result of `dot_general`.

    A product of two arrays of tokens depends on token pairs, a sum over tokens with masked weights on the row's lane
    only.
    """
    contract, batch = site.params["dimension_numbers"]
    shapes = site.shapes
    result_axes: list[dict[int, int]] = []
    next_axis = len(batch[0])
    for side in (0, 1):
        free = [d for d in range(len(shapes[side])) if d not in contract[side] and d not in batch[side]]
        result_axes.append({d: next_axis + k for k, d in enumerate(free)} | {d: k for k, d in enumerate(batch[side])})
        next_axis += len(free)
    for weights, values in ((0, 1), (1, 0)):
        fact, value = operands[weights].fact, operands[values]
        summed = dict(zip(contract[weights], contract[values], strict=True))
        if not isinstance(fact, MaskedOut) or not fact.zero:
            continue
        if fact.columns.axis not in summed or fact.rows.axis in summed:
            continue
        if operands[weights].owner != fact.rows or value.owner != replace(fact.columns, axis=summed[fact.columns.axis]):
            continue
        dtypes = ir.dtype_of(site.eqn.invars[values]), ir.dtype_of(site.eqn.outvars[0])
        if not finite_in_product(value.fact, *dtypes, site.params["precision"]):
            return result.replace(owner=site.mixed(*refusals.ZERO_TIMES_NAN))
        assume_at(site, Assumption.MASKED_SUM)
        return result.replace(owner=replace(fact.rows, axis=result_axes[weights][fact.rows.axis]))
    owners = frozenset(
        replace(value.owner, axis=result_axes[side][value.owner.axis])
        for side, value in enumerate(operands)
        if isinstance(value.owner, LaneRows) and _tokens_of(value) and value.owner.axis in result_axes[side]
    )
    pairs = _pairs(owners)
    if pairs is not None and isinstance(result.owner, Mixed):
        return result.replace(owner=site.mixed(*refusals.TOKEN_PAIRS), fact=pairs)
    return result


def _literal(site: Site, atom: Any) -> float | None:
    """Return a broadcast literal, if no conversion changes it."""
    dtypes = [ir.dtype_of(atom)]
    while not isinstance(atom, ir.Literal):
        eqn = site.maker(atom)
        if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "convert_element_type", "reshape"):
            return None
        atom = eqn.invars[0]
        dtypes.append(ir.dtype_of(atom))
    value = to_numpy(atom.val)
    number = float(value.real.reshape(())) if value.size == 1 else math.nan
    return number if all(holds(dtype, number) for dtype in dtypes) else None


_REFINED = {
    "select_n": (_selected, token_windows.selected, token_tiles.selected, _masked),
    "dot_general": (_product,),
    "gather": (token_windows.gathered,),
    "concatenate": (token_windows.joined,),
    "stack": (token_windows.stacked,),
    "slice": (token_windows.in_line,),
    "pad": (token_windows.padded,),
    "rev": (token_windows.in_line,),
}
"""Primitive -> rules for packed tokens that no other rule knows."""
