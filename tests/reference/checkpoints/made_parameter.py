"""A whole parameter, built from a checkpoint's tensors by its `WeightSource`."""

from collections.abc import Mapping

import numpy as np

from models.weights.sources import WeightSource


def made(source: WeightSource, shape: tuple[int, ...], tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Build a parameter in the first tensor's dtype, writing every entry once."""
    result = np.empty(shape, tensors[next(iter(source.shapes))].dtype)
    written = np.zeros(shape, int)
    for piece in source.pieces((), shape):
        place = (*piece.place, ...)
        output = source.take(tensors[piece.name], piece.taken)
        assert output.shape == result[place].shape, piece
        result[place] = output
        written[place] += 1
    assert (written == 1).all()
    return result
