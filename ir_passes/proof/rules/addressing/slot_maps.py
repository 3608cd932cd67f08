"""Checks that a slot map selects the promised rows, on every device."""

import math

from ir_passes.contract.contract import BoundContract, PageTable, SlotMap
from ir_passes.proof import refusals
from ir_passes.proof.owners import LaneRows, Mixed, OneLane, Owner, PoolRows
from ir_passes.proof.rules.addressing.access import Access
from ir_passes.proof.site import Site
from ir_passes.proof.values import DeviceOffset, PageEntry, SlotEntry, Value


def entry_fault(site: Site, pool: PoolRows, fact: SlotEntry | PageEntry, write: bool) -> Mixed | None:
    """Return the fault of an access in its group, its role or its padding."""
    path, bound_input = site.prover.bound.inputs[pool.leaf].path, site.prover.bound.inputs[fact.leaf]
    entry = bound_input.entry
    assert isinstance(entry, SlotMap | PageTable)
    details = {
        "path": path,
        "rows": bound_input.path,
        "map": "slot map" if isinstance(entry, SlotMap) else "page table",
    }
    if pool.group not in entry.names:
        return site.mixed(*refusals.OTHER_GROUP(groups=", ".join(entry.names), group=pool.group, **details))
    if entry.role == ("read" if write else "write"):
        return site.mixed(*refusals.OTHER_ROLE(used="written" if write else "read", **details))
    return site.mixed(*refusals.PADDING_WRITES(**details)) if "last" in fact.alternatives and write else None


def map_fault(
    site: Site, pool: PoolRows, fact: SlotEntry, shape: tuple[int, ...], drops: bool, write: bool
) -> Mixed | None:
    """Return the fault of an access by slot map; `shape` is of one device."""
    path, inputs = site.prover.bound.inputs[pool.leaf].path, site.prover.bound.inputs
    rows = shape[pool.axis] // pool.inner * site.prover.devices_along(pool.split)
    entry = inputs[fact.leaf].entry
    assert isinstance(entry, SlotMap)
    fault = entry_fault(site, pool, fact, write)
    if fault is not None:
        return fault
    local, split = entry.local, pool.split
    details = {"path": path, "slots": inputs[fact.leaf].path, "size": entry.size, "local": local}
    if local is not None and split != ((local,) if site.prover.devices.get(local, 0) > 1 else ()):
        return site.mixed(*refusals.MAP_OF_A_DEVICE(**details))
    if local is not None:
        rows = shape[pool.axis] // pool.inner
        if local not in site.prover.devices:
            return site.mixed(*refusals.MAP_WITHOUT_DEVICE(**details))
    writers = [inputs[leaf] for leaf in sorted(pool.writers - {fact.leaf})]
    shared = [writer.path for writer in writers if not (entry.disjoint or getattr(writer.entry, "disjoint", False))]
    if shared:
        used = "written" if write else "read"
        return site.mixed(*refusals.TWO_WRITERS(used=used, writer=shared[0], **details))
    if rows < entry.size:
        site.report(*refusals.FEW_ROWS(rows=rows, **details))
    if "past" in fact.alternatives and rows > entry.size:
        return site.mixed(*refusals.PAST_THE_MAP(rows=rows, last=entry.size - 1, **details))
    if "null" in fact.alternatives and not write:
        return site.mixed(*refusals.NULL_ROW_READ(**details))
    if not write and not fact.non_null and is_optional_map(site.prover.bound, fact.leaf, pool.group):
        return site.mixed(*refusals.NO_ROW_READ(**details))
    if fact.alternatives - {"null", "last"} and not drops:
        site.report(*refusals.CLAMPED(**details))
    return None


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


def device_fault(site: Site, pool: PoolRows, fact: SlotEntry, owner: Owner, access: Access) -> Mixed | None:
    """Return the fault of row numbers of a split pool.

    Each device must subtract the number of rows on previous devices from global row numbers. Local row numbers are used
    unchanged, by the lanes of the device.
    """
    entry, rows, along = site.prover.bound.inputs[fact.leaf].entry, access.full[pool.axis], ", ".join(pool.split)
    assert isinstance(entry, SlotMap)
    shift = "nothing" if fact.offset is None else f"{fact.offset.rows} * axis_index({fact.offset.over!r})"
    details = {"path": site.prover.bound.inputs[pool.leaf].path, "slots": site.prover.bound.inputs[fact.leaf].path}
    details |= {"shift": shift, "local": entry.local, "rows": rows, "along": along}
    if entry.local is not None and isinstance(owner, LaneRows | OneLane):
        is_unchanged = fact.offset is None and owner.split == pool.split
        return None if is_unchanged else site.mixed(*refusals.OTHER_DEVICE(**details))
    if not pool.split:
        return None if fact.offset is None else site.mixed(*refusals.SHIFTED_WHOLE_POOL(**details))
    if len(pool.split) != 1 or fact.offset != DeviceOffset(pool.split[0], rows):
        return site.mixed(*refusals.OTHER_SHIFT(**details))
    if not access.drops:
        return site.mixed(*refusals.CLAMPED_TO_DEVICE(**details))
    filler = site.params.get("fill_value")
    if site.name == "gather" and (filler is None or filler != 0 or math.copysign(1, filler) < 0):
        return site.mixed(*refusals.FILLED_ON_DEVICE(filler="nan" if filler is None else filler, **details))
    return None
