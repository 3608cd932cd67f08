"""Page tables: arithmetic on their entries, and reads and writes of pages by them.

An index into a pool by page table is believed where its fact is a `PageEntry`: its quotient by the number of indices to
a page is an entry of its own lane, whichever of the lane's entries that is. So every read of a table at whatever
position keeps the fact, and so do `entry * page_size + offset` and its undoing by division.

Why a read is the lane's own: a page that the lane's table names is its own, one that nobody writes to (a shared prefix
or the null page, which are the same whatever other lanes do), or out of bounds, where the read is filled or clamped to
the null page. Why a write is: the host promises that the pages a lane writes to are named by no other lane and are not
the null page (`PageTable`), and a write out of bounds is dropped.
"""

from dataclasses import replace

from ir_passes.contract.contract import PageTable
from ir_passes.proof.owners import Mixed, PoolRows
from ir_passes.proof.site import Site
from ir_passes.proof.values import Negative, PageEntry, PlusConstant, Range, Value
from ir_passes.proof.violations import ViolationKind

LOWEST = -(1 << 30)
"""Numbers up to this one stay negative when a length of an axis is added to count from its end."""
_MAX_RAISE = 1 << 29
EACH_RANK = (
    "keep tokens, page tables and pages whole on every device, and split heads or channels; or compile a step for each "
    "data-parallel rank, whose tokens, cu_seqlens, tables and rows are its own"
)
_BY_PAGE = (
    "index pages with an entry of the lane's row of its page table, as table[lane, position // page_size], or with "
    "where(active, entry, size) and mode='drop'"
)


def times(x: Value, factor: int | None, bounds: Range | None) -> PageEntry | None:
    """Return the fact of an entry times a constant: (entry * s + o) * c is entry * sc + oc, and oc < sc since o < s.

    An index past every pool stays past it, and a negative one negative. Nothing is known if the product may wrap.
    """
    fact = x.fact
    if not isinstance(fact, PageEntry) or factor is None or factor < 1 or bounds is None:
        return None
    return replace(fact, stride=fact.stride * factor, spare=fact.spare * factor)


def plus(x: Value, y: Value, bounds: Range | None) -> PageEntry | None:
    """The fact of an entry plus an offset that stays within the page.

    A row past every pool stays past it. One below row 0 may become a row, so that nothing is known then.
    """
    fact, by = x.fact, y.range
    if not isinstance(fact, PageEntry) or by is None or by[0] < 0:
        return None
    if bounds is not None and by[1] + fact.spare < fact.stride and not fact.alternatives & {"below", "lowest"}:
        return replace(fact, spare=fact.spare + by[1])
    return None


def over(x: Value, divisor: int | None) -> PageEntry | None:
    """The fact of an entry divided by a constant: (entry * sc + o) // c is entry * s + o // c.

    Division rounds to zero, so that something below row 0 may become a row.
    """
    fact = x.fact
    if not isinstance(fact, PageEntry) or not divisor or divisor < 1 or fact.stride % divisor:
        return None
    if fact.alternatives & {"below", "lowest"}:
        return None
    return replace(fact, stride=fact.stride // divisor, spare=fact.spare // divisor)


def chosen(site: Site, which: Value, cases: tuple[Value, ...]) -> PageEntry | None:
    """The fact of a choice: between entries of a lane, one of them; between these and rows past the pool, as it says.

    `where(x < 0, x + length, x)`, by which JAX counts negative indices from the end, changes only what is negative:
    what is far below row 0 stays below it, and nothing is known where something else is. Chosen by anything else,
    `entry + size` is past every pool; what is far below row 0 is below it there too.

    Args:
        which: what decides.
        cases: the values, the one for false first.
    """
    facts = [case.fact for case in cases]
    for k, (entry, other) in enumerate(((0, 1), (1, 0)) if len(cases) == 2 else ()):
        first, raised = facts[entry], facts[other]
        if not isinstance(first, PageEntry) or not isinstance(raised, PlusConstant):
            continue
        number, low = cases[entry].number, frozenset({"below"} if "lowest" in first.alternatives else ())
        if raised.number != number or raised.by > _MAX_RAISE or "below" in first.alternatives:
            return None
        if k == 0 and which.fact == Negative(number):
            return replace(first, alternatives=first.alternatives - {"lowest"} | low)
        if cases[other].range is not None and raised.by >= _size(site, first):
            return replace(first, alternatives=first.alternatives | low | {"past"})
        return None
    entries = [fact for fact in facts if isinstance(fact, PageEntry)]
    if not entries or len({(fact.leaf, fact.stride) for fact in entries}) > 1:
        return None
    others = {nowhere(site, case, cases) for case in cases if not isinstance(case.fact, PageEntry)}
    if None in others:
        return None
    alternatives = frozenset(kind for kind in others if kind).union(*(fact.alternatives for fact in entries))
    return replace(entries[0], spare=max(fact.spare for fact in entries), alternatives=alternatives)


def nowhere(site: Site, row: Value, among: tuple[Value, ...]) -> str | None:
    """Return the kind of a row that no lane owns, as in `PageEntry.alternatives`; None for one that a lane may own."""
    entry = next((case.fact for case in among if isinstance(case.fact, PageEntry)), None)
    if entry is None or row.range is None:
        return None
    return "past" if row.range[0] >= _size(site, entry) else below(row.range)


def _size(site: Site, fact: PageEntry) -> int:
    """The first number past every pool, counted as the entries are."""
    table = site.prover.bound.inputs[fact.leaf].entry
    assert isinstance(table, PageTable)
    return table.size * fact.stride


def below(bounds: Range) -> str | None:
    """The kind of numbers that are all negative; None for others."""
    return "lowest" if bounds[1] <= LOWEST else "below" if bounds[1] < 0 else None


def page_fault(
    site: Site,
    pool: PoolRows,
    fact: PageEntry,
    split: tuple[str, ...],
    shape: tuple[int, ...],
    drops: bool,
    write: bool,
) -> Mixed | None:
    """Return the fault of picking rows of a pool by entries of a page table, None where there is none.

    Args:
        split: axes of the mesh over which the lanes of the entries are split.
        shape: of the pool.
        drops: whether a row outside of it is left out, or read as a fill value.
        write: whether rows are written; otherwise they are read.
    """
    path, table = site.prover.bound.inputs[pool.leaf].path, site.prover.bound.inputs[fact.leaf]
    entry, pages = table.entry, table.path
    assert isinstance(entry, PageTable)
    if pool.group not in entry.names:
        message = f"pages of {path} are picked by {pages}, which is the page table of {', '.join(entry.names)}"
        return site.mixed(message, f"use the page table of group {pool.group!r}", ViolationKind.WRONG_ROW)
    if entry.role == ("read" if write else "write"):
        message = f"{path} is {'written' if write else 'read'} by {pages}, which is declared for the opposite"
        return site.mixed(message, "use the table with the other role, or role='both'", ViolationKind.WRONG_ROW)
    if split or pool.split:
        message = (
            f"{pages} or {path} is split over devices along {', '.join(split or pool.split)}, and pages are global"
        )
        return site.mixed(message, EACH_RANK, ViolationKind.COLLECTIVE)
    indices = entry.page_size * pool.inner
    if indices != fact.stride or not 0 <= fact.spare < fact.stride:
        message = (
            f"a page of {path} is {indices} indices long here ({entry.page_size} rows in {pages}), and is picked by an "
            f"index that counts {fact.stride} to a page"
        )
        remedy = "index with entry * page_size + offset where pages are flat, with the entry itself where they are rows"
        return site.mixed(message, remedy, ViolationKind.WRONG_ROW)
    length = shape[pool.axis]
    if length < entry.size * indices:
        message = f"{pages} holds pages in [0, {entry.size}) of {entry.page_size} rows, {path} has {length} of them"
        site.report(ViolationKind.BOUNDS, message, "give the pool as many pages as the page table has")
    if "last" in fact.alternatives and write:
        message = f"a padding token writes to a page of the last lane in {path}"
        remedy = (
            "send padding past the end: where(segment < lanes, row, size) with mode='drop', or read the table by "
            ".at[segment, page].get(mode='fill', fill_value=size)"
        )
        return site.mixed(message, remedy, ViolationKind.WRONG_ROW)
    past = "past" in fact.alternatives
    if past and (length > entry.size * indices or not drops):
        message = f"rows of {path} are picked by {pages} or by a row past its last page"
        remedy = "give the pool as many pages as the page table, and use mode='drop' for writes, mode='fill' for reads"
        return site.mixed(f"{message}, which may be a lane's", remedy, ViolationKind.WRONG_ROW)
    low = fact.alternatives & {"below", "lowest"}
    if low and not drops and (write or not entry.null):
        message = f"a row of {path} that may lie below its first one is clamped to that"
        return site.mixed(message, "use mode='drop' for writes, mode='fill' for reads", ViolationKind.WRONG_ROW)
    return None


def no_entry(site: Site, path: str) -> Mixed:
    """The owner of rows that are picked by something else than entries of a page table."""
    message = f"pages of {path} are picked by an index that is not an entry of the lane's row in its page table"
    return site.mixed(message, _BY_PAGE, ViolationKind.WRONG_ROW)
