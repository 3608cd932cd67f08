"""Mutable arrays that carry values from lane to lane, or reach rows of other lanes."""

import jax
import jax.numpy as jnp
from jax import lax
from mutants.mutant import Kind, mutants_of
from zoo.mutable_arrays import looped, recurrence, row_by_row, rows, scanned
from zoo.program import HIDDEN, LANES
from zoo.tokens.token_neighbours import index, start

BAD = (Kind.CROSS_LANE, Kind.UNKNOWN, Kind.WRONG_ROW, Kind.CONTROL, Kind.FRAME, Kind.CONSTANT)


_lane, _row, _token = (
    mutants_of(f"mutable arrays: {name}", *BAD, prefix="mutable-")
    for name in ("a loop over lanes", "rows", "packed tokens")
)


def _sum(x, y):
    total = jax.new_ref(jnp.zeros(HIDDEN))
    for lane in range(LANES):
        total[...] += x[lane]
    return y + total[...][None]


def _read_too_early(x, y):
    """The previous lane's row is read because this lane writes later."""
    state = jax.new_ref(x[0])
    out = []
    for lane in range(LANES):
        out.append(state[...] + y[lane])
        state[...] = x[lane]
    return jnp.stack(out)


def _by_value(x, y):
    state = jax.new_ref(x)
    lax.cond(x[0, 0] > 0, lambda: state.addupdate(y), lambda: None)
    return state[...]


def _rolled(x, y):
    state = jax.new_ref(x)
    state[1:] = state[:-1]
    return state[...] + y


def _alias(x, y):
    """The array is written after its returned copy was made, and read again."""
    state = jax.new_ref(x)
    first = state[...]
    state[...] = first[::-1]
    return first + state[...] * y


MUTANTS = (
    _lane("next", "the next lane's row", looped(lambda i: (i + 1) % LANES)),
    _lane("first", "the first lane's row", looped(lambda i: 0 * i)),
    _lane("carried", "no reset between lanes", scanned(resets=False)),
    _lane("sum", "a sum over lanes", _sum),
    _lane("early", "the content of the lane before", _read_too_early),
    _lane("branch", "one lane decides for all", _by_value),
    _lane("rolled", "lanes move by one", _rolled),
    _lane("alias", "a second version in the reverse order", _alias),
    _row("read-other", "rows of other lanes are read", rows(read=lambda slots: slots[::-1])),
    _row("write-other", "rows of other lanes are written", rows(write=lambda slots: slots[::-1])),
    _row("write-lane", "rows by lane", rows(write=lambda slots: jnp.arange(LANES))),
    _row("row-next", "the row of the next lane", row_by_row(lambda lane: (lane + 1) % LANES)),
    _token("no-reset", "no reset", recurrence(lambda cu: index() < 0)),
    _token("late-reset", "a reset one token late", recurrence(lambda cu: index() == start(cu) + 1)),
)
