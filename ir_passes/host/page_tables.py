"""Check of page tables from any allocator against the assumptions of `contract.PageTable`."""

import math
from collections.abc import Sequence

import numpy as np

from ir_passes.contract.entries import PageTable
from ir_passes.contract.statements import Statement
from ir_passes.host.slot_faults import SlotError, SlotFault
from ir_passes.host.slot_owner import NULL_ROW


def written_places(first: np.ndarray, count: np.ndarray, *, tokens: int, pages: int) -> np.ndarray:
    """Return the written places of a page table, bool [N, pages].

    Args:
        first: int [N], position of each lane's first written token.
        count: int [N], written tokens.
        tokens: per page.
        pages: table width.

    Raises:
        SlotError: writes outside a lane's pages.
    """
    first, count = np.asarray(first), np.asarray(count)
    wrong = np.flatnonzero((count > 0) & ((first < 0) | (first + count > tokens * pages)))
    if len(wrong):
        allowed = f"expected positions in [0, {tokens * pages})"
        ends = ((lane, f"writes [{first[lane]}, {first[lane] + count[lane]}), {allowed}") for lane in wrong)
        raise SlotError(*(SlotFault.PLACES.fault(f"lane {lane}", message) for lane, message in ends))
    place = np.arange(pages)
    return (place >= (first // tokens)[:, None]) & (place * tokens < (first + count)[:, None]) & (count > 0)[:, None]


def check_page_tables(tables: Sequence[tuple[PageTable, np.ndarray, np.ndarray | None]]) -> None:
    """Check that the page tables of a step keep the promise of `PageTable`.

    Args:
        tables: of one group of pools: contract entry, argument (int32 [N, ...]), and written places (bool [N, pages],
            from `written_places`; None for no writes; ignored for role "write": all entries).

    Raises:
        SlotError: all faults: entries out of range, or a written page that is the null page or in another lane's table.
    """
    faults = page_faults(tables)
    if faults:
        raise SlotError(*faults, where="page tables")


def page_faults(tables: Sequence[tuple[PageTable, np.ndarray, np.ndarray | None]]) -> list[Statement]:
    faults, names, writes = list[Statement](), [], []
    unit = math.gcd(*(entry.page_size for entry, _, _ in tables))
    for k, (entry, array, written) in enumerate(tables):
        table = np.asarray(array).reshape(len(array), -1)
        top = entry.size + (entry.role == "write")
        for lane, place in np.argwhere((table < 0) | (table >= top)).tolist():
            where, message = f"table {k}, lane {lane}, place {place}", f"expected [0, {top}), got {table[lane, place]}"
            faults.append(SlotFault.RANGE.fault(where, message))
        in_range = (table >= 0) & (table < entry.size)
        written = (
            in_range if entry.role == "write" else np.zeros_like(in_range) if written is None else written & in_range
        )
        if entry.null:
            nulls = np.argwhere(written & (table == NULL_ROW)).tolist()
            if entry.page_size > unit or entry.role != "write":
                faults += [
                    SlotFault.NULL_PAGE.fault(f"table {k}, lane {lane}, place {place}", "writes the null page")
                    for lane, place in nulls
                ]
        span = entry.page_size // unit
        units = table[:, :, None].astype(np.int64) * span + np.arange(span)
        lanes = np.broadcast_to(np.arange(len(table))[:, None, None], units.shape)
        names.append(np.stack([units[in_range].ravel(), lanes[in_range].ravel()], axis=1))
        writes.append(np.stack([units[written].ravel(), lanes[written].ravel()], axis=1))
    named = np.unique(np.concatenate(names), axis=0)
    pages, holders = np.unique(named[:, 0], return_counts=True)
    several = set(pages[holders > 1].tolist())
    null = max((entry.page_size // unit for entry, _, _ in tables if entry.null), default=0)
    for row, lane in np.unique(np.concatenate(writes), axis=0).tolist():
        where = f"rows [{row * unit}, {(row + 1) * unit})" if unit > 1 else f"page {row}"
        if row in several:
            other_lanes = sorted(set(named[named[:, 0] == row, 1].tolist()) - {lane})
            faults.append(SlotFault.SHARED.fault(f"lane {lane}", f"writes {where}, which lanes {other_lanes} name too"))
        elif row < null and not any(fault.id == SlotFault.NULL_PAGE for fault in faults):
            faults.append(SlotFault.NULL_PAGE.fault(f"lane {lane}", f"writes {where} of the null page"))
    return faults
