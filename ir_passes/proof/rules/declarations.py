"""Checks of row maps of declared calls."""

from ir_passes.contract.contract import PageTable, SlotMap
from ir_passes.proof.owners import axis_of
from ir_passes.proof.site import Site
from ir_passes.proof.values import PageEntry, SlotEntry, Value


def map_misfit(site: Site, value: Value, declared: SlotMap, shape: tuple[int, ...]) -> str | None:
    if not isinstance(value.fact, SlotEntry) or len(shape) > 1:
        return "a slot map, and is not one"
    if value.fact.stride != 1:
        return "a slot map, and is one times a number"
    if value.fact.guard is not None or value.fact.alternatives:
        return "a slot map, and some entries may be replaced by a row past the end of the pool"
    bound_input = site.prover.bound.inputs[value.fact.leaf]
    entry = bound_input.entry
    assert isinstance(entry, SlotMap)
    if value.fact.offset is not None:
        return f"a slot map, and is {bound_input.path} less the rows of other devices"
    differs = entry.role not in (declared.role, "both")
    if differs or (entry.size, entry.null, entry.local) != (declared.size, declared.null, declared.local):
        return f"{declared}, and is {bound_input.path}, {entry}"
    return None


def table_misfit(site: Site, value: Value, declared: PageTable) -> str | None:
    fact = value.fact
    if not isinstance(fact, PageEntry) or axis_of(value.owner) not in (None, 0):
        return "a page table, and is not one"
    bound_input = site.prover.bound.inputs[fact.leaf]
    entry = bound_input.entry
    assert isinstance(entry, PageTable)
    if (fact.stride, fact.spare) != (1, 0) or fact.alternatives - ({"past"} if declared.role == "write" else set()):
        return f"a page table, and is computed of {bound_input.path}: it may hold something else than its entries"
    differs = entry.role not in (declared.role, "both")
    if differs or (entry.size, entry.page_size, entry.null) != (declared.size, declared.page_size, declared.null):
        return f"{declared}, and is {bound_input.path}, {entry}"
    return None
