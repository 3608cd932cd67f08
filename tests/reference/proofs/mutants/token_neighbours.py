"""Tokens that meet other lanes: wrong ids, crossing windows, stale states."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from mutants.mutant import Kind, mutants_of, wrong
from zoo.program import HIDDEN, LANES
from zoo.tokens.token_neighbours import (
    TOKENS,
    at_position,
    attention,
    behind_zeros,
    changed,
    ends_passed,
    gathering,
    index,
    padded,
    recurrence,
    same,
    start,
    starts_passed,
    stop,
    window,
)

BAD = (Kind.CROSS_LANE, Kind.UNKNOWN)


def _ids(id: str, description: str, ids: Any) -> Any:
    return wrong("token ids: ends passed", f"token-ids-{id}", "vLLM", description, gathering(ids), *BAD)


def _window(id: str, description: str, mask: Any, shifted: Any) -> Any:
    base = "token windows: padded in front"
    return wrong(base, f"token-window-{id}", "vLLM", description, window(mask, shifted), *BAD)


_recurrence = mutants_of("token recurrence: at starts", *BAD, prefix="token-recurrence-", source="vLLM")
_multiplied = lambda x, cu: x + (index() > start(cu))[:, None].astype(x.dtype) * padded(1)(x)
_first_of_next = lambda x, cu, rows: (x, x[jnp.clip(cu[1:], 0, TOKENS - 1)] + rows)


def _last_state(x, cu):
    def token(state, now):
        x, first = now
        new = jnp.tanh(0.5 * jnp.where(first, 0.0, state) + x)
        return new, new

    state, y = lax.scan(token, jnp.zeros(HIDDEN), (x, index() == start(cu)))
    return y + state[None]


def _two_back(x, cu):
    """Reset the state, and carry the state before that on."""

    def token(states, now):
        x, first = now
        state, initial = states
        return (jnp.tanh(jnp.where(first, 0.0, state) + x), state), x + jnp.where(first, 0.0, initial)

    return lax.scan(token, (jnp.zeros(HIDDEN), jnp.zeros(HIDDEN)), (x, index() == start(cu)))[1]


def _mixed_ids(x, cu):
    ids = jnp.where((index() < cu[-1]) & (index() % 2 == 0), ends_passed(cu), LANES)
    mask = ids[:, None] == ids[None]
    return jnp.where(mask[..., None], x[None], 0.0).sum(1)


_MARKS = (
    _recurrence("no-first", "the start of lane 1 is no start",
                recurrence(lambda cu: jnp.isin(index(), cu[jnp.array([0, 2, 3])]))),
    _recurrence("next-any", "the token after each start",
                recurrence(lambda cu: (index()[:, None] == cu[None] + 1).any(1))),
    _recurrence("all-starts", "at the start of all lanes at once",
                recurrence(lambda cu: (index()[:, None] == cu[None]).all(1))),
    _recurrence("not-start", "where no lane starts", recurrence(lambda cu: (index()[:, None] != cu[None]).all(1))),
    _recurrence("marks-late", "marks one token late",
                recurrence(lambda cu: jnp.zeros(TOKENS, bool).at[cu[:-1] + 1].set(True))),
    _recurrence("marks-two", "marks of the first two lanes",
                recurrence(lambda cu: jnp.zeros(TOKENS, bool).at[cu[:2]].set(True))),
    _recurrence("marks-cleared", "marks cleared and not inverted",
                recurrence(lambda cu: jnp.ones(TOKENS, bool).at[cu[:-1]].set(False))),
    _recurrence("position-1", "at the second token", at_position(lambda position: position == 1)),
    _recurrence("position-even", "at every second token", at_position(lambda position: position == 2)),
)  # fmt: skip
_inner = lambda cu: jnp.cumsum(jnp.zeros(TOKENS, jnp.int32).at[cu[1:-1] - 1].add(1))  # noqa: E731
MUTANTS = (
    *_MARKS,
    _ids("left", "the wrong side of a search", lambda cu: jnp.searchsorted(cu[1:], index(), side="left")),
    _ids("greater", "first tokens of the lane before", lambda cu: (index()[:, None] > cu[None, 1:]).sum(1)),
    _ids("no-minus", "counted from one", lambda cu: jnp.clip((index()[:, None] >= cu[None]).sum(1), 0, LANES - 1)),
    _ids("two-ends", "the first lane's end is left out", lambda cu: (index()[:, None] >= cu[None, 2:]).sum(1)),
    _ids("marks", "marks one token early", _inner),
    _ids("rolled", "the id of the token before", lambda cu: jnp.roll(ends_passed(cu), 1)),
    _ids("added", "the next lane", lambda cu: jnp.minimum(ends_passed(cu) + 1, LANES - 1)),
    wrong("token ids: ends passed", "token-ids-last", "vLLM", "the next lane's first token", _first_of_next, *BAD),
    _window("short", "the mask is one token too long", lambda cu: index() - 1 >= start(cu), padded(2)),
    _window("flipped", "the mask is negated", lambda cu: index() - 2 < start(cu), padded(2)),
    _window("stop", "the end of the lane for its start", lambda cu: index() - 2 < stop(cu), behind_zeros(2)),
    _window("ahead", "the mask of earlier tokens for later ones", lambda cu: index() - 1 >= start(cu),
            lambda x: jnp.roll(x, -1, axis=0)),
    _window("gathered", "a gather two tokens back", lambda cu: index() - 1 >= start(cu),
            lambda x: x[jnp.maximum(index() - 2, 0)]),
    _window("before", "the start of the lane before",
            lambda cu: index() - 1 >= cu[jnp.maximum(starts_passed(cu) - 1, 0)], padded(1)),
    _window("or", "one of two masks", lambda cu: (index() > start(cu)) | (index() < cu[-1]), padded(1)),
    _window("late", "the mask of the token behind",
            lambda cu: ~jnp.concatenate([changed(ends_passed(cu))[1:], jnp.zeros(1, bool)]), padded(1)),
    wrong("token windows: padded in front", "token-window-multiplied", "vLLM", "zero times nan is nan", _multiplied,
          *BAD),
    _window("even", "some tokens that are not padding count as padding",
            lambda cu: (index() >= cu[-1]) | (index() % 2 == 0), lambda x: jnp.roll(x, 1, axis=0)),
    _window("early", "the last tokens count as padding", lambda cu: index() + 2 >= cu[-1],
            lambda x: jnp.roll(x, 1, axis=0)),
    wrong("token windows: padded in front", "token-window-ids", "vLLM", "some tokens have the number of lanes as id",
          _mixed_ids, *BAD),
    _recurrence("none", "no reset", recurrence(lambda cu: index() < 0)),
    _recurrence("first", "a reset at the first lane only", recurrence(lambda cu: index() == 0)),
    _recurrence("late", "a reset one token late", recurrence(lambda cu: index() == start(cu) + 1)),
    _recurrence("last", "a reset at the last token", recurrence(lambda cu: index() == stop(cu) - 1)),
    _recurrence("reverse", "in reverse, a reset at the first token", recurrence(lambda cu: index() == start(cu), True)),
    _recurrence("padding", "a reset at padding only", recurrence(lambda cu: index() >= cu[-1])),
    _recurrence("kept", "a reset everywhere else", recurrence(lambda cu: index() != start(cu), masked=True)),
    _recurrence("state", "the state of the last token, used by all", _last_state),
    _recurrence("two-back", "the state before the last is not reset", _two_back),
    wrong("token attention, finite mask", "token-attention-small", "vLLM", "weights outside of the lane are small",
          attention(same(starts_passed), -3.0, remasked=False), *BAD),
    wrong("token attention, finite mask", "token-attention-causal", "vLLM", "earlier tokens of all lanes",
          attention(lambda cu: index()[:, None] >= index()[None], -3.0), *BAD),
    wrong("token attention, finite mask", "token-attention-padding", "vLLM", "padding is of the last lane",
          attention(same(starts_passed, False), -3.0), *BAD),
    wrong("token attention, finite mask", "token-attention-later", "vLLM", "later tokens, padding too",
          attention(lambda cu: same(starts_passed, False)(cu) & (index()[:, None] <= index()[None]), -3.0), *BAD),
)  # fmt: skip
