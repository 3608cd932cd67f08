"""Places limited to another lane, ids that rise elsewhere, added padding, other multiples."""

from typing import Any

import jax.numpy as jnp
from mutants.mutant import Kind, wrong
from zoo.program import LANES
from zoo.tokens.token_limits import WIDTH, around, at, counted, earlier, rises, strided, with_padding
from zoo.tokens.token_neighbours import (
    TOKENS,
    ends_passed,
    index,
    padded,
    recurrence,
    start,
    starts_passed,
    stop,
    window,
)
from zoo.tokens.token_tiles import TWO, draw_two

BAD = (Kind.CROSS_LANE, Kind.UNKNOWN, Kind.WRONG_ROW)


def _of(base: str, prefix: str) -> Any:
    return lambda id, description, step: wrong(base, f"token-{prefix}-{id}", "vLLM", description, step, *BAD)


_before, _after, _both, _window, _risen, _padding, _strided = map(
    _of,
    ("token limits: the token before", "token limits: the token after", "token limits: both bounds",
     "token limits: a window", "token rises: risen", "token ids: padding in lane 0",
     "token gathers: by two"),
    ("limit", "limit-after", "limit-both", "limit-window", "rises", "ids-padding", "gather-by-two"),
)  # fmt: skip


def _behind(ids: Any, count: int = 1) -> Any:
    return jnp.concatenate([jnp.full(count, -1), ids])


def _of_another_layout(x, cu, keys, cu_keys):
    lane = starts_passed(cu)
    return keys + keys[jnp.clip(index(), cu[lane], cu[lane + 1] - 1)]


MUTANTS = (
    _before("earlier", "one token before the start", at(lambda cu: jnp.maximum(index() - 1, start(cu) - 1))),
    _before("least", "the minimum for the maximum", at(lambda cu: jnp.minimum(index(), start(cu) - 1))),
    _before("stop", "the end of the lane for its start",
            at(lambda cu: jnp.minimum(jnp.maximum(index() - 1, stop(cu)), TOKENS - 1))),
    _before("of-before", "the start of the lane before",
            at(lambda cu: jnp.maximum(index() - 1, cu[jnp.maximum(starts_passed(cu) - 1, 0)]))),
    _before("after", "the token after", at(lambda cu: jnp.minimum(jnp.maximum(index() + 1, start(cu)), TOKENS - 1))),
    _before("first", "the first token of all", at(lambda cu: jnp.maximum(index() - 1, cu[0]))),
    _before("then", "a limit, and the token before that",
            at(lambda cu: jnp.maximum(jnp.maximum(index() - 1, start(cu)) - 1, 0))),
    _after("end", "the token at the end", at(lambda cu: jnp.minimum(jnp.minimum(index() + 2, stop(cu)), TOKENS - 1))),
    _after("before", "two tokens before", at(lambda cu: jnp.maximum(jnp.minimum(index() - 2, stop(cu) - 1), 0))),
    _after("next", "the end of the next lane",
           at(lambda cu: jnp.minimum(index() + 2, cu[jnp.minimum(starts_passed(cu) + 2, LANES)] - 1))),
    _both("start", "one place before the start",
          at(lambda cu: jnp.maximum(jnp.clip(around(), start(cu)[:, None] - 1, stop(cu)[:, None] - 1), 0))),
    _both("exchanged", "first below the end, then the end of all",
          at(lambda cu: jnp.clip(around(), start(cu)[:, None], cu[-1] - 1))),
    _both("greatest", "the greater of limit and end",
          at(lambda cu: jnp.minimum(jnp.maximum(jnp.maximum(index() - 1, start(cu)), stop(cu)), TOKENS - 1))),
    _window("wide", "the start, less the place in the window",
            at(lambda cu: jnp.maximum(jnp.maximum(earlier(), start(cu)[:, None] - jnp.arange(WIDTH)[None]), 0))),
    _window("ahead", "later tokens", at(lambda cu: jnp.minimum(
        jnp.maximum(2 * index()[:, None] - earlier(), start(cu)[:, None]), TOKENS - 1))),
    wrong("token limits: both bounds", "token-limit-layout", "vLLM", "the bounds of another layout", _of_another_layout,
          *BAD, contract=TWO, draw=draw_two),
    _risen("twice", "ids that rise by two", recurrence(lambda cu: rises(ends_passed(cu)) > 1)),
    _risen("falls", "ids that fall", recurrence(lambda cu: rises(ends_passed(cu)) < 0)),
    _risen("equal", "ids that do not rise", recurrence(lambda cu: rises(ends_passed(cu)) <= 0)),
    _risen("late", "ids that rose one token before", recurrence(lambda cu: jnp.roll(rises(ends_passed(cu)) > 0, 1))),
    _risen("ahead", "ids that rise at the next token",
           recurrence(lambda cu: jnp.diff(ends_passed(cu), append=LANES + 1) > 0)),
    _risen("below", "a token before the first that is above all lanes",
           window(lambda cu: rises(ends_passed(cu), 2 * LANES) <= 0, lambda x: jnp.roll(x, 1, axis=0))),
    _risen("two", "the token before the last", window(lambda cu: rises(ends_passed(cu)) <= 0, padded(2))),
    _risen("of-two", "the parity of ids", recurrence(lambda cu: rises(ends_passed(cu) % 2) > 0)),
    _risen("sliced", "ids behind a number, without the number",
           window(lambda cu: _behind(ends_passed(cu))[1:] == ends_passed(cu), padded(1))),
    _risen("replaced", "ids with a number for the first one",
           window(lambda cu: _behind(ends_passed(cu)[1:]) == ends_passed(cu), lambda x: jnp.roll(x, -1, axis=0))),
    _risen("numbers", "two numbers for the first three ids",
           window(lambda cu: _behind(ends_passed(cu)[3:], 3) == _behind(ends_passed(cu)[3:], 4)[:TOKENS], padded(1))),
    _padding("sum", "padding is added to lane 0", with_padding(masked=False)),
    _padding("counted", "padding is added to lane 1", with_padding(counted, masked=False)),
    _padding("early", "the last real token is in lane 0",
             with_padding(lambda cu: jnp.where(index() < cu[-1] - 1, ends_passed(cu), 0))),
    _padding("late", "real tokens are in lane 0, padding in its own",
             with_padding(lambda cu: jnp.minimum(jnp.where(index() >= cu[-1], ends_passed(cu), 0), LANES - 1))),
    _strided("mask", "the mask of every token", strided(2, 1)),
    _strided("gather", "every third token", strided(3, 2)),
    _strided("ahead", "later tokens", strided(-2, 2)),
)  # fmt: skip
