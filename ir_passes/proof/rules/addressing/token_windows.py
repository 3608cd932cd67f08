"""Rules for shifted arrays of tokens and carries of loops over tokens.

An array that is shifted by k tokens, or the carry of a loop, may hold another lane's token. A mask `WithinLane` chooses
it only where that token is of the same lane. Multiplying by the mask is not enough: zero times nan is nan.
"""

from dataclasses import replace

from ir_passes.jaxpr.primitives import ELEMENTWISE
from ir_passes.proof.numbering import Number
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Symbol
from ir_passes.proof.rules.addressing.access import of_gather
from ir_passes.proof.site import Site
from ir_passes.proof.values import Clipped, Real, SharedPadding, Shifted, ShiftedTokens, Value, WithinLane


def neighbour(site: Site, token: Symbol, reverse: bool) -> Symbol:
    """Return the token of the previous iteration of a loop over tokens.

    Args:
        token: the token of this iteration.
        reverse: True if the loop begins with the last token.
    """
    number: Number = site.prover.number(("previous iteration", reverse), token.number)
    return Symbol(number, token.size)


def carried(site: Site, value: Value, tokens: dict[str, Symbol], reverse: bool) -> Value | None:
    """Return the value of an iteration in the next one, if it depends on one token.

    Args:
        tokens: layout -> the token of this iteration.
    """
    owner = value.owner
    if not isinstance(owner, OneLane):
        return None
    token = tokens.get(owner.packed)
    if token is None or owner != OneLane(token, packed=owner.packed):
        return None
    return value.but(owner=replace(owner, lane=neighbour(site, token, reverse)))


def selected(site: Site, operands: list[Value], result: Value) -> Value:
    """Return the result of `select_n` by a layout mask, if rows depend on their lanes."""
    mask, *cases = operands
    fact = mask.fact
    if len(cases) != 2 or not isinstance(result.owner, Mixed | LaneRows | OneLane):
        return result
    if not isinstance(fact, WithinLane | Real):
        return result
    if fact.axis is not None and site.shapes[0] != site.shape:
        return result
    row_owner = OneLane(fact.token, packed=fact.layout) if fact.token else LaneRows(fact.axis or 0, packed=fact.layout)
    owners = [case.owner for case in cases]
    if isinstance(fact, Real):
        blank = isinstance(owners[not fact.when], Common) and isinstance(row_owner, LaneRows)
        owners[not fact.when] = row_owner  # padding may hold anything
        owner = site.join(mask.owner, *owners)
        if blank and owner == row_owner and result.fact is None:
            return result.but(owner=owner, fact=SharedPadding(fact.layout, row_owner.axis))
    elif _is_within(site, cases[fact.when], fact):
        owners[fact.when] = row_owner
    else:
        return result
    owner = site.join(mask.owner, *owners)
    changed = not isinstance(owner, Mixed) and owner != result.owner
    return result.but(owner=owner, fact=None) if changed else result


def _is_within(site: Site, value: Value, mask: WithinLane) -> bool:
    """True if a value depends on tokens in the lane of its row, by the mask."""
    owner = value.fact.rows if isinstance(value.fact, ShiftedTokens) else value.owner
    if mask.token is not None:
        reverse = mask.back < 0
        return owner == OneLane(neighbour(site, mask.token, reverse), packed=mask.layout)
    if mask.axis is None or mask.shift or not isinstance(owner, LaneRows):
        return False
    distance = -owner.start
    near = 0 <= distance <= mask.back or mask.back <= distance <= 0
    return near and owner == LaneRows(mask.axis, start=owner.start, packed=mask.layout)


def gathered(site: Site, operands: list[Value], result: Value) -> Value:
    """Return the tokens at a distance, selected by an index such as `x[maximum(arange(tokens) - 1, 0)]`."""
    rows, access = operands[0].owner, of_gather(site, operands[1])
    if not isinstance(result.owner, Mixed) or not isinstance(rows, LaneRows) or list(access.columns) != [rows.axis]:
        return result
    index = access.columns[rows.axis]
    fact = index.fact
    if not isinstance(fact, Clipped | Shifted) or not isinstance(index.owner, Common) or not rows.packed:
        return result
    length = access.full[rows.axis]
    is_full = rows == LaneRows(rows.axis, packed=rows.packed) and length == site.prover.bound.layouts[rows.packed]
    if not is_full or access.sizes[rows.axis] != 1 or fact.axis >= len(access.index_axes) or access.paired:
        return result
    if access.index_shape[fact.axis] != length:
        return result
    return result.but(fact=ShiftedTokens(replace(rows, axis=access.index_axes[fact.axis], start=fact.by)))


def joined(site: Site, operands: list[Value], result: Value) -> Value:
    """Return tokens behind others, as of `jnp.roll`, by the longest part."""
    axis = site.params["dimension"]
    lengths = [shape[axis] for shape in site.shapes]
    longest = lengths.index(max(lengths))
    owner, place = operands[longest].owner, sum(lengths[:longest])
    if not isinstance(result.owner, Mixed) or not isinstance(owner, LaneRows) or not owner.packed:
        return result
    start, tokens = owner.start - place, site.prover.bound.layouts[owner.packed]
    if tokens is None or owner != LaneRows(axis, start=owner.start, packed=owner.packed):
        return result
    before, after = start + place <= 0, start + place + lengths[longest] >= tokens
    if (place and not before) or (place + lengths[longest] < site.shape[axis] and not after):
        return result
    return result.but(fact=ShiftedTokens(replace(owner, start=start)))


def computed(site: Site, operands: list[Value], result: Value) -> Value:
    """Return an elementwise result of shifted tokens and shared arrays."""
    shifted = [value for value in operands if isinstance(value.fact, ShiftedTokens)]
    others = [value for value in operands if not isinstance(value.fact, ShiftedTokens)]
    shared = all(isinstance(value.owner, Common) for value in others)
    alike = shifted and all(value.fact == shifted[0].fact for value in shifted)
    if site.name not in ELEMENTWISE or not isinstance(result.owner, Mixed) or not shared or not alike:
        return result
    return result.but(fact=shifted[0].fact)
