"""Packed tokens under the sanitizer: each token's lane, and the check of the layout."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ir_passes.contract.contract import BoundContract, Packed
from ir_passes.host.row_ledger import ReservedOwner
from ir_passes.sanitizer.tags import LABEL, UNKNOWN, constant_row, nobody
from ir_passes.sanitizer.verdict import FIELDS, Judge, LabelFault


def token_lanes(bound: BoundContract, values: list[Any], layout: str) -> Array:
    """Return the lane of each packed token of a layout, UNKNOWN for padding."""
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
    """Check the layout of packed tokens: `cu_seqlens` and segment ids.

    `cu_seqlens` must begin with 0, never decrease, and end at most at the last token; segment ids must be lanes. A lane
    with tokens in one layout must have tokens in all.
    """
    lanes = np.arange(bound.lanes, dtype=np.int32)
    kind = np.full((1,), FIELDS.index("lane"), np.int32)
    mixed_label = constant_row(ReservedOwner.MIXED, 1)[..., LABEL:]
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
            wrong = jnp.any((value < 0) | (value > bound.lanes)) & (lanes == 0)
            present = jnp.any(value[:, None] == lanes, axis=0)
        first_layout = present if first_layout is None else first_layout
        wrong |= present != first_layout
        judge.record(
            bound_input.path,
            "lays packed tokens out wrongly",
            wrong,
            lanes,
            kind,
            nobody(1),
            mixed_label,
            LabelFault.PACKED,
        )
