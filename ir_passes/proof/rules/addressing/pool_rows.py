"""Reads and writes of pools by slot map or page table."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from ir_passes.contract.contract import PageTable, SlotMap
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, PoolRows, Symbol
from ir_passes.proof.prover import RowAccess
from ir_passes.proof.rules.addressing.access import Access, constant_of
from ir_passes.proof.rules.addressing.page_tables import no_entry, page_fault
from ir_passes.proof.rules.addressing.slot_maps import counts_within, device_fault, map_fault
from ir_passes.proof.site import Site
from ir_passes.proof.uniformity import REMEDY, reveals_places
from ir_passes.proof.values import Constant, Iota, PageEntry, SlotEntry, UnchangedRows, Value
from ir_passes.proof.views import View
from ir_passes.proof.violations import ViolationKind

_PLACES = "rows of a pool are used with what depends on their place in an order that depends on all lanes"
_BY_SLOT = (
    "index rows with the lane's entry in the slot map as it is, or with where(active, slots, size) and mode='drop' "
    "(mode='fill' for reads)"
)


def read(site: Site, operand: Value, access: Access) -> Value:
    pool = operand.owner
    assert isinstance(pool, PoolRows)
    axis = pool.axis
    if access.whole(axis):
        part = replace(pool, axis=access.window[axis], view=access.taken(pool.view, axis))
        intact = (
            None
            if operand.intact is None
            else UnchangedRows(operand.intact.leaf, access.taken(operand.intact.view, axis))
        )
        version = site.prover.versions.part_of(operand.version)
        return Value(site.join(part, access.owners(site)), intact=intact, version=version)
    rows = _row_owner(site, pool, access, write=False)
    if isinstance(rows, Mixed):
        return Value(rows)
    intact = None
    if operand.intact is not None:
        row_key = _row_key(access.columns[axis])
        intact = UnchangedRows(operand.intact.leaf, access.taken(operand.intact.view, axis, (("by slot", row_key),)))
    if access.reveals_places(rows, without=axis):
        return Value(site.mixed(_PLACES, REMEDY))
    owner = site.join(rows, access.owners(site, without=axis))
    if pool.split and isinstance(owner, LaneRows | OneLane) and not counts_within(site, access.columns[axis]):
        return Value(replace(owner, unreduced=pool.split))
    return Value(owner, intact=intact)


def write(site: Site, operand: Value, updates: Value, access: Access, replaces: bool) -> Value:
    """Write rows of a pool; return its next version.

    Args:
        replaces: False if updates are combined with the rows.
    """
    pool = operand.owner
    assert isinstance(pool, PoolRows)
    axis = pool.axis
    if access.all_outside():
        return operand.replace(number=0, version=site.prover.versions.succeed(operand.version))
    if access.whole(axis):
        return _write_part(site, operand, updates, access)
    if _writes_null_row(site, pool, access):
        return operand.replace(number=0, version=site.prover.versions.succeed(operand.version))
    rows = _row_owner(site, pool, access, write=True)
    if isinstance(rows, Mixed):
        return Value(rows)
    if isinstance(rows, LaneRows | OneLane) and rows.split and not counts_within(site, access.columns[axis]):
        along = ", ".join(map(str, rows.split))
        message = f"each device along {along} writes the rows of its own lanes to its own copy of a pool"
        remedy = "split lanes with a row pool, or write the pool outside of the shard_map"
        return Value(site.mixed(message, remedy, ViolationKind.COLLECTIVE))
    content = site.join(updates.owner, access.owners(site, without=axis))
    if isinstance(content, Mixed):
        return Value(content)
    if not isinstance(content, Common) and content != rows:
        message = f"rows of pool {pool.group!r} are written with values of other lanes than the rows' owners"
        return Value(site.mixed(message, "write to each row what its own lane computed", ViolationKind.WRONG_ROW))
    row_axis = rows.axis if isinstance(rows, LaneRows) and rows.order is not None else None
    if access.reveals_places(rows, without=axis) or (
        row_axis is not None and reveals_places(updates, site.shapes[-1], row_axis)
    ):
        return Value(site.mixed(_PLACES, REMEDY))
    index = access.columns[axis].fact
    assert isinstance(index, SlotEntry | PageEntry)
    intact = operand.intact
    is_active = (
        isinstance(rows, OneLane)
        and not rows.split
        and isinstance(rows.lane, Symbol)
        and rows.lane.number in site.prover.active
    )
    # an active lane writes its own row, which is no row of an idle lane
    if intact is not None and (site.prover.stopped or not is_active):
        intact = (
            intact.after_write(updates.intact, lambda view: _view_after_row_write(view, access, axis))
            if replaces
            else None
        )
    successor = replace(pool, writers=pool.writers | {index.leaf})
    return Value(successor, intact=intact, version=site.prover.versions.succeed(operand.version))


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
        message = f"every row of pool {pool.group!r} is written, those that no lane owns too"
        remedy = "write rows by the slot map, or put a changed part back where it was taken"
        return Value(site.mixed(message, remedy, ViolationKind.FRAME))
    intact = operand.intact
    if intact is not None:
        intact = intact.after_write(updates.intact, lambda view: access.put(view, pool.axis))
    owner = replace(pool, unframed=pool.unframed or part.unframed, writers=pool.writers | part.writers)
    return Value(owner, intact=intact, version=site.prover.versions.succeed(operand.version))


def _row_owner(site: Site, pool: PoolRows, access: Access, write: bool) -> Owner:
    """Return the rows' owner, in dimensions of the window array."""
    axis = pool.axis
    path = site.prover.bound.inputs[pool.leaf].path
    index = access.columns.get(axis)
    if index is None or access.sizes[axis] != 1:
        message = f"several rows of {path} are taken together, whoever owns them"
        return site.mixed(message, _BY_SLOT, ViolationKind.WRONG_ROW)
    constant = constant_of(index)
    if constant is not None or isinstance(index.fact, Constant | Iota):
        message = f"rows of {path} are picked by a constant of the program" + (
            "" if constant is None else f", {constant}"
        )
        remedy = "make the row an operand: an entry of a slot map"
        # one index into several pools gives one fault
        violation = replace(site.violation(ViolationKind.CONSTANT, message, remedy), fault=index.number)
        site.prover.violations.append(violation)
        return Mixed(violation)
    tables = [bound_input.entry for bound_input in site.prover.bound.inputs if isinstance(bound_input.entry, PageTable)]
    if isinstance(index.fact, PageEntry):
        split = getattr(access.index_owner(axis), "split", ())
        fault = page_fault(site, pool, index.fact, split, access.full, access.drops, write)
        if fault is not None:
            return Mixed(replace(fault.cause, fault=index.number))
        record(site, pool, index, access.index_owner(axis), access.window_shape, write)
        return access.index_owner(axis)
    if any(pool.group in table.names for table in tables):
        return Mixed(replace(no_entry(site, path).cause, fault=index.number))
    if not isinstance(index.fact, SlotEntry) or pool.inner != index.fact.stride:
        message, remedy = (
            f"rows of {path} are picked by an index that is not the lane's entry in its slot map",
            _BY_SLOT,
        )
        if pool.inner > 1:
            remedy = f"index by slots * {pool.inner} + offset, with offsets below {pool.inner}, or do not merge axes"
        owner = site.mixed(message, remedy, ViolationKind.WRONG_ROW)
        # one index for reads and writes gives one fault
        return Mixed(replace(owner.cause, fault=index.number))
    fault = map_fault(site, pool, index.fact, access.full, access.drops, write)
    owner = access.index_owner(axis)
    fault = fault or device_fault(site, pool, index.fact, owner, access)
    if fault is not None:
        return Mixed(replace(fault.cause, fault=index.number))
    record(site, pool, index, owner, access.window_shape, write)
    return owner


def record(site: Site, pool: PoolRows, index: Value, owner: Owner, shape: tuple[int, ...], write: bool) -> None:
    """Record the rows of an access, for comparison within the pool's group.

    Args:
        owner: of the entries of `index`.
        shape: of the window array; along the owner's axis one row for each entry.
    """
    if isinstance(owner, LaneRows):
        lanes = -(-shape[owner.axis] // owner.inner)
        lane, lanes_of_rows = None, (owner.start, lanes, owner.order, owner.packed)
    else:
        lane, lanes_of_rows = (owner, _lanes_of_loop(site, owner)) if isinstance(owner, OneLane) else (None, None)
    fact: Any = index.fact
    rows = replace(fact, offset=None, stride=1, spare=0) if isinstance(fact, SlotEntry) else replace(fact, spare=0)
    site.prover.accesses.append(RowAccess(pool.leaf, write, (rows, lanes_of_rows), lane, site))


def _lanes_of_loop(site: Site, owner: OneLane) -> Hashable:
    """Return the key of all lanes visited by a scan, else of the lane.

    An iteration that may skip its access, in a branch or an inner loop, stands for its lane alone.
    """
    depth, key = site.prover.scanned.get(owner.lane, (0, None))
    skips = any(eqn.primitive.name in ("cond", "while") for eqn in site.prover.callers[depth:])
    return (owner.lane, owner.packed) if key is None or skips else key
