"""The check of numbers that leave the engine: all are finite."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridlm.errors import NumericalError


def first_not_finite(arrays: Sequence[Any]) -> int | None:
    """Return the first position with NaN or infinity; None if all numbers are finite.

    Args:
        arrays: floats, [position, ..] each; None is skipped.
    """
    present = [np.isfinite(array) for array in arrays if array is not None]
    places = [np.flatnonzero(~finite.all(axis=tuple(range(1, finite.ndim)))) for finite in present]
    return min((int(place[0]) for place in places if place.size), default=None)


def require_finite(wrong: Mapping[int, int], item: Callable[[int], str]) -> None:
    """Raise NumericalError if an item has numbers that are not finite.

    Args:
        wrong: number of such an item -> index of its first such token.
        item: number of an item -> its name in messages.
    """
    for number, token in sorted(wrong.items()):
        raise NumericalError(item(number), token)
