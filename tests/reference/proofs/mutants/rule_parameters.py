"""Parameters that contradict shapes: transposing reshapes."""

from typing import Any

from jax import Array, lax
from mutants.mutant import Evidence, Kind, mutants_of, wrong
from zoo import rows
from zoo.program import LANES

PLAIN = "rows behind a slot map"


def _before(change: Any) -> Any:
    """The plain step on changed inputs of its lanes."""

    step = lambda pool, slots, x, w: rows.plain_step(pool, slots, change(x), w)
    return step


def state_in_fortran_order(pool, slots, x, w):
    """The new rows are read in Fortran's order and laid out in C's."""
    y, new = rows.plain_step(pool, slots, x, w)
    state = new[slots]
    return y, new.at[slots].set(state.ravel(order="F").reshape(state.shape))


def _transposed(x: Array) -> Array:
    return x.at[:, :LANES].set(lax.reshape(x[:, :LANES], (LANES, LANES), dimensions=(1, 0)))


_wrong = mutants_of(PLAIN, Kind.CROSS_LANE)
MUTANTS = (
    wrong(
        PLAIN,
        "uninitialized-memory",
        "JAX",
        "lax.empty holds what was in a GPU's memory",
        _before(lambda x: lax.empty(x.shape, x.dtype)),
        Kind.UNINITIALIZED,
        evidence=Evidence.TRACED,
    ),
    _wrong("state-in-fortran-order", "new rows go through ravel(order='F')", state_in_fortran_order),
    _wrong("transposed-by-reshape", "a square of lanes is transposed by reshape's dimensions", _before(_transposed)),
)
