"""Signs that quantisation damaged a weight: rows of zeros, and clipped groups."""

import numpy as np
from jaxtyping import Float

CLIPPED_SHARE = 0.5
"""Share of a clipped group's numbers at its largest magnitude."""
MIN_ROWS = 8
"""Fewer zero rows are not lost: a good checkpoint can have some."""
_MIN_GROUP = 8


def zero_rows(weight: Float[np.ndarray, "*experts out in"]) -> int:
    rows = weight.reshape(-1, weight.shape[-1])
    return len(rows) - int(np.count_nonzero(rows.any(axis=1)))


def lost_rows(weight: Float[np.ndarray, "*experts out in"]) -> int:
    """Return the number of zero rows, 0 below eight or one in twenty.

    Coarse scales have made such files (keys of linear attention).
    """
    zero = zero_rows(weight)
    return zero if zero >= MIN_ROWS and zero * 20 * weight.shape[-1] >= weight.size else 0


def clipped_groups(weight: Float[np.ndarray, "*experts out in"], group: int | None = None) -> int:
    """Return the number of groups with half of their numbers at the largest magnitude.

    Args:
        group: columns of a scale; None for a whole row. An incomplete last group is left out.
    """
    rows = np.abs(weight.astype(np.float32, copy=False)).reshape(-1, weight.shape[-1])
    group = rows.shape[1] if group is None else group
    grouped = rows[:, : rows.shape[1] // group * group].reshape(-1, group)
    magnitude = grouped.max(axis=1, keepdims=True, initial=0)
    clipped = ((grouped == magnitude).mean(axis=1) >= CLIPPED_SHARE) & (magnitude[:, 0] > 0) & (group >= _MIN_GROUP)
    return int(clipped.sum())
