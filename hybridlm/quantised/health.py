"""Signs that quantisation damaged a weight: rows of zeros, and clipped groups."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

CLIPPED_SHARE = 0.5
"""Share of a clipped group's numbers at its largest magnitude."""
MIN_ROWS = 8
"""Fewer zero rows are not lost: single rows can be zero in a good checkpoint."""
_MIN_GROUP = 8


class WeightHealth(NamedTuple):
    """Counts of rows of all experts, zero rows, groups, and clipped groups."""

    rows: int
    zero_rows: int
    groups: int
    clipped_groups: int


def lost_rows(weight: Float[np.ndarray, "*experts out in"]) -> int:
    """Return the number of zero rows if they are many, else 0.

    Many: at least eight and one in twenty. Coarse scales have made such files (keys of linear attention).
    """
    rows = weight.reshape(-1, weight.shape[-1])
    zero = len(rows) - int(np.count_nonzero(rows.any(axis=1)))
    return zero if zero >= MIN_ROWS and zero * 20 >= len(rows) else 0


def weight_health(weight: Float[np.ndarray, "*experts out in"], group: int | None = None) -> WeightHealth:
    """Count rows of zeros and clipped groups.

    Args:
        weight: plain numbers.
        group: columns that share a scale; None for a whole row. An incomplete last group is left out.
    """
    rows = np.abs(weight.astype(np.float32, copy=False)).reshape(-1, weight.shape[-1])
    zero = int((~rows.any(axis=1)).sum())
    group = rows.shape[1] if group is None else group
    grouped = rows[:, : rows.shape[1] // group * group].reshape(-1, group)
    magnitude = grouped.max(axis=1, keepdims=True, initial=0)
    clipped = ((grouped == magnitude).mean(axis=1) >= CLIPPED_SHARE) & (magnitude[:, 0] > 0) & (group >= _MIN_GROUP)
    return WeightHealth(len(rows), zero, len(grouped), int(clipped.sum()))
