"""Reads and writes at run-time indices.

More than 300 lines: reads and writes share the interpretation of indices.
"""

import math
from dataclasses import replace

from ir_passes.jaxpr import primitives
from ir_passes.proof import refusals
from ir_passes.proof.assumed import note_indices
from ir_passes.proof.intervals import fits, hull
from ir_passes.proof.numbering import NONE, Number
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Order, Owner, PoolRows, Symbol, moved
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.addressing import packed_tokens, page_tables, pool_rows, token_tiles
from ir_passes.proof.rules.addressing.access import (
    MODES,
    Access,
    check_position,
    lane_at,
    of_gather,
    of_scatter,
    of_slice,
    unsorted,
)
from ir_passes.proof.rules.reductions import permuted
from ir_passes.proof.site import Site
from ir_passes.proof.uniformity import disordered
from ir_passes.proof.values import Constant, Counts, Iota, PageEntry, Permuted, SlotEntry, Value

_READS, _IGNORES = "dimension_numbers indices_are_sorted", "unique_indices"
"""unique_indices is ignored: if indices repeat, a lane writes its own element twice, and one write wins."""


@rule("gather", reads=f"{_READS} fill_value slice_sizes", ignores=_IGNORES, accepts={"mode": MODES})
def gather(site: Site, operand: Value, indices: Value) -> list[Value]:
    return [_read(site, operand, of_gather(site, indices))]


@rule("dynamic_slice", reads="slice_sizes")
def dynamic_slice(site: Site, operand: Value, *starts: Value) -> list[Value]:
    return [_read(site, operand, of_slice(site, starts, site.shape))]


def _read(site: Site, operand: Value, access: Access) -> Value:
    check_position(site, operand, access)
    fault = unsorted(site, access)
    if fault is not None:
        return Value(fault)
    if isinstance(operand.owner, PoolRows):
        note_indices(site, access, operand.owner.axis)
        return pool_rows.read(site, operand, access)
    slots = [value.fact for value in access.columns.values() if isinstance(value.fact, SlotEntry | PageEntry)]
    if slots and isinstance(operand.fact, Constant) and operand.fact.captured:
        site.report(*refusals.CAPTURED(path=site.prover.bound.inputs[slots[0].leaf].path))
    owner = _read_owner(site, operand, access)
    axis = operand.owner.axis if isinstance(operand.owner, LaneRows) else None
    picked_axis = axis if axis in access.columns else None
    pairs_disordered = isinstance(operand.owner, Common) and access.paired and disordered(owner)
    if pairs_disordered or access.reveals_places(owner, without=picked_axis):
        owner = site.mixed(*refusals.INDEX_REVEALS_ORDER)
    bounds, fills = operand.range, access.drops and not access.all_inside()
    if fills:
        filler = site.params.get("fill_value")
        bounds = hull(bounds, (int(filler), int(filler))) if isinstance(filler, int) else None
    fact = operand.fact if isinstance(operand.fact, SlotEntry | PageEntry) else None
    if fact is not None and fills:
        fact = _entries_or_filler(site, fact, access)
    if isinstance(fact, SlotEntry | PageEntry) and packed_tokens.entries_of_padding(access):
        fact = replace(fact, alternatives=fact.alternatives | {"last"})
    fact = fact or packed_tokens.at_token(site, operand, access)
    reads_all = access.sizes == access.full and not access.paired and access.scalar and site.shape == access.full
    if reads_all and (not access.columns or not access.drops):
        return operand.replace(owner=owner)
    is_vector = len(access.full) == 1 and not access.window and access.columns and access.inside(0)
    order = access.columns[0].fact if is_vector else None
    if isinstance(operand.fact, Iota) and isinstance(order, Permuted):
        fact = Permuted(order.order, operand.fact.div) if order.div == 1 else None
    intact = operand.intact and operand.intact.seen(lambda view: access.taken(view, -1))
    number = _permuted_number(site, operand, access)
    return Value(owner, number, bounds, fact, intact)


def _entries_or_filler(site: Site, fact: SlotEntry | PageEntry, access: Access) -> SlotEntry | PageEntry | None:
    """Return the fact of entries with a fill value; slots are read by token.

    None if the fill value may be a lane's row.
    """
    filler = site.params.get("fill_value")
    if not isinstance(filler, int) or (isinstance(fact, SlotEntry) and not packed_tokens.by_token(access)):
        return None
    kind = page_tables.nowhere(site, Value(range=(filler, filler)), fact)
    if kind is not None and isinstance(fact, SlotEntry):
        previous_guards = () if fact.guard is None else (fact.guard,)
        form = "filled", filler, len(previous_guards)
        guard = site.prover.number(form, *previous_guards, *(value.number for value in access.columns.values()))
        fact = replace(fact, guard=guard)
    return None if kind is None else replace(fact, alternatives=fact.alternatives | {kind})


def _permuted_number(site: Site, operand: Value, access: Access) -> Number:
    """Return the value number of a permuted vector, else 0.

    The prover records that it has equal counts of each element.
    """
    index = access.columns.get(0)
    order = index.fact if index is not None and len(access.full) == 1 and not access.window else None
    if not isinstance(order, Permuted) or order.div != 1 or site.shape != access.full or not access.inside(0):
        return NONE
    number = site.prover.fresh()
    site.prover.same_counts[number] = site.prover.same_counts.get(operand.number, operand.number)
    return number


def _read_owner(site: Site, operand: Value, access: Access) -> Owner:
    rows = operand.owner
    if not isinstance(rows, LaneRows):
        return site.join(rows, access.owners(site))
    axis = rows.axis
    if axis in access.paired:
        return site.join(moved(rows, access.paired[axis]), access.owners(site))
    if access.whole(axis):
        return site.join(moved(rows, access.window[axis]), access.owners(site))
    if axis not in access.columns:
        return site.mixed(*refusals.PICKED_LANES(axis=axis))
    return site.join(_selected_rows(site, rows, access), access.owners(site, without=axis))


def _selected_rows(site: Site, rows: LaneRows, access: Access) -> Owner:
    index, axis = access.columns[rows.axis], rows.axis
    by_token = packed_tokens.picked(site, rows, access)
    if by_token is not None:
        return by_token
    lane = lane_at(access, axis, rows) if access.sizes[axis] == 1 else None
    if lane is not None:
        return lane
    if access.sizes[axis] == 1 and access.inside(axis):
        if isinstance(index.fact, Iota) and (rows.order is None or index.fact.div == 1):
            index_axis = access.index_axes[index.fact.axis]
            return replace(rows, axis=index_axis, inner=rows.inner * index.fact.div, unreduced=())
        if isinstance(index.fact, Permuted) and access.index_axes:
            return permuted(site, moved(rows, access.index_axes[0]), index.fact.order, index.fact.div)
    block = _block_of_rows(site, rows, access, axis)
    if block is not None:
        return block
    if isinstance(index.owner, Mixed) and index.fact is None:
        return index.owner  # the fault is at the index
    return site.mixed(*refusals.PICKED_LANES(axis=axis))


def _block_of_rows(site: Site, rows: LaneRows, access: Access, dim: int) -> LaneRows | None:
    """Return the owner of a block of rows at a shared start, or None.

    The symbol stands for rows at this start: a block read there is written back there, and nowhere else.
    """
    index = access.columns[dim]
    is_plain = rows.order is None and not (rows.split or rows.packed or rows.unreduced)
    if not is_plain or not access.scalar or dim not in access.window or not isinstance(index.owner, Common):
        return None
    number = site.prover.number(("block", rows.inner, rows.start, access.sizes[dim]), index.number)
    return LaneRows(access.window[dim], split=(Symbol(number, access.full[dim]),))


@rule("scatter", reads=f"{_READS} update_jaxpr", ignores=_IGNORES, accepts={"mode": MODES, "update_consts": ((),)})
def scatter(site: Site, operand: Value, indices: Value, updates: Value) -> list[Value]:
    """Write windows at the indices; an iota written by a permutation gives its inverse.

    `scatter_apply` changes elements by a function, without updates.
    """
    access = of_scatter(site, indices)
    if site.params["update_jaxpr"] is not None:
        return [_write(site, operand, updates, access, replaces=False)]
    result = _write(site, operand, updates, access, replaces=True)
    order = access.columns[0].fact if list(access.columns) == [0] else None
    counts_up = isinstance(updates.fact, Iota) and updates.fact.div == 1 and site.shapes[2] == access.full
    if counts_up and isinstance(order, Permuted) and order.div == 1 and len(access.full) == 1 and access.inside(0):
        inverse = Order(order.order.number, not order.order.inverse)
        return [result.replace(fact=Permuted(inverse), range=updates.range)]
    return [result]


@rule(
    *primitives.COMBINING,
    reads=f"{_READS} unique_indices",
    ignores="update_jaxpr",
    accepts={"mode": MODES, "update_consts": ((),)},
)
def scatter_combined(site: Site, operand: Value, indices: Value, updates: Value) -> list[Value]:
    access = of_scatter(site, indices)
    result = _write(site, operand, updates, access, replaces=False)
    column = access.columns.get(0)
    if site.name != "scatter-add" or access.sizes != (1,) or column is None or site.params["unique_indices"]:
        return [result]
    # an index adds at its own element; past the end it adds nothing
    is_in_place = access.inside(0) or (access.drops and column.range is not None and column.range[0] >= 0)
    adds_ones = operand.range == (0, 0) and updates.range == (1, 1)
    count = math.prod(access.index_shape)
    if is_in_place and adds_ones and isinstance(column.owner, LaneRows) and fits(site.eqn.outvars[0].aval, count):
        key = site.prover.same_counts.get(column.number, column.number)
        return [result.replace(fact=Counts(key, every=access.inside(0)))]
    return [result]


@rule("dynamic_update_slice")
def dynamic_update_slice(site: Site, operand: Value, updates: Value, *starts: Value) -> list[Value]:
    return [_write(site, operand, updates, of_slice(site, starts, site.shapes[1]), replaces=True)]


def _write(site: Site, operand: Value, updates: Value, access: Access, replaces: bool) -> Value:
    check_position(site, operand, access)
    fault = unsorted(site, access)
    if fault is not None:
        return Value(fault)
    if isinstance(operand.owner, PoolRows):
        note_indices(site, access, operand.owner.axis)
        return pool_rows.write(site, operand, updates, access, replaces)
    is_single_write = not access.index_axes and len(access.window) == len(access.full)
    if access.sizes == access.full and replaces and not access.columns and is_single_write:
        return updates
    owner = site.join(operand.owner, _updates_owner(site, operand.owner, updates, access))
    intact = operand.intact
    is_active = not site.prover.stopped and _writes_active_lane(site, operand.owner, access)
    if intact is not None and not access.all_outside() and not is_active:
        intact = intact.after_write(updates.intact, lambda view: access.put(view, -1)) if replaces else None
    bounds = hull(operand.range, updates.range) if replaces else None
    return Value(owner, NONE, bounds, None, intact, site.prover.versions.succeed(operand.version))


def _writes_active_lane(site: Site, owner: Owner, access: Access) -> bool:
    if not isinstance(owner, LaneRows) or owner != LaneRows(owner.axis):
        return False
    index = access.columns.get(owner.axis)
    if index is None or access.sizes[owner.axis] != 1:
        return False
    return index.number in site.prover.active


def _updates_owner(site: Site, operand: Owner, updates: Value, access: Access) -> Owner:
    """Return the updates' owner, in dimensions of the operand."""
    permuted_dim = next((d for d, value in access.columns.items() if isinstance(value.fact, Permuted)), None)
    in_order = None if permuted_dim is None else _owners_by_permutation(site, updates, access, permuted_dim)
    owner, result = in_order or (site.join(updates.owner, access.owners(site)), None)
    if access.reveals_places(owner) or disordered(operand):
        return site.mixed(*refusals.INDEX_REVEALS_ORDER)
    if result is not None:
        return result
    own_tokens = token_tiles.put(site, owner, access) if site.prover.bound.layouts else None
    if own_tokens is not None:
        return own_tokens
    if isinstance(owner, OneLane):
        return _owner_of_one_row(site, operand, owner, access)
    by_lane = packed_tokens.put(site, owner, updates, access) if isinstance(owner, LaneRows) else None
    if by_lane is not None:
        return by_lane
    if not isinstance(owner, LaneRows | PoolRows):
        return owner
    for dim in access.columns if isinstance(owner, LaneRows) and owner.split else ():
        inner, rest = divmod(access.full[dim], site.prover.bound.lanes)
        rows = operand if isinstance(operand, LaneRows) else LaneRows(dim, max(inner, 1))
        if rows.axis == dim and not rest and owner == _block_of_rows(site, rows, access, dim):
            return rows
    for dim, window_axis in (*access.paired.items(), *access.window.items()):
        if window_axis == owner.axis:
            if dim in access.paired or access.whole(dim):
                return moved(owner, dim)
            return site.mixed(*refusals.PART_OF_AN_AXIS(axis=dim))
    for dim, value in access.columns.items():
        if access.sizes[dim] != 1 or not access.inside(dim):
            continue
        if isinstance(value.fact, Iota) and access.index_axes[value.fact.axis] == owner.axis and value.fact.div == 1:
            return moved(owner, dim)
        if isinstance(value.fact, SlotEntry | PageEntry) and not isinstance(owner, PoolRows):
            return site.mixed(*refusals.SLOT_OF_NO_POOL)
    return site.mixed(*refusals.PLACES_BY_DATA)


def _owners_by_permutation(site: Site, updates: Value, access: Access, dim: int) -> tuple[LaneRows, Owner] | None:
    """Return the owners of the updates and of the rows after a write by permutation.

    Args:
        dim: operand dimension with the permutation as index; no other index may depend on all lanes.
    """
    order = access.columns[dim].fact
    assert isinstance(order, Permuted)
    rows = site.join(updates.owner, access.owners(site, without=dim))
    if not isinstance(rows, LaneRows) or rows.axis != access.index_axes[0] or rows.axis in access.paired.values():
        return None
    if access.sizes[dim] != 1 or not access.inside(dim):
        return None
    groups, left_over = divmod(rows.inner, order.div)
    if rows.order != order.order or left_over:
        return None
    return rows, replace(rows, axis=dim, inner=groups, order=None, unreduced=())


def _owner_of_one_row(site: Site, operand: Owner, owner: OneLane, access: Access) -> Owner:
    for dim in access.columns:
        rows = operand if isinstance(operand, LaneRows) else LaneRows(dim)
        if access.sizes[dim] == 1 and packed_tokens.loop_token(site, rows, access, dim) == owner:
            return rows
    if isinstance(operand, LaneRows):
        axis = operand.axis
        if axis in access.columns and access.sizes[axis] == 1 and lane_at(access, axis, operand) == owner:
            return operand
        return owner
    if not isinstance(operand, Common):
        return owner
    for dim, index in access.columns.items():
        lane_rows = LaneRows(dim, split=owner.split, packed=owner.packed)
        lane = lane_at(access, dim, lane_rows) if access.sizes[dim] == 1 else None
        # a constant index is a lane if the axis has one index per lane
        has_lane_count = owner.split or access.full[dim] == site.prover.bound.lanes
        if lane == owner and (isinstance(owner.lane, Symbol) or (index.range is not None and has_lane_count)):
            return lane_rows
    return owner
