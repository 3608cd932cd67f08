"""Check of packed layouts: one length, and one input with the lane of each token."""

from collections.abc import Sequence
from typing import get_args

import numpy as np

from ir_passes.contract import fault_texts
from ir_passes.contract.entries import Bound, Packed, PackedRole
from ir_passes.contract.faults import ContractFault


def check_layouts(inputs: Sequence[Bound], outputs: Sequence[Bound], lanes: int) -> None:
    """Raise ContractError for packed arrays with a wrong dtype, shape or layout."""
    for bound in (*inputs, *outputs):
        if bound.layout is not None and not (isinstance(bound.layout, str) and bound.layout):
            raise ContractFault.PACKED.error(bound.path, f"a layout is named by a string, got {bound.layout!r}")
        if not isinstance(bound.entry, Packed) or bound.entry.role is None:
            continue
        if bound in outputs or len(bound.shape) != 1 or bound.dtype != np.int32:
            raise ContractFault.ARRAY.error(bound.path, fault_texts.NO_DESCRIPTION.format(bound=bound))
        if bound.entry.role == "cu_seqlens" and bound.shape[0] != lanes + 1:
            raise ContractFault.ARRAY.error(bound.path, f"{lanes} lanes need int32[{lanes + 1}], got {bound.shape[0]}")
    descriptions = {
        role: [bound for bound in inputs if isinstance(bound.entry, Packed) and bound.entry.role == role]
        for role in get_args(PackedRole)
    }
    arrays = [bound for bound in (*inputs, *outputs) if bound.layout is not None]
    for layout in dict.fromkeys(bound.layout for bound in arrays):
        lengths = {bound.path: bound.tokens for bound in arrays if bound.layout == layout and bound.tokens is not None}
        if len({*lengths.values()}) > 1:
            raise ContractFault.PACKED.error("", fault_texts.other_tokens(layout, lengths))
        for role, entries in descriptions.items():
            paths = [bound.path for bound in entries if bound.layout == layout]
            if len(paths) > 1:
                text = fault_texts.ONE_DESCRIPTION.format(layout=layout, role=role, paths=", ".join(paths))
                raise ContractFault.PACKED.error("", text)
