"""Statements of a proof that follow from the contract alone: its assumptions, and what it does not ask for."""

from ir_passes.contract.contract import ROW_MAPS, BoundContract, Packed, PageTable, Pool, SlotMap
from ir_passes.contract.statements import Assumption, Note, Statement


def dimensions_not_proved(bound: BoundContract) -> list[Statement]:
    """The note about pools for which the contract gives no names of dimensions."""
    paths = [one.path for one in bound.inputs if isinstance(one.entry, Pool) and one.entry.dims is None]
    return [Note.DIMENSIONS_NOT_PROVED.statement(", ".join(paths))] if paths else []


_NULL_IN_ALL = ". A lane that is on the null row in it is so in every slot map that is not disjoint"


def assumed_of(bound: BoundContract) -> list[Statement]:
    """The assumptions about each slot map and page table."""
    found = []
    for leaf, one in enumerate(bound.inputs):
        if isinstance(one.entry, SlotMap):
            which = "the entries of active lanes" if one.entry.null else "all of them"
            if one.entry.local is not None:
                which = f"within each device along {one.entry.local!r} {which}"
            null = _NULL_IN_ALL if leaf in bound.null_maps and len(bound.null_maps) > 1 else ""
            found.append(Assumption.SLOT_MAP.statement(one.path, size=one.entry.size, which=which, null=null))
            if one.entry.disjoint:
                found.append(Assumption.DISJOINT_ROWS.statement(one.path))
        elif isinstance(one.entry, Packed) and one.entry.role:
            empty = "A lane without tokens is padding too, on null rows and null pages"
            rows = [b.entry for b in bound.inputs if isinstance(b.entry, Pool)]
            mapped = {name for b in bound.inputs if isinstance(b.entry, ROW_MAPS) for name in b.entry.names}
            if any(pool.group not in mapped for pool in rows):
                empty = "Every lane has a token"
            if len(bound.layouts) > 1:
                empty = f"A lane without tokens in one layout has none in the others. {empty}"
            found.append(Assumption.PACKED.statement(one.path, empty=f"{empty}."))
        elif isinstance(one.entry, PageTable):
            null = ", nor is it the null page, page 0" if one.entry.null else ""
            if one.entry.packed and one.entry.role == "write":
                null += f", and of padding it is {one.entry.size}"
            found.append(Assumption.PAGE_TABLE.statement(one.path, size=one.entry.size, null=null))
    return found
