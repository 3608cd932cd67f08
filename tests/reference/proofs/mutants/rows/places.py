"""Sorted rows that return by place-dependent shared numbers or writes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from mutants.mutant import Kind, mutants_of
from zoo.experts import EXPERTS, TOP, grouped, mixture, ordered
from zoo.program import HIDDEN, LANES

SORTED = "sorted experts, argsort of argsort"
PLACES = LANES * TOP


def _scaled(numbers: Callable[[], Array]) -> Any:
    """Rows times a number for their place."""
    return ordered(lambda rows, order: rows * numbers().astype(jnp.float32)[:, None])


_marked = lambda: jnp.ones(PLACES).at[0].set(2.0)
_put_together = lambda: jnp.concatenate([jnp.full(1, float(place)) for place in range(PLACES)])
_windows = lambda: lax.reduce_window(jnp.ones(PLACES), 0.0, lax.add, (3,), (1,), "SAME")
_random_bits = lambda: jax.random.bits(jax.random.key(0), (PLACES,)) % 7


def _sorted_beside(rows: Array, _: Array) -> Array:
    """Numbers of the places ride along in a sort inside each row."""
    places = jnp.broadcast_to(jnp.arange(float(PLACES))[:, None], rows.shape)
    return rows + lax.sort((rows, places), dimension=1, num_keys=1)[1]


def _at_two_indices(rows: Array, order: Array) -> Array:
    """Each row returns to its lane, in a column by its place."""
    return rows + jnp.zeros_like(rows).at[order, jnp.arange(PLACES) % HIDDEN].set(rows[:, 0])[order]


def _at_two_orders(rows: Array, order: Array) -> Array:
    """The same with a column by another permutation."""
    other = jnp.argsort(-rows[:, 0])
    target = jnp.zeros((PLACES, PLACES)).at[order, other].set(rows[:, 0])
    return rows + target.sum(1, where=jnp.arange(PLACES) < 3)[order][:, None]


def _own_row_of_order(rows: Array, order: Array) -> Array:
    """A lane's ordered numbers go to its row at sorted columns."""
    row = jnp.zeros_like(rows).at[order].set(rows)[:, 0]
    target = jnp.zeros((PLACES, PLACES)).at[jnp.arange(PLACES), order].set(row)
    return rows + (target @ jnp.arange(float(PLACES)))[order][:, None]


def _lanes_beside_the_order(rows: Array, order: Array) -> Array:
    """Lanes are along one axis, and the order picks along another."""
    row = jnp.zeros_like(rows).at[order].set(rows)[:, 0]
    target = jnp.zeros((PLACES, PLACES)).at[order].set(jnp.arange(float(PLACES))[:, None] * row[None])
    return rows + target[0][order][:, None]


def _cleared_by_place(rows: Array, _: Array) -> Array:
    """Rows are along the second axis; in each, the number at another index is cleared."""
    columns = jnp.arange(PLACES)[:, None] % HIDDEN
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,), (1,), (0,))
    return lax.scatter(rows.T, columns, jnp.zeros(PLACES), numbers).T


def _overwritten_by_place(rows: Array, _: Array) -> Array:
    """The same number for every index that is written, another one for each place."""
    numbers = lax.ScatterDimensionNumbers((0,), (0,), (0,))
    places = jnp.broadcast_to(jnp.arange(float(PLACES))[:, None], (PLACES, 2))
    return lax.scatter(rows.T, jnp.array([[0], [2]]), places, numbers).T


def _clamped_order(rows: Array, order: Array) -> Array:
    """A short count is read in row order: the index clamps."""
    target = jnp.zeros_like(rows).at[order].set(rows)
    return target[jnp.arange(PLACES - TOP, dtype=jnp.int32).at[order].get(mode="clip")]


@mixture
def _count_of_wrapped_keys(w, x, chosen, expert):
    """Rows sort by 8-bit squares and count by 32-bit squares."""
    narrow = (expert.reshape(-1) + 13).astype(jnp.uint8)
    wide = narrow.astype(jnp.int32)
    order = jnp.argsort(lax.clamp(0, (narrow * narrow).astype(jnp.int32) - 168, EXPERTS - 1))
    sizes = jnp.bincount(lax.clamp(0, wide * wide - 168, EXPERTS - 1), length=EXPERTS).astype(jnp.int32)
    y = grouped(w, x[order // TOP], sizes)[jnp.argsort(order)].reshape(-1, TOP, HIDDEN)
    return x + jnp.einsum("nkd,nk->nd", y, chosen)


_told = mutants_of(SORTED, Kind.CROSS_LANE)
MUTANTS = (
    _told("place-by-running-sum", "rows are scaled by a running sum of ones",
          _scaled(lambda: jnp.ones(PLACES).cumsum())),
    _told("place-marked", "the number of one place is another", _scaled(_marked)),
    _told("places-put-together", "numbers of the places are concatenated", _scaled(_put_together)),
    _told("place-by-top-k", "where a top_k of equal numbers has found them",
          _scaled(lambda: lax.top_k(jnp.ones(PLACES), PLACES)[1])),
    _told("place-by-windows", "sums of windows of ones: fewer at the ends", _scaled(_windows)),
    _told("place-by-random-bits", "random bits of one key for all places", _scaled(_random_bits)),
    _told("place-padded", "a number padded to all places", _scaled(lambda: jnp.pad(jnp.ones(1), (0, PLACES - 1)))),
    _told("first-place-cleared", "the row at the first place is cleared", ordered(lambda rows, _: rows.at[0].set(0.0))),
    _told("first-place-raised", "a number is added to the row at the first place",
          ordered(lambda rows, _: rows.at[0].add(1.0))),
    _told("place-beside-a-sort", "numbers of the places are sorted beside each row", ordered(_sorted_beside)),
    _told("place-in-a-column", "a row goes to its lane, in a column by its place", ordered(_at_two_indices)),
    _told("place-in-another-order", "the same with a column by another permutation", ordered(_at_two_orders)),
    _told("own-row-of-the-order", "own row, in a column by the order", ordered(_own_row_of_order)),
    _told("lanes-beside-the-order", "written along one axis by an order of another", ordered(_lanes_beside_the_order)),
    _told("cleared-by-place", "each row is cleared at an index by its place", ordered(_cleared_by_place)),
    _told("overwritten-by-place", "each row is overwritten by a number of its place", ordered(_overwritten_by_place)),
    _told("clamped-order", "a permutation as index into fewer numbers is clamped", ordered(_clamped_order)),
    _told("wrapped-keys", "rows sorted by keys that wrap, groups counted by keys that do not", _count_of_wrapped_keys),
)  # fmt: skip
