"""Check on the host that `cu_seqlens` or segment ids keep the promise of `contract.Packed`."""

from collections.abc import Sequence

import numpy as np

from ir_passes.contract.faults import ContractError, ContractFault
from ir_passes.contract.statements import Statement


def segment_ids(cu_seqlens: np.ndarray, *, tokens: int) -> np.ndarray:
    """Return each token's lane, int32 [tokens]; N for padding.

    Args:
        cu_seqlens: int32 [N + 1], valid.
        tokens: length of the packed axis.
    """
    return np.searchsorted(cu_seqlens[1:], np.arange(tokens), side="right").astype(np.int32)


def check_packed(
    *,
    tokens: int,
    lanes: int,
    cu_seqlens: np.ndarray | None = None,
    ids: np.ndarray | None = None,
    slots: Sequence[np.ndarray] = (),
    all_lanes: bool = False,
) -> None:
    """Check the layout of a step's packed tokens.

    Args:
        tokens: length of the packed axis.
        lanes: N.
        cu_seqlens: int32 [N + 1].
        ids: int32 [tokens], segment ids.
        slots: slot maps with lanes without tokens on row 0.
        all_lanes: every lane has a token, as for one pool row per lane.

    Raises:
        ContractError: all faults.
    """
    faults: list[Statement] = []
    counts = np.zeros(lanes, np.int64)
    if cu_seqlens is not None:
        cu = np.asarray(cu_seqlens)
        if cu.shape != (lanes + 1,):
            faults.append(ContractFault.SHAPE.fault("cu_seqlens", f"expected int32[{lanes + 1}], got shape {cu.shape}"))
        else:
            if cu[0] != 0:
                faults.append(ContractFault.BEGIN.fault("cu_seqlens", f"begins with {cu[0]}, expected 0"))
            fallen = np.flatnonzero(np.diff(cu) < 0).tolist()
            faults += [
                ContractFault.FALLS.fault("cu_seqlens", f"falls from {cu[lane]} to {cu[lane + 1]} at lane {lane}")
                for lane in fallen
            ]
            if cu[-1] > tokens:
                faults.append(
                    ContractFault.END.fault("cu_seqlens", f"ends with {cu[-1]}, expected at most {tokens} tokens")
                )
            counts = np.diff(cu)
    if ids is not None:
        ids = np.asarray(ids)
        if ids.shape != (tokens,):
            faults.append(ContractFault.SHAPE.fault("segment ids", f"expected int32[{tokens}], got shape {ids.shape}"))
        else:
            wrong = np.flatnonzero((ids < 0) | (ids > lanes)).tolist()
            faults += [
                ContractFault.RANGE.fault(f"segment id {ids[token]} of token {token}", f"expected [0, {lanes}]")
                for token in wrong
            ]
            fallen = np.flatnonzero(np.diff(ids) < 0).tolist() if cu_seqlens is None else []
            faults += [
                ContractFault.FALLS.fault(f"segment id {ids[token + 1]} of token {token + 1}", f"is below {ids[token]}")
                for token in fallen
            ]
            id_counts = np.bincount(ids[(ids >= 0) & (ids <= lanes)], minlength=lanes + 1)[:lanes]
            counts = id_counts if cu_seqlens is None else counts
            if cu_seqlens is not None and not faults and (ids != segment_ids(cu, tokens=tokens)).any():
                token = int(np.argmax(ids != segment_ids(cu, tokens=tokens)))
                where = f"segment id {ids[token]} of token {token}"
                faults.append(ContractFault.DISAGREE.fault(where, "disagrees with cu_seqlens"))
    if not faults:
        for lane in np.flatnonzero(counts == 0).tolist():
            if all_lanes:
                faults.append(ContractFault.NO_TOKEN.fault(f"lane {lane}", "has no token"))
            occupied = [int(rows[lane]) for rows in slots if rows[lane] != 0]
            faults += [
                ContractFault.NULL_ROW.fault(f"lane {lane}", f"has no token and stands on row {row}, expected row 0")
                for row in occupied
            ]
    if faults:
        raise ContractError(*faults, where="packed tokens")
