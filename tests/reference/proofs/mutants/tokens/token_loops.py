"""Loops over tokens that reach another lane, leak state to the next lane, or padding."""

from typing import Any

import jax.numpy as jnp
from mutants.mutant import Kind, mutants_of
from zoo.program import LANES
from zoo.tokens.token_loops import begun_anew, rows_of_a_pool, rows_of_lanes, rows_under_a_condition, total_at_padding
from zoo.tokens.token_neighbours import index, start, stop
from zoo.tokens.token_sums import TOKENS

BAD = (Kind.CROSS_LANE, Kind.UNKNOWN, Kind.WRONG_ROW, Kind.CONTROL, Kind.FRAME)


def _of(base: str, prefix: str) -> Any:
    return mutants_of(f"token loops: {base}", *BAD, prefix=f"token-loop-{prefix}-", source="vLLM")


_lanes, _pool, _state, _total, _guarded = map(
    _of,
    ("rows of lanes", "rows of a pool", "a state begun anew", "a sum at padding", "rows under a condition"),
    ("lane", "pool", "state", "sum", "guarded"),
)


def _last(ids: Any, t: Any) -> Any:
    return jnp.minimum(ids[t], LANES - 1)


MUTANTS = (
    _lanes("next-id", "the lane of the next token", rows_of_lanes(lambda ids, t: ids[jnp.minimum(t + 1, TOKENS - 1)])),
    _lanes("by-token", "the number of the token for its lane", rows_of_lanes(lambda ids, t: jnp.minimum(t, LANES - 1))),
    _lanes("one-row", "one row for all lanes", rows_of_lanes(lambda ids, t: 0 * t)),
    _lanes("padding", "padding writes to the last lane", rows_of_lanes(_last, lambda cu: TOKENS)),
    _lanes("one-more", "the token after the last", rows_of_lanes(_last, lambda cu: jnp.minimum(cu[-1] + 1, TOKENS))),
    _pool("next-lane", "the row of the next lane", rows_of_a_pool(lambda slots, ids, t: slots[(ids[t] + 1) % LANES])),
    _pool("padding", "padding writes to the row of the last lane",
          rows_of_a_pool(lambda slots, ids, t: slots[_last(ids, t)], lambda cu: TOKENS)),
    _pool("one-more", "the token after the last",
          rows_of_a_pool(lambda slots, ids, t: slots[_last(ids, t)], lambda cu: jnp.minimum(cu[-1] + 1, TOKENS))),
    _pool("by-token", "a slot by the number of the token",
          rows_of_a_pool(lambda slots, ids, t: slots[jnp.minimum(t, LANES - 1)])),
    _state("none", "no reset", begun_anew(lambda cu: index() < 0)),
    _state("late", "a reset one token late", begun_anew(lambda cu: index() == start(cu) + 1)),
    _state("last", "a reset at the last token", begun_anew(lambda cu: index() == stop(cu) - 1)),
    _state("exchanged", "the cases are exchanged", begun_anew(exchanged=True)),
    _state("two", "every second token", begun_anew(by=2)),
    _guarded("always", "padding writes to the last lane", rows_under_a_condition(lambda t, cu: t >= 0)),
    _guarded("one-more", "the token after the last", rows_under_a_condition(lambda t, cu: t <= cu[-1])),
    _guarded("exchanged", "padding writes, and real tokens do not", rows_under_a_condition(exchanged=True)),
    _guarded("next-lane", "the row of the next lane", rows_under_a_condition(lane=lambda i: (i + 1) % LANES)),
    _guarded("of-lanes", "the number of lanes for that of tokens", rows_under_a_condition(lambda t, cu: t >= cu[0])),
    _total("past", "clamped slices past the last token", total_at_padding(TOKENS + 1)),
    _total("early", "the last token is taken for padding", total_at_padding(is_real=lambda t, cu: t < cu[-1] - 1)),
    _total("not", "the cases are exchanged", total_at_padding(is_real=lambda t, cu: t >= cu[-1])),
)  # fmt: skip
