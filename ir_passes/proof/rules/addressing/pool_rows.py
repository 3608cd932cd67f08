"""Reads and writes of pools by slot map or page table."""

from dataclasses import replace
from typing import Any

from ir_passes.contract.contract import PageTable, SlotMap
from ir_passes.proof import advice, refusals
from ir_passes.proof.owners import COMMON, Common, LaneRows, Mixed, OneLane, Owner, PoolRows, Symbol, axis_of
from ir_passes.proof.prover import RowAccess
from ir_passes.proof.refusals import RefusalText
from ir_passes.proof.rules.addressing import packed_tokens
from ir_passes.proof.rules.addressing.access import Access, constant_of
from ir_passes.proof.rules.addressing.page_tables import page_fault
from ir_passes.proof.rules.addressing.slot_maps import counts_within, device_fault, map_fault
from ir_passes.proof.site import Site
from ir_passes.proof.uniformity import disordered, reveals_places
from ir_passes.proof.values import Constant, Iota, PageEntry, SlotEntry, Value
from ir_passes.proof.views import View
from ir_passes.proof.violations import ViolationKind


def read(site: Site, operand: Value, access: Access) -> Value:
    pool = operand.owner
    assert isinstance(pool, PoolRows)
    axis = pool.axis
    if access.whole(axis):
        part = replace(pool, axis=access.window[axis], view=access.taken(pool.view, axis))
        version = site.prover.versions.part_of(operand.version)
        intact = operand.intact and operand.intact.seen(lambda view: access.taken(view, axis))
        return Value(site.join(part, access.owners(site)), intact=intact, version=version)
    rows = _row_owner(site, pool, access, write=False)
    if isinstance(rows, Mixed):
        return Value(rows)
    row_key = _row_key(access.columns[axis])
    intact = operand.intact and operand.intact.seen(lambda view: access.taken(view, axis, (("by slot", row_key),)))
    if access.reveals_places(rows, without=axis):
        return Value(site.mixed(*refusals.PLACES_OF_ROWS))
    owner = site.join(rows, access.owners(site, without=axis))
    if pool.split and isinstance(owner, LaneRows | OneLane) and not counts_within(site, access.columns[axis]):
        return Value(replace(owner, unreduced=pool.split))
    return Value(owner, intact=intact)


def write(site: Site, operand: Value, updates: Value, access: Access, replaces: bool) -> Value:
    """Write rows of a pool, replaced or combined; return its next version."""
    pool = operand.owner
    assert isinstance(pool, PoolRows)
    axis = pool.axis
    if access.all_outside():
        return operand.replace(number=0, version=site.prover.versions.succeed(operand.version))
    if access.whole(axis):
        return _write_part(site, operand, updates, access)
    access = access if replaces else _without_padding(site, updates, access, axis)
    if _writes_null_row(site, pool, access):
        return operand.replace(number=0, version=site.prover.versions.succeed(operand.version))
    rows = _row_owner(site, pool, access, write=True)
    if isinstance(rows, Mixed):
        return Value(rows)
    if isinstance(rows, LaneRows | OneLane) and rows.split and not counts_within(site, access.columns[axis]):
        return Value(site.mixed(*refusals.COPIES_OF_A_POOL(along=", ".join(map(str, rows.split)))))
    content = site.join(updates.owner, access.owners(site, without=axis))
    if isinstance(content, Mixed):
        return Value(content)
    if not isinstance(content, Common) and content != rows:
        return Value(site.mixed(*refusals.OTHER_CONTENT(group=pool.group)))
    row_axis = axis_of(rows) if disordered(rows) else None
    is_revealed = row_axis is not None and reveals_places(updates, site.shapes[-1], row_axis)
    if is_revealed or access.reveals_places(rows, without=axis):
        return Value(site.mixed(*refusals.PLACES_OF_ROWS))
    index = access.columns[axis].fact
    assert isinstance(index, SlotEntry | PageEntry)
    intact = operand.intact
    lane = rows.lane if isinstance(rows, OneLane) and not rows.split else None
    is_active = isinstance(lane, Symbol) and lane.number in site.prover.active
    # an active lane writes its own row, which is no row of an idle lane
    if intact is not None and (site.prover.stopped or not is_active):
        restored = intact.after_write(updates.intact, lambda view: _view_after_row_write(view, access, axis))
        intact = restored if replaces else None
    successor = replace(pool, writers=pool.writers | {index.leaf})
    return Value(successor, intact=intact, version=site.prover.versions.succeed(operand.version))


def _without_padding(site: Site, updates: Value, access: Access, axis: int) -> Access:
    """Return the access without padding, if padding adds shared elements."""
    index = access.columns.get(axis, Value())
    is_shared = isinstance(updates.owner, LaneRows) and packed_tokens.pads_with_shared(site, updates, updates.owner)
    if not isinstance(index.fact, SlotEntry) or not is_shared or access.owners(site, without=axis) != COMMON:
        return access
    fact = replace(index.fact, alternatives=index.fact.alternatives - {"last"})
    return replace(access, columns={**access.columns, axis: index.replace(fact=fact)})


def _writes_null_row(site: Site, pool: PoolRows, access: Access) -> bool:
    if not site.prover.idle or constant_of(access.columns.get(pool.axis, Value())) != 0:
        return False
    entries = [bound_input.entry for bound_input in site.prover.bound.inputs]
    pool_entries = [entry for entry in entries if isinstance(entry, SlotMap | PageTable) and pool.group in entry.names]
    # every lane may read the null page, and no lane may write it
    return all(isinstance(entry, SlotMap) and entry.null for entry in pool_entries)


def _row_key(index: Value) -> tuple:
    """Return a key of the rows that an index selects.

    A lane has one entry in a slot map, so its fact identifies the rows. Elements within rows, and pages, also need the
    index.
    """
    fact = index.fact
    has_several_rows = isinstance(fact, PageEntry) or (isinstance(fact, SlotEntry) and fact.stride != 1)
    return (fact, index.number) if has_several_rows else (fact,)


def _view_after_row_write(view: View, access: Access, axis: int) -> View | None:
    """Return the view after rows are written back by their slot map.

    The read may lack the guard of the write. Elements within rows, and pages, need the same index for both.
    """
    index = access.columns[axis]
    forms = [_row_key(index)]
    if isinstance(index.fact, SlotEntry) and index.fact.stride == 1:
        forms.append((replace(index.fact, guard=None, alternatives=frozenset()),))
    views = (access.put(view, axis, (("by slot", by),)) for by in forms)
    return next((pool_view for pool_view in views if pool_view is not None), None)


def _write_part(site: Site, operand: Value, updates: Value, access: Access) -> Value:
    pool, part = operand.owner, updates.owner
    assert isinstance(pool, PoolRows)
    if not isinstance(part, PoolRows) or access.put(part.view, pool.axis) != pool.view or part.leaf != pool.leaf:
        if isinstance(part, Mixed):
            return Value(part)
        return Value(site.mixed(*refusals.EVERY_ROW(group=pool.group)))
    intact = operand.intact
    if intact is not None:
        intact = intact.after_write(updates.intact, lambda view: access.put(view, pool.axis))
    owner = replace(pool, unframed=pool.unframed or part.unframed, writers=pool.writers | part.writers)
    return Value(owner, intact=intact, version=site.prover.versions.succeed(operand.version))


def _row_owner(site: Site, pool: PoolRows, access: Access, write: bool) -> Owner:
    """Return the rows' owner, in dimensions of the window array."""
    index = access.columns.get(pool.axis)
    if index is None or access.sizes[pool.axis] != 1:
        return row_fault(site, refusals.SEVERAL_ROWS, pool, index or Value(), access.full, write)
    fault = _index_fault(site, pool, index, access, write)
    if fault is not None:
        return row_fault(site, fault, pool, index, access.full, write)
    owner = access.index_owner(pool.axis)
    record(site, pool, index, owner, access.window_shape, write)
    return owner


def _index_fault(site: Site, pool: PoolRows, index: Value, access: Access, write: bool) -> RefusalText | None:
    fact, owner = index.fact, access.index_owner(pool.axis)
    if constant_of(index) is not None or isinstance(fact, Constant | Iota):
        return refusals.CONSTANT_ROW
    if isinstance(fact, PageEntry):
        return page_fault(site, pool, fact, getattr(owner, "split", ()), access.full, access.drops, write)
    entries = [bound_input.entry for bound_input in site.prover.bound.inputs]
    if any(isinstance(entry, PageTable) and pool.group in entry.names for entry in entries):
        return refusals.NO_PAGE
    if not isinstance(fact, SlotEntry) or pool.inner != fact.stride:
        return refusals.NO_SLOT if pool.inner == 1 else refusals.NO_MERGED_SLOT
    fault = map_fault(site, pool, fact, access.full, access.drops, write)
    return fault or device_fault(site, pool, fact, owner, access)


def row_fault(site: Site, text: RefusalText, pool: PoolRows, index: Value, full: tuple[int, ...], write: bool) -> Mixed:
    """Refuse an access; one index into several pools gives one fault."""
    text = advice.of_rows(site, text, pool, index, full, write)
    violation = replace(site.violation(*text), fault=index.number or None)
    if text.kind in (ViolationKind.BOUNDS, ViolationKind.CONSTANT):
        site.prover.violations.append(violation)
    return Mixed(violation)


def record(site: Site, pool: PoolRows, index: Value, owner: Owner, shape: tuple[int, ...], write: bool) -> None:
    """Record the rows of an access, for comparison within the pool's group.

    The window array has one row for each entry of `index` along the axis of their owner.
    """
    if isinstance(owner, LaneRows):
        lanes = -(-shape[owner.axis] // owner.inner)
        lane, lanes_of_rows = None, (owner.start, lanes, owner.order, owner.packed)
    else:
        lane = owner if isinstance(owner, OneLane) else None
        lanes_of_rows = lane and site.prover.scanned.get(lane.lane, (lane.lane, lane.packed))
    fact: Any = index.fact
    # a lane has one row in a slot map, and several pages
    rows = replace(fact, offset=None, stride=1, spare=0) if isinstance(fact, SlotEntry) else (fact, index.number)
    site.prover.accesses.append(RowAccess(pool.leaf, write, (rows, lanes_of_rows), lane, site))
