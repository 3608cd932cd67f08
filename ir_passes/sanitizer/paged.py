"""Pools of pages: a lane may write only its own pages.

Pages are written in many steps, and shared pages by another sequence, so labels cannot tell owners. The step's page
tables are compared with the promise of `PageTable` instead.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ir_passes.contract.contract import BoundContract, Packed, PageTable, Pool
from ir_passes.host.row_ledger import ReservedOwner
from ir_passes.jaxpr import ir
from ir_passes.sanitizer.judge import Judge
from ir_passes.sanitizer.tags import UNKNOWN, Ints, nobody
from ir_passes.sanitizer.verdict import LabelFault


def token_lanes(bound: BoundContract, values: list[Any], layout: str) -> Array:
    """Return the lane of each packed token, UNKNOWN for padding."""
    sides = zip(bound.inputs, values, strict=True)
    roles = {
        bound_input.entry.role: value
        for bound_input, value in sides
        if isinstance(bound_input.entry, Packed) and bound_input.layout == layout
    }
    if "segment_ids" in roles:
        ids = jnp.asarray(roles["segment_ids"])
        return jnp.where((ids >= 0) & (ids < bound.lanes), ids, UNKNOWN)
    tokens = jnp.arange(bound.layouts[layout] or 0)
    ids = jnp.searchsorted(jnp.asarray(roles["cu_seqlens"])[1:], tokens, side="right")
    return jnp.where(ids < bound.lanes, ids, UNKNOWN).astype(jnp.int32)


def check_layout(judge: Judge, bound: BoundContract, values: list[Any]) -> None:
    """Check layouts of packed tokens: valid `cu_seqlens` or segment ids, with tokens of equal lanes."""
    lanes = np.arange(bound.lanes, dtype=np.int32)
    first_layout: Array | None = None
    for bound_input, value in zip(bound.inputs, values, strict=True):
        if not isinstance(bound_input.entry, Packed) or bound_input.entry.role is None:
            continue
        value, tokens = jnp.asarray(value), bound.layouts[bound_input.entry.layout]
        if bound_input.entry.role == "cu_seqlens":
            first = (value[0] != 0) & (lanes == 0)
            end = np.iinfo(np.int32).max if tokens is None else tokens
            wrong = (value[1:] < value[:-1]) | first | (value[1:] > end)
            present = value[1:] > value[:-1]
        else:
            falls = jnp.any(value[1:] < value[:-1])
            wrong = (falls | jnp.any((value < 0) | (value > bound.lanes))) & (lanes == 0)
            present = jnp.any(value[:, None] == lanes, axis=0)
        first_layout = present if first_layout is None else first_layout
        wrong |= present != first_layout
        action = "lays packed tokens out wrongly"
        judge.record(bound_input.path, action, wrong, lanes, "lane", nobody(1), ReservedOwner.MIXED, LabelFault.PACKED)


def named_rows(bound: BoundContract, values: list[Any]) -> dict[int, Array]:
    """Return input index -> mask of rows in page tables, bool [N + 1, rows].

    The first N rows are lanes, the last is the null page.
    """
    named = {}
    for i, pool_input in enumerate(bound.inputs):
        pool = pool_input.entry
        if not isinstance(pool, Pool):
            continue
        rows = pool_input.shape[pool.axis]
        by, null, tables = jnp.zeros((bound.lanes, rows), bool), np.zeros(rows, bool), 0
        for table_input, value in zip(bound.inputs, values, strict=True):
            entry = table_input.entry
            if not isinstance(entry, PageTable) or pool.group not in entry.names:
                continue
            tables += 1
            lanes = token_lanes(bound, values, entry.layout) if entry.packed else jnp.arange(bound.lanes)
            pages = jnp.reshape(value, (len(lanes), -1, 1))
            table_rows = (pages * entry.page_size + jnp.arange(entry.page_size)[None, None]).reshape((len(lanes), -1))
            by = by.at[lanes[:, None], table_rows].set(True, mode="drop", wrap_negative_indices=False)
            null[: entry.page_size if entry.null else 0] = True
        if tables:
            named[i] = jnp.concatenate([by, null[None]])
    return named


def check_write(judge: Judge, eqn: ir.JaxprEqn, pool: int, rows: Array, lanes: Ints, length: int) -> None:
    """Check that written rows are in the table of their lane alone, if known."""
    named = judge.named[pool]
    rows_before = named.shape[1]
    if length >= rows_before:  # a reshape may have changed the number of rows
        named = jnp.repeat(named, length // rows_before, axis=1)
    else:
        named = named.reshape((len(named), length, -1)).any(axis=2)
    by, null = named[:-1], named[-1]
    in_bounds = (rows >= 0) & (rows < length)
    clamped = jnp.where(in_bounds, rows, 0)
    permitted = by[jnp.maximum(lanes, 0), clamped] | (lanes == UNKNOWN)
    wrong = in_bounds & ((by.sum(axis=0)[clamped] > 1) | null[clamped] | ~permitted)
    action = f"writes a page of {judge.paths[pool]} that is not its lane's alone, or the null page"
    judge.record(eqn, action, wrong, lanes, "owner", rows, ReservedOwner.MIXED, LabelFault.PAGE)
