"""Packed tokens under the sanitizer: the lane of each token, and the check of the layout that the step was given."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ir_passes.contract.contract import BoundContract, Packed, PageTable
from ir_passes.host.row_ledger import ReservedOwner
from ir_passes.sanitizer.tags import LABEL, UNKNOWN, constant_row, nobody
from ir_passes.sanitizer.verdict import FIELDS, Judge, LabelFault


def token_lanes(bound: BoundContract, values: list[Any]) -> Array | None:
    """Return the lane of each packed token, UNKNOWN for padding; None where no tokens are packed."""
    entries = [one.entry for one in bound.inputs]
    roles = {one.role: value for one, value in zip(entries, values, strict=True) if isinstance(one, Packed)}
    if "segment_ids" in roles:
        ids = jnp.asarray(roles["segment_ids"])
        return jnp.where((ids >= 0) & (ids < bound.lanes), ids, UNKNOWN)
    lengths = _lengths(bound)
    if "cu_seqlens" not in roles or not lengths:
        return None
    ids = jnp.searchsorted(jnp.asarray(roles["cu_seqlens"])[1:], jnp.arange(lengths[0]), side="right")
    return jnp.where(ids < bound.lanes, ids, UNKNOWN).astype(jnp.int32)


def check_layout(judge: Judge, bound: BoundContract, values: list[Any]) -> None:
    """Check that `cu_seqlens` begins with 0, never falls and ends at the last token, and that ids are lanes."""
    lanes = np.arange(bound.lanes, dtype=np.int32)
    kind = np.full((1,), FIELDS.index("lane"), np.int32)
    lengths = _lengths(bound)
    for one, value in zip(bound.inputs, values, strict=True):
        if not isinstance(one.entry, Packed) or one.entry.role is None:
            continue
        value = jnp.asarray(value)
        if one.entry.role == "cu_seqlens":
            first = (value[0] != 0) & (lanes == 0)
            wrong = (value[1:] < value[:-1]) | first | (value[1:] > (lengths or [np.iinfo(np.int32).max])[0])
        else:
            wrong = jnp.any((value < 0) | (value > bound.lanes)) & (lanes == 0)
        found = constant_row(ReservedOwner.MIXED, 1)[..., LABEL:]
        judge.record(
            one.path, "lays packed tokens out wrongly", wrong, lanes, kind, nobody(1), found, LabelFault.PACKED
        )


def _lengths(bound: BoundContract) -> list[int]:
    """Lengths of all token axes, which are equal."""
    sides = [(one, one.entry) for one in (*bound.inputs, *bound.outputs)]
    packed = [one.shape[e.axis] for one, e in sides if isinstance(e, Packed) and e.role != "cu_seqlens"]
    return packed + [one.shape[0] for one, e in sides if isinstance(e, PageTable) and e.packed]
