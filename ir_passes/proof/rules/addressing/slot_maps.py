"""Checks that a slot map selects the promised rows, on every device."""

import math

from ir_passes.contract.contract import BoundContract, PageTable, SlotMap
from ir_passes.proof.owners import LaneRows, Mixed, OneLane, Owner, PoolRows
from ir_passes.proof.rules.addressing.access import Access
from ir_passes.proof.site import Site
from ir_passes.proof.values import DeviceOffset, PageEntry, SlotEntry, Value
from ir_passes.proof.violations import ViolationKind


def entry_fault(site: Site, pool: PoolRows, fact: SlotEntry | PageEntry, write: bool) -> Mixed | None:
    """Return the fault of an access in its group, its role or its padding."""
    path, bound_input = site.prover.bound.inputs[pool.leaf].path, site.prover.bound.inputs[fact.leaf]
    entry, rows = bound_input.entry, bound_input.path
    assert isinstance(entry, SlotMap | PageTable)
    kind = "slot map" if isinstance(entry, SlotMap) else "page table"
    if pool.group not in entry.names:
        message = f"rows of {path} are picked by {rows}, which is the {kind} of {', '.join(entry.names)}"
        return site.mixed(message, f"use the {kind} of group {pool.group!r}", ViolationKind.WRONG_ROW)
    if entry.role == ("read" if write else "write"):
        message = f"{path} is {'written' if write else 'read'} by {rows}, which is declared for the opposite"
        return site.mixed(message, f"use the {kind} with the other role, or role='both'", ViolationKind.WRONG_ROW)
    if "last" in fact.alternatives and write:
        remedy = (
            f"send padding past the end: where(segment < lanes, row, size) with mode='drop', or read the {kind} by "
            ".at[segment].get(mode='fill', fill_value=size)"
        )
        return site.mixed(f"a padding token writes to a lane's row in {path}", remedy, ViolationKind.WRONG_ROW)
    return None


def map_fault(
    site: Site, pool: PoolRows, fact: SlotEntry, shape: tuple[int, ...], drops: bool, write: bool
) -> Mixed | None:
    """Return the fault of a pool access by slot map.

    Args:
        shape: of the pool on one device.
        drops: a row past the end of the pool is skipped.
    """
    path = site.prover.bound.inputs[pool.leaf].path
    rows = shape[pool.axis] // pool.inner * site.prover.devices_along(pool.split)
    slots, entry = site.prover.bound.inputs[fact.leaf].path, site.prover.bound.inputs[fact.leaf].entry
    assert isinstance(entry, SlotMap)
    fault = entry_fault(site, pool, fact, write)
    if fault is not None:
        return fault
    local, split = _local(site, fact), pool.split
    if local is not None and split != ((local,) if site.prover.devices.get(local, 0) > 1 else ()):
        message = f"{slots} counts rows within a device along {local!r}, and {path} is not split over it here"
        remedy = f"use it inside of a shard_map that splits the lanes and the rows of the pool over {local!r}"
        return site.mixed(message, remedy, ViolationKind.WRONG_ROW)
    if local is not None:
        rows = shape[pool.axis] // pool.inner
        if local not in site.prover.devices:
            message = f"{slots} counts rows within a device along {local!r}, and this is no program of one device"
            return site.mixed(message, f"use it inside of a shard_map over {local!r}", ViolationKind.WRONG_ROW)
    writers = [site.prover.bound.inputs[leaf] for leaf in sorted(pool.writers - {fact.leaf})]
    shared = [writer.path for writer in writers if not (entry.disjoint or getattr(writer.entry, "disjoint", False))]
    if shared:
        message = f"{path} is {'written' if write else 'read'} by {slots} after rows of it were written by {shared[0]}"
        remedy = (
            "read all rows before any is written, and write by one slot map, or declare SlotMap(..., disjoint=True)"
        )
        return site.mixed(message, remedy)
    if rows < entry.size:
        message = f"{slots} holds rows in [0, {entry.size}), {path} has {rows}"
        site.report(ViolationKind.BOUNDS, message, "give the pool as many rows as the slot map has slots")
    if "past" in fact.alternatives and rows > entry.size:
        message = f"rows of {path} are picked by {slots} or by a row past its last one, {entry.size - 1}"
        remedy = f"declare the slot map with size={rows}, as many as the pool has rows, and guard with that row"
        return site.mixed(f"{message}, which may be one that no lane owns", remedy, ViolationKind.WRONG_ROW)
    if "null" in fact.alternatives and not write:
        message = f"a lane that is switched off reads the null row of {path}, which any lane may have written"
        remedy = "read by the slot map itself, or by where(active, slots, size) with mode='fill'"
        return site.mixed(message, remedy, ViolationKind.WRONG_ROW)
    if not write and not fact.non_null and is_optional_map(site.prover.bound, fact.leaf, pool.group):
        message = f"a lane that has no row in {slots} reads the null row of {path}, which any lane may have written"
        remedy = f"read by where({slots} > 0, {slots}, {entry.size}) with mode='fill', or declare it with role='write'"
        return site.mixed(message, remedy, ViolationKind.WRONG_ROW)
    if fact.alternatives - {"null", "last"} and not drops:
        message = f"a row of {path} that may lie outside of it is clamped to its first or last row"
        site.report(ViolationKind.BOUNDS, message, "use mode='drop' for writes, mode='fill' for reads")
    return None


def is_optional_map(bound: BoundContract, leaf: int, group: str) -> bool:
    """True for a slot map of optional second rows.

    An active lane without a second row has the null row.
    """
    entry = bound.inputs[leaf].entry
    maps = [
        bound_input.entry
        for bound_input in bound.inputs
        if isinstance(bound_input.entry, SlotMap) and group in bound_input.entry.names
    ]
    return isinstance(entry, SlotMap) and entry.disjoint and entry.null and len(maps) > 1


def _local(site: Site, fact: SlotEntry) -> str | None:
    entry = site.prover.bound.inputs[fact.leaf].entry
    assert isinstance(entry, SlotMap)
    return entry.local


def counts_within(site: Site, index: Value) -> bool:
    fact = index.fact
    if not isinstance(fact, SlotEntry | PageEntry):
        return False
    return getattr(site.prover.bound.inputs[fact.leaf].entry, "local", None) is not None


def device_fault(site: Site, pool: PoolRows, fact: SlotEntry, owner: Owner, access: Access) -> Mixed | None:
    """Return the fault of row numbers of a split pool.

    Each device must subtract the number of rows on previous devices from global row numbers. Local row numbers are used
    unchanged, by the lanes of the device.
    """
    local, slots = _local(site, fact), site.prover.bound.inputs[fact.leaf].path
    if local is not None and isinstance(owner, LaneRows | OneLane):
        if fact.offset is None and owner.split == pool.split:
            return None
        message = (
            f"{slots} counts rows within a device along {local!r}, and is not used as it is by that device's lanes"
        )
        remedy = f"split {slots} over {local!r} like the pool, and index by its entries as they are"
        return site.mixed(message, remedy, ViolationKind.WRONG_ROW)
    path, rows = site.prover.bound.inputs[pool.leaf].path, access.full[pool.axis]
    shift = None if fact.offset is None else f"{fact.offset.rows} * axis_index({fact.offset.over!r})"
    if not pool.split:
        if shift is None:
            return None
        message = f"{path} has all its rows on every device, and is indexed by {slots} less {shift}"
        return site.mixed(message, "index it by the entries as they are", ViolationKind.WRONG_ROW)
    along = ", ".join(pool.split)
    if len(pool.split) != 1 or fact.offset != DeviceOffset(pool.split[0], rows):
        message = (
            f"a device along {along} has {rows} rows of {path}, and indexes them by {slots} less {shift or 'nothing'}"
        )
        remedy = f"subtract the rows of the devices before it: {slots} - {rows} * axis_index({along!r})"
        return site.mixed(message, remedy, ViolationKind.WRONG_ROW)
    if not access.drops:
        message = f"a row of {path} that another device along {along} has is clamped to one of this device"
        return site.mixed(message, "use mode='drop' for writes, mode='fill' for reads", ViolationKind.BOUNDS)
    filler = site.params.get("fill_value")
    if site.name == "gather" and (filler is None or filler != 0 or math.copysign(1, filler) < 0):
        message = (
            f"a row of {path} that another device along {along} has is read as {'nan' if filler is None else filler}"
        )
        return site.mixed(message, f"use fill_value=0, and sum over {along}", ViolationKind.COLLECTIVE)
    return None
