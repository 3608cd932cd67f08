"""Tokens of other lanes through windows, lengths, infinities, and index loops."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from mutants.mutant import Kind, Mutant, wrong
from zoo.program import LANES
from zoo.tokens.token_indices import (
    WIDTH,
    attention,
    by_position,
    carried,
    clipped,
    counted,
    each_index,
    from_start,
    padded,
    places,
    real_row,
    resetting,
    stacked,
    windows,
)
from zoo.tokens.token_neighbours import index, start

BAD = (Kind.CROSS_LANE, Kind.WRONG_ROW)


def _mutant(base: str, id: str, description: str, step: Any) -> Mutant:
    return wrong(base, id, "vLLM", description, step, *BAD)


def _window(id: str, description: str, mask: Any, gathered: Any = clipped) -> Mutant:
    return _mutant("token gathers: clipped", f"token-gather-{id}", description, windows(mask, gathered))


def _length(id: str, description: str, token: Any) -> Mutant:
    return _mutant("token lengths: starts and lengths", f"token-length-{id}", description, lambda x, cu: x[token(cu)])


MUTANTS = (
    _window("all", "no mask but the first token", lambda cu: places() >= 0),
    _window("early", "one token before the start", lambda cu: places() >= start(cu)[:, None] - 1),
    _window("ahead", "windows of later tokens", from_start, lambda x: x[jnp.minimum(places() + 1, index()[-1])]),
    _window("wide", "every second token", from_start, lambda x: x[jnp.maximum(2 * places() - index()[:, None], 0)]),
    _window("padded", "more rows in front than the index counts", from_start,
            lambda x: padded(jnp.pad(x, ((1, 0), (0, 0)))[:-1])),
    _window("position", "a position more",
            lambda cu: by_position(cu - (index()[: LANES + 1] > 0).astype(jnp.int32)), clipped),
    _window("flipped", "the rows of a window in the opposite order", lambda cu: by_position(cu)[:, ::-1]),
    _window("stacked", "a token more for each row",
            lambda cu: (index() - start(cu))[:, None] + 1 >= jnp.arange(WIDTH)[None], stacked),
    _length("next", "the next lane's first token", lambda cu: jnp.minimum(cu[:-1] + jnp.diff(cu), index()[-1])),
    _length("lengths", "lengths without starts", lambda cu: jnp.diff(cu) - 1),
    _length("twice", "ends and lengths", lambda cu: jnp.minimum(cu[1:] + jnp.diff(cu) - 1, index()[-1])),
    _length("reverse", "lengths summed from the last lane", lambda cu: lax.cumsum(jnp.diff(cu), reverse=True) - 1),
    _mutant("token lengths: one by one", "token-length-list", "first tokens of the lanes behind",
            lambda x, cu: jnp.stack([x[jnp.minimum(cu[lane + 1], index()[-1])] for lane in range(LANES)])),
    _mutant("token lengths: starts and lengths", "token-length-fewer", "last tokens clamped to fewer tokens",
            lambda x, cu: x[:-4].at[cu[1:] - 1].get(mode="clip")),
    _mutant("token lengths: starts and lengths", "token-length-first-of-fewer", "first tokens clamped to fewer tokens",
            lambda x, cu: x[:-4].at[cu[:-1]].get(mode="clip")),
    _mutant("token finite: nan_to_num", "token-finite-infinity", "infinity stays",
            attention(lambda x: jnp.nan_to_num(x, posinf=jnp.inf))),
    _mutant("token finite: nan_to_num", "token-finite-nan", "infinities become nan",
            attention(lambda x: jnp.where(jnp.isinf(x), jnp.nan, jnp.where(jnp.isnan(x), 0.0, x)))),
    _mutant("token finite: nan_to_num", "token-finite-greatest", "tokens are the limit, not the limited numbers",
            attention(lambda x: jnp.nan_to_num(lax.clamp(0.0, jnp.full_like(x, 3.0), x), neginf=-jnp.inf))),
    _mutant("token branch: reset", "token-branch-swapped", "the state is reset everywhere else",
            resetting(lambda first, state: lax.cond(first, lambda s: s, lambda s: 0.0 * jnp.ones_like(s), state))),
    _mutant("token branch: reset", "token-branch-multiplied", "zero times nan is nan",
            resetting(lambda first, state: lax.cond(first, lambda s: 0.0 * s, lambda s: s, state))),
    _mutant("token index: all", "token-index-padding", "padding writes the last lane's row",
            counted(lambda cu: index().size, lambda t, row, tokens: row)),
    _mutant("token index: all", "token-index-late", "one token of padding writes",
            counted(lambda cu: index().size, lambda t, row, tokens: jnp.where(t <= tokens, row, 9))),
    _mutant("token index: all", "token-index-next", "the flag of the token before",
            counted(lambda cu: index().size, lambda t, row, tokens: real_row(t - 1, row, tokens))),
    _mutant("token index: carried", "token-index-reset", "a reset one token late",
            carried(lambda cu: index() == start(cu) + 1)),
    _mutant("token index: lanes", "token-index-decides", "a token decides about the row of a lane",
            each_index(lambda x, row: x, lambda x, row: row)),
    _mutant("token index: lanes", "token-index-stacked", "a token at the index of a lane",
            each_index(lambda x, row: row, lambda x, row: x)),
)  # fmt: skip
