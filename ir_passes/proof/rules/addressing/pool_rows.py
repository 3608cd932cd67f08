"""Reads and writes of pools by slot."""

from dataclasses import replace

from ir_passes.contract.contract import PageTable, SlotMap
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, PoolRows
from ir_passes.proof.prover import RowAccess
from ir_passes.proof.rules.addressing.access import Access, constant_of
from ir_passes.proof.rules.addressing.page_tables import no_entry, page_fault
from ir_passes.proof.rules.addressing.slot_maps import counts_within, device_fault, map_fault
from ir_passes.proof.site import Site
from ir_passes.proof.uniformity import REMEDY, reveals_places
from ir_passes.proof.values import Constant, Iota, PageEntry, SlotEntry, UnchangedRows, Value
from ir_passes.proof.views import View, entered, left
from ir_passes.proof.violations import ViolationKind

_PLACES = "rows of a pool are used with what depends on their place in an order that depends on all lanes"
_BY_SLOT = (
    "index rows with the lane's entry in the slot map as it is, or with where(active, slots, size) and mode='drop' "
    "(mode='fill' for reads)"
)


def read(site: Site, operand: Value, access: Access) -> Value:
    """Read rows of a pool."""
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
    found = _row_owner(site, pool, access, write=False)
    if isinstance(found, Mixed):
        return Value(found)
    intact = None
    if operand.intact is not None:
        by = _places(access.columns[axis])
        intact = UnchangedRows(operand.intact.leaf, entered(access.taken(operand.intact.view, axis), ("by slot", by)))
    if access.reveals_places(found, without=axis):
        return Value(site.mixed(_PLACES, REMEDY))
    owner = site.join(found, access.owners(site, without=axis))
    if pool.split and isinstance(owner, LaneRows | OneLane) and not counts_within(site, access.columns[axis]):
        return Value(replace(owner, unreduced=pool.split))
    return Value(owner, intact=intact)


def write(site: Site, operand: Value, updates: Value, access: Access, replaces: bool) -> Value:
    """Write rows of a pool; return its next version.

    Args:
        replaces: whether the updates take the place of what was there; otherwise they are combined with it.
    """
    pool = operand.owner
    assert isinstance(pool, PoolRows)
    axis = pool.axis
    if access.all_outside():
        return operand.replace(number=0, version=site.prover.versions.succeed(operand.version))
    if access.whole(axis):
        return _put_back(site, operand, updates, access)
    if _to_null_row(site, pool, access):
        return operand.replace(number=0, version=site.prover.versions.succeed(operand.version))
    found = _row_owner(site, pool, access, write=True)
    if isinstance(found, Mixed):
        return Value(found)
    if isinstance(found, LaneRows | OneLane) and found.split and not counts_within(site, access.columns[axis]):
        along = ", ".join(map(str, found.split))
        message = f"each device along {along} writes the rows of its own lanes to its own copy of a pool"
        remedy = "split lanes with a row pool, or write the pool outside of the shard_map"
        return Value(site.mixed(message, remedy, ViolationKind.COLLECTIVE))
    content = site.join(updates.owner, access.owners(site, without=axis))
    if isinstance(content, Mixed):
        return Value(content)
    if not isinstance(content, Common) and content != found:
        message = f"rows of pool {pool.group!r} are written with values of other lanes than the rows' owners"
        return Value(site.mixed(message, "write to each row what its own lane computed", ViolationKind.WRONG_ROW))
    at = found.axis if isinstance(found, LaneRows) and found.order is not None else None
    if access.reveals_places(found, without=axis) or (at is not None and reveals_places(updates, site.shapes[-1], at)):
        return Value(site.mixed(_PLACES, REMEDY))
    index = access.columns[axis].fact
    assert isinstance(index, SlotEntry | PageEntry)
    intact = operand.intact
    if intact is not None:
        intact = intact.after_write(updates.intact, lambda view: _put_by_slot(view, access, axis)) if replaces else None
    later = replace(pool, writers=pool.writers | {index.leaf})
    return Value(later, intact=intact, version=site.prover.versions.succeed(operand.version))


def _to_null_row(site: Site, pool: PoolRows, access: Access) -> bool:
    """Whether an idle lane writes to the null row, and so not to its own."""
    if not site.prover.idle or constant_of(access.columns.get(pool.axis, Value())) != 0:
        return False
    entries = [one.entry for one in site.prover.bound.inputs]
    mine = [entry for entry in entries if isinstance(entry, SlotMap | PageTable) and pool.group in entry.names]
    # the null page is read by every lane, and written by none
    return all(isinstance(entry, SlotMap) and entry.null for entry in mine)


def _places(index: Value) -> tuple:
    """The places that an index names, for comparing them: a lane has one entry in a slot map, and several within it.

    A lane has several pages, too.
    """
    fact = index.fact
    several = isinstance(fact, PageEntry) or (isinstance(fact, SlotEntry) and fact.stride != 1)
    return (fact, index.number) if several else (fact,)


def _put_by_slot(view: View, access: Access, axis: int) -> View | None:
    """Return the view after rows are written back by the slot map that they were read by, guarded then or only now.

    Places within rows, and pages, are put back by the very index that they were read by.
    """
    index = access.columns[axis]
    forms = [_places(index)]
    if isinstance(index.fact, SlotEntry) and index.fact.stride == 1:
        forms.append((replace(index.fact, guard=None, alternatives=frozenset()),))
    for by in forms:
        rows = left(view, ("by slot", by))
        if rows is not None:
            return access.put(rows, axis)
    return None


def _put_back(site: Site, operand: Value, updates: Value, access: Access) -> Value:
    """Write a part of every row back where it was taken."""
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
    """Return the owner of the rows, in dimensions of the window array."""
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
        # the index of several pools is one fault
        violation = replace(site.violation(ViolationKind.CONSTANT, message, remedy), fault=index.number)
        site.prover.violations.append(violation)
        return Mixed(violation)
    tables = [one.entry for one in site.prover.bound.inputs if isinstance(one.entry, PageTable)]
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
        # the index that a lane reads by and writes by is one fault
        return Mixed(replace(owner.cause, fault=index.number))
    fault = map_fault(site, pool, index.fact, access.full, access.drops, write)
    owner = access.index_owner(axis)
    fault = fault or device_fault(site, pool, index.fact, owner, access)
    if fault is not None:
        return Mixed(replace(fault.cause, fault=index.number))
    record(site, pool, index, owner, access.window_shape, write)
    return owner


def record(site: Site, pool: PoolRows, index: Value, owner: Owner, shape: tuple[int, ...], write: bool) -> None:
    """Note which rows of a pool are read or written, to be compared with those of its group.

    Args:
        index: by which the rows are picked.
        owner: of the entries.
        shape: of what is read or written; along the owner's axis one row for each entry.
    """
    if isinstance(owner, LaneRows):
        lanes = -(-shape[owner.axis] // owner.inner)
        lane, whose = None, (owner.start, lanes, owner.order, owner.packed)
    else:
        lane, whose = (owner, (owner.lane, owner.packed)) if isinstance(owner, OneLane) else (None, None)
    fact = index.fact
    rows = replace(fact, offset=None, stride=1, spare=0) if isinstance(fact, SlotEntry) else (fact, index.number)
    site.prover.accesses.append(RowAccess(pool.leaf, write, (rows, whose), lane, site))
