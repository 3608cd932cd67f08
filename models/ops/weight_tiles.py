"""Tiles of weights inside of kernels for GPUs: parts of plain arrays, or of codes and scales.

A packed weight is a pytree of arrays that have an entry of a row for one column, for two of them, or for a group; the
same places cut out of each of them are a weight of their own.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from models.ops.kernel_products import MIN_ROWS


def unsupported_weight(weight: Any) -> str | None:
    """Say why a kernel does not take tiles of a weight `[..., out, in]`, plain or packed; None if it does."""
    if not getattr(weight, "tiles", True):
        return f"a weight of {type(weight).__name__}"
    if weight.shape[-1] % MIN_ROWS or turn_terms([weight], MIN_ROWS) < MIN_ROWS:
        stored = sorted({one.shape[-1] for one in jax.tree.leaves(weight)})
        return f"rows of {weight.shape[-1]} in arrays of {stored}: expected groups of multiples of {MIN_ROWS}"
    return None


def turn_terms(weights: Any, most: int) -> int:
    """Return how many numbers of a row one iteration of a kernel's loop multiplies: whole groups, or a part of one.

    Args:
        weights: with rows of equal lengths.
        most: the largest result, a power of two.
    """
    inputs = weights[0].shape[-1]
    terms = min(_power_in(inputs), most)
    for one in jax.tree.leaves(weights):
        group = -(-inputs // one.shape[-1])
        terms = terms if terms % group == 0 else min(terms, _power_in(group))
    return terms


def turn_span(stored: int, inputs: int, terms: int, turn: Any) -> tuple[Any, int]:
    """Return the first entry of a row that one iteration reads, and how many.

    Args:
        stored: entries of a row.
        inputs: numbers of a row.
        terms: numbers that an iteration multiplies, by `turn_terms`.
        turn: number of the iteration.
    """
    group = inputs // stored
    if terms >= group:
        return turn * (terms // group), terms // group
    return lax.div(turn, jnp.int32(group // terms)), 1


def numbers_of(tile: Any) -> Float[Array, "column term"]:
    """Return the numbers of a tile of a weight, plain or packed, in its dtype."""
    return tile.astype(tile.dtype)


def _power_in(size: int) -> int:
    return size & -size
