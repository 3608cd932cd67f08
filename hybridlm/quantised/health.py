"""Signs that quantisation damaged a weight: rows of zeros, and clipped groups."""

import numpy as np
from jaxtyping import Float

CLIPPED_SHARE = 0.5
"""Minimum share of a group's numbers with its largest magnitude for a clipped group."""
MIN_ROWS = 8
"""Rows of zeros below which none counts as lost: single rows can be zero in a good checkpoint."""
_MIN_GROUP = 8


def zero_rows(weight: Float[np.ndarray, "*experts out in"]) -> int:
    """Return the number of rows of zeros, of all experts."""
    rows = weight.reshape(-1, weight.shape[-1])
    return len(rows) - int(np.count_nonzero(rows.any(axis=1)))


def lost_rows(weight: Float[np.ndarray, "*experts out in"]) -> int:
    """Return the number of zero rows if they are many, else 0.

    Many means at least eight, and at least one in twenty.
    Scales that are too coarse for some projections of hybrid models have made such files (keys of linear attention).
    """
    zero = zero_rows(weight)
    return zero if zero >= MIN_ROWS and zero * 20 * weight.shape[-1] >= weight.size else 0


def clipped_groups(weight: Float[np.ndarray, "*experts out in"], group: int | None = None) -> int:
    """Return the number of groups with half of their numbers at the largest magnitude.

    Args:
        weight: numbers of the weight.
        group: columns that share a scale; None for a whole row. Columns behind the last whole group are left out.
    """
    rows = np.abs(weight.astype(np.float32, copy=False)).reshape(-1, weight.shape[-1])
    group = rows.shape[1] if group is None else group
    grouped = rows[:, : rows.shape[1] // group * group].reshape(-1, group)
    magnitude = grouped.max(axis=1, keepdims=True, initial=0)
    clipped = ((grouped == magnitude).mean(axis=1) >= CLIPPED_SHARE) & (magnitude[:, 0] > 0) & (group >= _MIN_GROUP)
    return int(clipped.sum())
