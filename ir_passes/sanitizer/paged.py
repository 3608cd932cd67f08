"""Pools of pages under the sanitizer: a write is to a page that no other lane names, and that is not the null page.

Pages of a sequence are written in many steps, and those of a shared prefix by another sequence, so that no label says
what a lane must find in them. The check is of the tables that the step was given, against the promise of `PageTable`.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ir_passes.contract.contract import BoundContract, PageTable, Pool
from ir_passes.host.row_ledger import ReservedOwner
from ir_passes.jaxpr import ir
from ir_passes.sanitizer.packed import token_lanes
from ir_passes.sanitizer.tags import LABEL, UNKNOWN, Ints, constant_row
from ir_passes.sanitizer.verdict import FIELDS, LabelFault
from ir_passes.sanitizer.walk import Walk


@dataclass(frozen=True)
class Named:
    """The rows of a pool that lanes name.

    Attributes:
        by: bool [N, rows].
        null: bool [rows], those of the null page.
    """

    by: Array
    null: Array

    def along(self, length: int) -> "Named":
        """Return the names for an axis that a reshape has made longer or shorter."""
        rows = self.null.shape[0]
        if length >= rows:
            return Named(*(jnp.repeat(array, length // rows, axis=-1) for array in (self.by, self.null)))
        return Named(*(array.reshape((*array.shape[:-1], length, -1)).any(axis=-1) for array in (self.by, self.null)))


def named_rows(bound: BoundContract, values: list[Any]) -> dict[int, Named]:
    """Return the rows that lanes name, of every pool behind page tables, by its index among the inputs."""
    found = {}
    for i, one in enumerate(bound.inputs):
        pool = one.entry
        if not isinstance(pool, Pool):
            continue
        rows = one.shape[pool.axis]
        by, null, tables = jnp.zeros((bound.lanes, rows), bool), np.zeros(rows, bool), 0
        for at, value in zip(bound.inputs, values, strict=True):
            entry = at.entry
            if not isinstance(entry, PageTable) or pool.group not in entry.names:
                continue
            tables += 1
            lanes = token_lanes(bound, values, entry.layout) if entry.packed else jnp.arange(bound.lanes)
            pages = jnp.reshape(value, (len(lanes), -1, 1))
            held = (pages * entry.page_size + jnp.arange(entry.page_size)[None, None]).reshape((len(lanes), -1))
            by = by.at[lanes[:, None], held].set(True, mode="drop", wrap_negative_indices=False)
            null[: entry.page_size if entry.null else 0] = True
        if tables:
            found[i] = Named(by, jnp.asarray(null))
    return found


def check_write(run: Walk, eqn: ir.JaxprEqn, pool: int, rows: Array, lanes: Ints, length: int) -> None:
    """Check that rows which are written are named by their lane alone.

    Args:
        run: the interpreter.
        eqn: the write.
        pool: index among the inputs.
        rows: their numbers, those out of bounds for none.
        lanes: the lane of each, UNKNOWN where that is not known.
        length: of the axis of the rows.
    """
    named = run.named[pool].along(length)
    inside = (rows >= 0) & (rows < length)
    at = jnp.where(inside, rows, 0)
    own = named.by[jnp.maximum(lanes, 0), at] | (lanes == UNKNOWN)
    wrong = inside & ((named.by.sum(axis=0)[at] > 1) | named.null[at] | ~own)
    kind = np.full((1,) * rows.ndim, FIELDS.index("owner"), np.int32)
    what = f"writes a page of {run.judge.paths[pool]} that is not its lane's alone, or the null page"
    run.judge.record(
        eqn, what, wrong, lanes, kind, rows, constant_row(ReservedOwner.MIXED, rows.ndim)[..., LABEL:], LabelFault.PAGE
    )
