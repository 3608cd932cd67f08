"""Checks that a slot map selects the promised rows, on every device."""

import math

from ir_passes.contract.contract import BoundContract, PageTable, SlotMap
from ir_passes.proof import refusals
from ir_passes.proof.owners import LaneRows, OneLane, Owner, PoolRows
from ir_passes.proof.refusals import RefusalText
from ir_passes.proof.rules.addressing.access import Access
from ir_passes.proof.site import Site
from ir_passes.proof.values import DeviceOffset, PageEntry, SlotEntry, Value


def entry_fault(site: Site, pool: PoolRows, fact: SlotEntry | PageEntry, write: bool) -> RefusalText | None:
    """Return the fault of an access in its group, its role or its padding."""
    entry = site.prover.bound.inputs[fact.leaf].entry
    assert isinstance(entry, SlotMap | PageTable)
    if pool.group not in entry.names:
        return refusals.OTHER_GROUP
    if entry.role == ("read" if write else "write"):
        return refusals.OTHER_ROLE
    return refusals.PADDING_WRITES if "last" in fact.alternatives and write else None


def map_fault(
    site: Site, pool: PoolRows, fact: SlotEntry, shape: tuple[int, ...], drops: bool, write: bool
) -> RefusalText | None:
    """Return the fault of an access by slot map; `shape` is of one device."""
    inputs, devices, split = site.prover.bound.inputs, site.prover.devices, pool.split
    entry, fault = inputs[fact.leaf].entry, entry_fault(site, pool, fact, write)
    assert isinstance(entry, SlotMap)
    if fault is not None:
        return fault
    if entry.local is not None and split != ((entry.local,) if devices.get(entry.local, 0) > 1 else ()):
        return refusals.MAP_OF_A_DEVICE
    if entry.local is not None and entry.local not in devices:
        return refusals.MAP_WITHOUT_DEVICE
    writers = [inputs[leaf].entry for leaf in pool.writers - {fact.leaf}]
    if not all(entry.disjoint or getattr(writer, "disjoint", False) for writer in writers):
        return refusals.TWO_WRITERS
    rows = shape[pool.axis] // pool.inner * (1 if entry.local else site.prover.devices_along(split))
    if rows < entry.size:
        return refusals.FEW_ROWS
    if "past" in fact.alternatives and rows > entry.size:
        return refusals.PAST_THE_MAP
    if "null" in fact.alternatives and not write:
        return refusals.NULL_ROW_READ
    if not write and not fact.non_null and is_optional_map(site.prover.bound, fact.leaf, pool.group):
        return refusals.NO_ROW_READ
    return refusals.CLAMPED if fact.alternatives - {"null", "last"} and not drops else None


def is_optional_map(bound: BoundContract, leaf: int, group: str) -> bool:
    """True for a slot map of optional second rows.

    An active lane without a second row has the null row.
    """
    entry, entries = bound.inputs[leaf].entry, [bound_input.entry for bound_input in bound.inputs]
    maps = [other for other in entries if isinstance(other, SlotMap) and group in other.names]
    return isinstance(entry, SlotMap) and entry.disjoint and entry.null and len(maps) > 1


def counts_within(site: Site, index: Value) -> bool:
    leaf = index.fact.leaf if isinstance(index.fact, SlotEntry | PageEntry) else None
    return leaf is not None and getattr(site.prover.bound.inputs[leaf].entry, "local", None) is not None


def device_fault(site: Site, pool: PoolRows, fact: SlotEntry, owner: Owner, access: Access) -> RefusalText | None:
    """Return the fault of row numbers of a split pool.

    Each device must subtract the number of rows on previous devices from global row numbers. Local row numbers are used
    unchanged, by the lanes of the device.
    """
    entry = site.prover.bound.inputs[fact.leaf].entry
    assert isinstance(entry, SlotMap)
    if entry.local is not None and isinstance(owner, LaneRows | OneLane):
        is_unchanged = fact.offset is None and owner.split == pool.split
        return None if is_unchanged else refusals.OTHER_DEVICE
    if not pool.split:
        return None if fact.offset is None else refusals.SHIFTED_WHOLE_POOL
    if len(pool.split) != 1 or fact.offset != DeviceOffset(pool.split[0], access.full[pool.axis]):
        return refusals.OTHER_SHIFT
    if not access.drops:
        return refusals.CLAMPED_TO_DEVICE
    filler = site.params.get("fill_value")
    is_zero = filler is not None and filler == 0 and math.copysign(1, filler) > 0
    return refusals.FILLED_ON_DEVICE if site.name == "gather" and not is_zero else None
