"""Check that results are finite."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridlm.errors import NumericalError


def first_not_finite(arrays: Sequence[Any]) -> int | None:
    """Return the first position with NaN or infinity in arrays [position, ..]."""
    masks = [np.isfinite(array) for array in arrays if array is not None]
    positions = [np.flatnonzero(~mask.all(axis=tuple(range(1, mask.ndim)))) for mask in masks]
    return min((int(indices[0]) for indices in positions if indices.size), default=None)


def require_finite(wrong: Mapping[int, int], item: Callable[[int], str]) -> None:
    """Raise NumericalError for the first item of `wrong`, by index of its bad token."""
    for number, token in sorted(wrong.items()):
        raise NumericalError(item(number), token)
