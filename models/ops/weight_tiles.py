"""Tiles of plain or packed weights inside GPU kernels.

Equal parts of a packed weight's arrays form a weight again.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from models.ops.kernel_products import MIN_ROWS


def supports_weight(weight: Any) -> bool:
    """Return whether kernels can multiply tiles of a weight `[..., out, in]`."""
    if not getattr(weight, "tiles", True) or weight.shape[-1] % MIN_ROWS:
        return False
    return turn_terms([weight], MIN_ROWS) >= MIN_ROWS


def turn_terms(weights: Any, limit: int) -> int:
    """Return a row's numbers per iteration, at most `limit`: whole groups or a part."""
    inputs = weights[0].shape[-1]
    terms = min(_power_in(inputs), limit)
    for array in jax.tree.leaves(weights):
        group = -(-inputs // array.shape[-1])
        terms = terms if terms % group == 0 else min(terms, _power_in(group))
    return terms


def turn_span(stored: int, inputs: int, terms: int, turn: Any) -> tuple[Any, int]:
    """Return first entry and number of entries of a row for an iteration."""
    group = inputs // stored
    if terms >= group:
        return turn * (terms // group), terms // group
    return lax.div(turn, jnp.int32(group // terms)), 1


def numbers_of(tile: Any) -> Float[Array, "column term"]:
    return tile.astype(tile.dtype)


def _power_in(size: int) -> int:
    return size & -size
