"""Packed tokens: lanes' values by token, tokens' values by lane, and what a mask by lane lets through.

Every rule for lanes holds for tokens, if each token is taken for a lane of its own: an owner that is `packed` counts
tokens, and is never joined with one that counts lanes. The rules here know that several tokens belong to one lane. They
rest on three facts about shared arrays: `SegmentIds` (it says the lane of each token), `TokenOf` (it names a
token of each lane) and `SameLane` (it is false for tokens of different lanes).

* `x[segment]`: at a real token it is the row of the token's own lane. At padding it is any row, which is allowed there.
* `zeros(N).at[segment].add(y)`: row i is made of tokens of lane i alone, if what padding would add is dropped.
* `y[last]`, with `last` the last token of each lane: row i is lane i's. The row of a lane without tokens is another
  lane's; such a lane is outside every claim.
* `where(same, pairs, c)`: where it is not `c`, the two tokens are of one lane, so that it is the row's lane's alone.
* `weights @ values` over tokens: a weight outside of the row's lane is zero, or nan because of the row's own lane, and
  finite values make zero of zero. Values that may be nan or infinite are refused: zero times these is nan.

Which array is a `SegmentIds` is told by value numbers (`ir_passes.proof.packed_layout`).

More than 300 lines: one argument for all rules about tokens of one lane.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ir_passes.contract.statements import Assumption
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.conversions import holds
from ir_passes.jaxpr.dtypes import to_numpy
from ir_passes.jaxpr.primitives import ELEMENTWISE
from ir_passes.proof.owners import COMMON, Common, LaneRows, Mixed, OneLane, Owner, Symbol
from ir_passes.proof.rules.addressing.access import Access, constant_of
from ir_passes.proof.rules.survival import finite_in_product, outlives
from ir_passes.proof.site import Site
from ir_passes.proof.values import (
    Absent,
    Fact,
    Finite,
    IsFinite,
    PageEntry,
    Real,
    SameLane,
    SegmentAt,
    SegmentIds,
    SlotEntry,
    TokenOf,
    TokenPairs,
    Value,
)

_MASK = (
    "mask tokens of other lanes: where(segment[:, None] == segment[None, :], scores, -inf), with padding in no lane "
    "(segment N), before they are reduced"
)
_FINITE = (
    "make them finite first: where(isfinite(values), values, 0), after the last conversion to a dtype with a smaller "
    "range, and multiply in a dtype with at least that range"
)


def tokens(axis: int, layout: str) -> LaneRows:
    """Return the owner of an array with one index for each token of a layout along an axis."""
    return LaneRows(axis, packed=layout)


def relocated(fact: Fact | None, place: Callable[[int], int | None]) -> Fact | None:
    """Return a fact about axes after they have moved; None for one about other things, or about an axis that is gone.

    Args:
        fact: of the value before.
        place: old axis -> new axis, None where there is none.
    """
    if isinstance(fact, Finite):
        return fact
    if isinstance(fact, TokenOf):
        return fact if place(0) == 0 else None
    if isinstance(fact, SegmentIds | Real) and fact.axis is not None:
        axis = place(fact.axis)
        return None if axis is None else replace(fact, axis=axis)
    if isinstance(fact, SegmentAt | Real):
        return fact
    if isinstance(fact, SameLane | TokenPairs | Absent):
        ends = [(owner, place(owner.axis)) for owner in (fact.rows, fact.columns)]
        rows, columns = (None if axis is None else replace(owner, axis=axis) for owner, axis in ends)
        return None if rows is None or columns is None else replace(fact, rows=rows, columns=columns)
    return None


def picked(site: Site, rows: LaneRows, access: Access) -> Owner | None:
    """Return the owner of lanes' rows picked by token, or of tokens picked by lane; None for other indices."""
    lanes, axis = site.prover.bound.lanes, rows.axis
    index = access.columns[axis]
    if access.sizes[axis] != 1 or not isinstance(index.owner, Common):
        return None
    if isinstance(index.fact, SegmentIds) and index.fact.axis >= len(access.index_axes):
        return None
    by_lane = rows == LaneRows(axis) and access.full[axis] == lanes
    if by_lane and isinstance(index.fact, SegmentIds):
        return tokens(access.index_axes[index.fact.axis], index.fact.layout)
    if by_lane and isinstance(index.fact, SegmentAt) and access.scalar:
        return OneLane(index.fact.token, packed=index.fact.layout)
    token_of = isinstance(index.fact, TokenOf) and rows == tokens(axis, index.fact.layout)
    if token_of and access.index_shape[0] == lanes:
        at = access.index_axes[0]
        return OneLane(0) if lanes == 1 else LaneRows(at)
    return None


def put(site: Site, owner: LaneRows, access: Access) -> Owner | None:
    """Return the owner of rows of lanes to which tokens are written by their lanes; None for other indices."""
    for dim, index in access.columns.items():
        if access.sizes[dim] != 1 or not isinstance(index.fact, SegmentIds) or not isinstance(index.owner, Common):
            continue
        if index.fact.axis >= len(access.index_axes):
            continue
        if owner != tokens(access.index_axes[index.fact.axis], index.fact.layout):
            continue
        if not drops_padding(site, index.fact, access, dim):
            message = "padding behind the last token is written to the last lane"
            remedy = "give padding the segment N, the number of lanes, and let the write drop it"
            return site.mixed(message, remedy)
        return OneLane(0) if access.full[dim] == site.prover.bound.lanes == 1 else LaneRows(dim)
    return None


def drops_padding(site: Site, fact: SegmentIds | SegmentAt, access: Access, dim: int) -> bool:
    """Whether a write by lanes of tokens writes no padding to a row of a lane."""
    return fact.padding == "past" and (access.drops or access.full[dim] > site.prover.bound.lanes)


def turn(site: Site, rows: LaneRows, access: Access, dim: int) -> OneLane | None:
    """Return the token whose lane's row is written in an iteration, None where padding would be written as well."""
    index = access.columns.get(dim)
    if index is None or not isinstance(index.fact, SegmentAt) or rows != LaneRows(dim) or not access.scalar:
        return None
    if access.full[dim] < site.prover.bound.lanes or not drops_padding(site, index.fact, access, dim):
        return None
    return OneLane(index.fact.token, packed=index.fact.layout)


def entries_of_padding(access: Access) -> bool:
    """Whether what is read for padding is the last lane's: the index is clamped to it."""
    facts = [value.fact for value in access.columns.values()]
    return any(
        isinstance(fact, SegmentIds | SegmentAt) and (fact.padding == "last" or not access.drops) for fact in facts
    )


def by_token(access: Access) -> bool:
    """Whether an index picks lanes by token."""
    return any(isinstance(value.fact, SegmentIds | SegmentAt) for value in access.columns.values())


def segment_at(site: Site, operand: Value, access: Access) -> SegmentAt | None:
    """The fact of the lane of one token, which a shared index picks."""
    (axis,) = access.columns if len(access.columns) == 1 else (-1,)
    fact = operand.fact
    if not isinstance(fact, SegmentIds) or axis != fact.axis or len(access.full) != 1 or not access.scalar:
        return None
    if access.sizes != (1,) or not isinstance(access.columns[axis].owner, Common):
        return None
    if access.drops and not access.inside(axis):
        return None  # a fill value is no lane
    return SegmentAt(Symbol(access.columns[axis].number, access.full[axis]), fact.layout, fact.padding)


def real_only(which: Value, entry: Value) -> Value:
    """Return an entry of a slot map or page table that is used where its token is no padding."""
    fact, owner = entry.fact, entry.owner
    if not isinstance(fact, SlotEntry | PageEntry) or not isinstance(which.fact, Real):
        return entry
    layout, axis, token = which.fact.layout, which.fact.axis, which.fact.token
    mine = axis is not None and owner == tokens(axis, layout)
    mine = mine or (isinstance(owner, OneLane) and owner.packed == layout and owner.lane == token)
    return entry.but(fact=replace(fact, instead=fact.instead - {"last"})) if mine else entry


def refine(site: Site, operands: list[Value], results: list[Value]) -> list[Value]:
    """Return results with what is known of packed tokens."""
    known = [site.prover.layout.get(value.number, (None, None)) for value in results]
    results = [
        # it depends on the layout alone; a reshaped array has the same number, and its axes elsewhere
        value if fact is None or len(shape) != 1 else value.but(owner=COMMON, fact=fact, range=bounds)
        for value, (fact, bounds), shape in zip(results, known, ir.shapes(site.eqn.outvars), strict=True)
    ]
    if len(results) != 1:
        return results
    if site.name == "select_n":
        return [_selected(site, operands, results[0])]
    if site.name == "dot_general":
        return [_product(site, operands, results[0])]
    if site.name in ELEMENTWISE:
        return [_computed(site, operands, results[0])]
    return results


def _tokens_of(value: Value) -> frozenset[LaneRows] | None:
    """Return the axes of tokens that an array depends on; None if it depends on anything else."""
    owner = value.owner
    if isinstance(owner, Common):
        return frozenset()
    if isinstance(owner, LaneRows) and owner.packed and owner == tokens(owner.axis, owner.packed):
        return frozenset({owner})
    if isinstance(owner, Mixed) and isinstance(value.fact, TokenPairs):
        return frozenset({value.fact.rows, value.fact.columns})
    return None


def _paired(site: Site, operands: list[Value]) -> TokenPairs | None:
    """Return the fact that some arrays of one shape depend on tokens along two axes; None if it does not hold."""
    known = [_tokens_of(value) for value in operands]
    axes = [tokens for tokens in known if tokens is not None]
    if len(axes) < len(known) or not all(_full(site, k, tokens) for k, tokens in enumerate(axes)):
        return None
    return _pairs(frozenset[LaneRows]().union(*axes))


def _pairs(axes: frozenset[LaneRows]) -> TokenPairs | None:
    """Return the fact of pairs of tokens; None unless there are two axes."""
    if len(axes) != 2 or len({owner.axis for owner in axes}) != 2:
        return None
    return TokenPairs(*sorted(axes, key=lambda owner: owner.axis))


def _full(site: Site, operand: int, along: Iterable[LaneRows]) -> bool:
    """True if an operand has the axes of the result, and the same length along some of them."""
    shape, axes = site.shapes[operand], [owner.axis for owner in along]
    if shape == ():
        return not axes
    return len(shape) == len(site.shape) and all(shape[axis] == site.shape[axis] for axis in axes)


def _computed(site: Site, operands: list[Value], result: Value) -> Value:
    """An elementwise result: facts about masks, about pairs of tokens, and about what a mask has let through."""
    lanes, facts, shapes = site.prover.bound.lanes, [value.fact for value in operands], site.shapes
    x = facts[0]
    if site.name in ("lt", "ne") and isinstance(x, SegmentIds | SegmentAt) and x.padding == "past":
        if constant_of(operands[1]) == lanes and shapes[0] == site.shape:
            axis, token = (x.axis, None) if isinstance(x, SegmentIds) else (None, x.token)
            return result.but(fact=Real(x.layout, axis, token))
    if site.name == "min" and isinstance(x, SegmentIds | SegmentAt) and constant_of(operands[1]) == lanes - 1:
        return result.but(fact=replace(x, padding="last"))
    if site.name == "is_finite":
        return result.but(fact=IsFinite(operands[0].number))
    pair = _paired(site, operands)
    same = [fact for fact in facts if isinstance(fact, SameLane)]
    if site.name == "eq" and all(isinstance(fact, SegmentIds) and fact.padding == "past" for fact in facts):
        own = [tokens(fact.axis, fact.layout) for fact in facts if isinstance(fact, SegmentIds)]
        pairs = _pairs(frozenset(own))
        if pairs is not None and all(_full(site, k, (owner,)) for k, owner in enumerate(own)):
            return result.but(fact=SameLane(pairs.rows, pairs.columns))
    if site.name == "and" and same:
        within = [_tokens_of(value) for value in operands]
        masked = _full(site, facts.index(same[0]), (same[0].rows, same[0].columns))
        mine = {same[0].rows, same[0].columns}
        if masked and all(axes is not None and axes <= mine and _full(site, k, axes) for k, axes in enumerate(within)):
            owner = same[0].rows if any(within) else result.owner
            return result.but(owner=owner, fact=same[0])
    if site.name == "or" and len({*facts}) == 1 and same and not isinstance(result.owner, Mixed):
        if all(_full(site, k, (same[0].rows, same[0].columns)) for k in (0, 1)):
            return result.but(fact=same[0])
    if site.name == "and":
        real = [
            fact
            for k, fact in enumerate(facts)
            if isinstance(fact, Real) and _full(site, k, () if fact.axis is None else (tokens(fact.axis, fact.layout),))
        ]
        return result.but(fact=real[0]) if real and not result.fact else result
    if isinstance(x, Absent) and isinstance(result.owner, LaneRows) and _full(site, 0, (x.rows, x.columns)):
        lasting = outlives(x, site.name, ir.dtype_of(site.eqn.invars[0]), ir.dtype_of(site.eqn.outvars[0]))
        if lasting is not None:
            return result.but(fact=lasting)
    return result.but(fact=pair) if pair is not None and isinstance(result.owner, Mixed) else result


def _selected(site: Site, operands: list[Value], result: Value) -> Value:
    """A choice: by a mask of lanes it is the row's lane's alone; of finite values or a finite number it is finite."""
    which, *cases = operands
    if len(cases) != 2:
        return result
    if isinstance(which.fact, SameLane) and _full(site, 0, (which.fact.rows, which.fact.columns)):
        rows, columns = which.fact.rows, which.fact.columns
        outside = [_tokens_of(value) for value in (which, cases[0])]
        inside = _tokens_of(cases[1])
        if inside is None or not inside <= {rows, columns} or any(a is None or not a <= {rows} for a in outside):
            return result
        number = _literal(site, site.eqn.invars[1])
        absent = Absent(rows, columns, number == 0) if number in (0, -math.inf) else None
        return result.but(owner=rows, fact=absent)
    if isinstance(which.fact, IsFinite) and which.fact.number == cases[1].number and site.shapes[0] == site.shape:
        number = _literal(site, site.eqn.invars[1])
        if number is not None and math.isfinite(number):
            return result.but(fact=Finite())
    pair = _paired(site, operands)
    return result.but(fact=pair) if pair is not None and isinstance(result.owner, Mixed) else result


def _product(site: Site, operands: list[Value], result: Value) -> Value:
    """A product of matrices: of two arrays of tokens it is of pairs, summed over tokens with weights the row's."""
    contract, batch = site.params["dimension_numbers"]
    shapes = site.shapes
    places: list[dict[int, int]] = []
    after = len(batch[0])
    for side in (0, 1):
        free = [d for d in range(len(shapes[side])) if d not in contract[side] and d not in batch[side]]
        places.append({d: after + k for k, d in enumerate(free)} | {d: k for k, d in enumerate(batch[side])})
        after += len(free)
    for one, other in ((0, 1), (1, 0)):
        fact, values = operands[one].fact, operands[other]
        summed = dict(zip(contract[one], contract[other], strict=True))
        if not isinstance(fact, Absent) or not fact.zero or fact.columns.axis not in summed or fact.rows.axis in summed:
            continue
        if operands[one].owner != fact.rows or values.owner != replace(fact.columns, axis=summed[fact.columns.axis]):
            continue
        dtypes = ir.dtype_of(site.eqn.invars[other]), ir.dtype_of(site.eqn.outvars[0])
        if not finite_in_product(values.fact, *dtypes, site.params["precision"]):
            message = "tokens of other lanes are weighted by zero, and zero times nan or infinity is nan"
            return result.but(owner=site.mixed(message, _FINITE))
        site.prover.assumed.add(Assumption.MASKED_SUM.statement(f"{site.name} at {site.source}"))
        return result.but(owner=replace(fact.rows, axis=places[one][fact.rows.axis]))
    ends = frozenset(
        replace(value.owner, axis=places[side][value.owner.axis])
        for side, value in enumerate(operands)
        if isinstance(value.owner, LaneRows) and _tokens_of(value) and value.owner.axis in places[side]
    )
    pairs = _pairs(ends)
    if pairs is not None and isinstance(result.owner, Mixed):
        return result.but(owner=site.mixed("it combines tokens of different lanes", _MASK), fact=pairs)
    return result


def _literal(site: Site, atom: Any) -> float | None:
    """Return the literal that every element of an operand equals; None if there is none, or a conversion changes it."""
    made = {var: eqn for eqn in site.jaxpr.eqns[: site.index] for var in eqn.outvars}
    dtypes = [ir.dtype_of(atom)]
    while not isinstance(atom, ir.Literal):
        eqn = made.get(atom)
        if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "convert_element_type", "reshape"):
            return None
        atom = eqn.invars[0]
        dtypes.append(ir.dtype_of(atom))
    value = to_numpy(atom.val)
    number = float(value.real.reshape(())) if value.size == 1 else math.nan
    return number if all(holds(dtype, number) for dtype in dtypes) else None
