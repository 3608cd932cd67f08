"""Page tables: arithmetic on their entries, and reads and writes of pages by them.

An index into a pool by page table must have the fact `PageEntry`: its quotient by the number of indices per page is
some entry of the lane's own table.

A read stays within the lane: a page in the lane's table is the lane's own page, a page without writers, or out of
bounds. Other lanes cannot change pages without writers: a shared prefix and the null page. A read out of bounds is
filled, or clamped to the null page.

A write stays within the lane: the host promises (`PageTable`) that no other lane names the written pages, and that they
are not the null page. A write out of bounds is dropped.
"""

from dataclasses import replace

from ir_passes.contract.contract import PageTable, SlotMap
from ir_passes.proof import refusals
from ir_passes.proof.owners import Common, PoolRows
from ir_passes.proof.refusals import RefusalText
from ir_passes.proof.rules.addressing.slot_maps import entry_fault
from ir_passes.proof.site import Site
from ir_passes.proof.values import Negative, PageEntry, PlusConstant, SlotEntry, Value

LOWEST = -(1 << 30)
"""Numbers up to this one plus the length of an axis are negative."""
_MAX_RAISE = 1 << 29


def chosen(site: Site, predicate: Value, cases: tuple[Value, ...]) -> PageEntry | None:
    """Select between entries of a lane and unowned rows.

    JAX counts negative indices from the end by `where(x < 0, x + length, x)`, which changes negative numbers only. A
    number far below row 0 stays below it; other negative numbers have no fact. With any other predicate, `entry + size`
    is past every pool.
    """
    facts = [case.fact for case in cases]
    for k, (entry, other) in enumerate(((0, 1), (1, 0)) if len(cases) == 2 else ()):
        first, raised = facts[entry], facts[other]
        if not isinstance(first, PageEntry) or not isinstance(raised, PlusConstant):
            continue
        number, low = cases[entry].number, frozenset({"below"} if "lowest" in first.alternatives else ())
        if raised.number != number or raised.by > _MAX_RAISE or "below" in first.alternatives:
            return None
        if k == 0 and predicate.fact == Negative(number):
            return replace(first, alternatives=first.alternatives - {"lowest"} | low)
        if cases[other].range is not None and raised.by >= _size(site, first):
            return replace(first, alternatives=first.alternatives | low | {"past"})
        return None
    entries = [fact for fact in facts if isinstance(fact, PageEntry)]
    if not entries or len({(fact.leaf, fact.stride) for fact in entries}) > 1:
        return None
    kinds = {nowhere(site, case, entries[0]) for case in cases if not isinstance(case.fact, PageEntry)}
    if None in kinds:
        return None
    alternatives = frozenset(kind for kind in kinds if kind).union(*(fact.alternatives for fact in entries))
    return replace(entries[0], spare=max(fact.spare for fact in entries), alternatives=alternatives)


def nowhere(site: Site, row: Value, fact: SlotEntry | PageEntry) -> str | None:
    """Return the kind of an unowned row, past or below all rows, as in `alternatives`."""
    if row.range is None:
        return None
    if row.range[0] >= _size(site, fact):
        return "past"
    if isinstance(fact, PageEntry):
        return "lowest" if row.range[1] <= LOWEST else "below" if row.range[1] < 0 else None
    return "below" if row.range[1] < 0 and isinstance(row.owner, Common) else None


def _size(site: Site, fact: SlotEntry | PageEntry) -> int:
    entry = site.prover.bound.inputs[fact.leaf].entry
    assert isinstance(entry, SlotMap | PageTable)
    return entry.size * fact.stride


def page_fault(
    site: Site, pool: PoolRows, fact: PageEntry, split: tuple[str, ...], full: tuple[int, ...], drops: bool, write: bool
) -> RefusalText | None:
    """Return the fault of an access by page table; `split` is of the lanes."""
    entry, fault = site.prover.bound.inputs[fact.leaf].entry, entry_fault(site, pool, fact, write)
    assert isinstance(entry, PageTable)
    if fault is not None:
        return fault
    if entry.local is not None:
        count = site.prover.devices.get(entry.local)
        if count is None or split != pool.split or pool.split != ((entry.local,) if count > 1 else ()):
            return refusals.PAGES_OF_A_DEVICE
    elif split or pool.split:
        return refusals.SPLIT_PAGES
    indices, length = entry.page_size * pool.inner, full[pool.axis]
    if indices != fact.stride or not 0 <= fact.spare < fact.stride:
        return refusals.OTHER_PAGE_SIZE
    if length < entry.size * indices:
        return refusals.FEW_PAGES
    if "past" in fact.alternatives and (length > entry.size * indices or not drops):
        return refusals.PAST_THE_PAGES
    is_below = bool(fact.alternatives & {"below", "lowest"}) and not drops
    return refusals.BELOW_THE_PAGES if is_below and (write or not entry.null) else None
