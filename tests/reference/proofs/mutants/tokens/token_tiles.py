"""Rows with tokens of the next lane, and loops that read past a lane's tokens."""

from typing import Any

import jax.numpy as jnp
from mutants.mutant import Evidence, Kind, mutants_of
from zoo.program import LANES
from zoo.tokens.token_neighbours import index
from zoo.tokens.token_tiles import (
    TOKENS,
    WIDTH,
    and_back,
    between_bounds,
    by_position,
    filled,
    from_the_last,
    gathered_back,
    lane_by_lane,
    masked_sums,
    of_one_lane,
    places,
    pool_rows,
    previous,
    scanned_lanes,
    sliced,
    spread,
    tiles,
    within_length,
)

BAD = (Kind.CROSS_LANE, Kind.UNKNOWN, Kind.WRONG_ROW, Kind.CONTROL, Kind.FRAME)


def _of(base: str, prefix: str) -> Any:
    return mutants_of(f"token tiles: {base}", *BAD, prefix=f"token-tile-{prefix}-", source="vLLM")


_tiles, _last, _filled, _sliced = map(
    _of, ("before the end", "from the last", "filled", "sliced"), ("read", "last", "fill", "slice")
)
_spread, _one, _two = map(_of, ("spread", "of one lane", "two layouts"), ("spread", "one", "two"))
_written_back, _gathered = map(_of, ("written back", "gathered back"), ("back", "gather"))
_loop, _position, _scan, _pool, _sums = map(
    _of,
    ("lane by lane", "by position", "scanned lanes", "rows of a pool", "masked sums"),
    ("loop", "position", "scan", "pool", "sum"),
)


def _multiplied(x, cu):
    tokens = x[jnp.clip(places(cu), 0, TOKENS - 1)]
    return tokens * within_length(cu)[..., None].astype(x.dtype)


def _unmasked_mean(x, cu):
    return tiles()(x, cu) + x[jnp.clip(places(cu), 0, TOKENS - 1)].mean(1, keepdims=True)


def _added_back(x, cu):
    rows = jnp.cumsum(tiles()(x, cu), 1)
    return jnp.zeros_like(x).at[places(cu)].add(rows, mode="drop")


def _rolled_rows(rows):
    return jnp.roll(rows, 1, axis=0)


MUTANTS = (
    _two("queries", "the bounds of a query's lane", previous(queries=True)),
    _spread("start", "the start alone", spread(lambda cu: index()[None] >= cu[:-1, None])),
    _spread("stop", "the end alone", spread(lambda cu: index()[None] < cu[1:, None])),
    _spread("more", "one token more", spread(
        lambda cu: (index()[None] >= cu[:-1, None]) & (index()[None] <= cu[1:, None]))),
    _spread("before", "one token before", spread(
        lambda cu: (index()[None] + 1 >= cu[:-1, None]) & (index()[None] < cu[1:, None]))),
    _spread("or", "one bound of two", spread(
        lambda cu: (index()[None] >= cu[:-1, None]) | (index()[None] < cu[1:, None]))),
    _spread("not", "the mask is negated", spread(lambda cu: ~between_bounds(cu))),
    _spread("rolled", "the mask of the next lane", spread(lambda cu: jnp.roll(between_bounds(cu), 1, 0))),
    _spread("product", "the product of two differences", spread(
        lambda cu: (index()[None] - cu[:-1, None]) * (cu[1:, None] - 1 - index()[None]) <= 0)),
    _one("two", "tokens of two lanes", of_one_lane(1)),
    _one("other", "another lane", of_one_lane(1, 2)),
    _one("before", "one token before", of_one_lane(by=1)),
    _tiles("one-more", "one token more", tiles(lambda cu: places(cu) <= cu[1:, None])),
    _tiles("end-plus", "the end is one later", tiles(lambda cu: places(cu) < cu[1:, None] + 1)),
    _tiles("length-plus", "the length is one more",
           tiles(lambda cu: jnp.arange(WIDTH)[None] <= jnp.diff(cu)[:, None])),
    _tiles("next-place", "places one later", tiles(within_length, lambda cu: places(cu) + 1)),
    _tiles("previous-place", "places one earlier", tiles(within_length, lambda cu: places(cu) - 1)),
    _tiles("backwards", "places before the start",
           tiles(within_length, lambda cu: cu[:-1, None] - jnp.arange(WIDTH)[None])),
    _tiles("other-ends", "the ends of the next lanes",
           tiles(lambda cu: places(cu) < jnp.concatenate([cu[2:], cu[-1:]])[:, None])),
    _tiles("negated", "the tokens that are not the lane's", tiles(lambda cu: places(cu) >= cu[1:, None])),
    _tiles("either", "a mask that is wider", tiles(lambda cu: within_length(cu) | (jnp.arange(WIDTH)[None] < 2))),
    _tiles("real", "all real tokens", tiles(lambda cu: places(cu) < cu[-1])),
    _tiles("multiplied", "multiplied by the mask", _multiplied),
    _tiles("mean", "a mean over tokens of other lanes", _unmasked_mean),
    _tiles("rolled-starts", "the starts of other lanes", tiles(within_length, lambda cu: jnp.roll(places(cu), 1, 0))),
    _last("before", "one token before the start", tiles(within_length, lambda cu: from_the_last(cu) - 1)),
    _last("end", "the token at the end", tiles(within_length, lambda cu: from_the_last(cu) + 1)),
    _filled("one-more", "one token more", filled(lambda cu: places(cu) <= cu[1:, None])),
    _filled("inside", "the last token where the mask is false", filled(padding=TOKENS - 1)),
    _filled("first", "the first token where the mask is false", filled(padding=0)),
    _sliced("clamped", "slices that are clamped to the end", sliced(0)),
    _sliced("short", "too few rows behind the tokens", sliced(WIDTH - 2)),
    _written_back("one-more", "two lanes write one token, in any order",
          and_back(lambda cu: places(cu) <= cu[1:, None]), evidence=Evidence.FAULT),
    _written_back("inside", "several lanes write the last token, in any order",
          and_back(padding=TOKENS - 1), evidence=Evidence.FAULT),
    _written_back("rolled", "rows of other lanes", and_back(work=_rolled_rows)),
    _written_back("flat-rolled", "rows of other lanes, flat", and_back(flat=True, work=_rolled_rows)),
    _written_back("added", "added at every place", _added_back),
    _gathered("other-lane", "the row of the next lane",
              lambda x, cu: gathered_back()(x, jnp.concatenate([cu[:1], cu[2:], cu[-1:]]))),
    _loop("one-more", "one token more", lane_by_lane(last=lambda cu, i: jnp.minimum(cu[i + 1] + 1, TOKENS))),
    _loop("earlier", "from the first token of all", lane_by_lane(first=lambda cu, i: cu[0])),
    _loop("to-the-end", "to the last token of all", lane_by_lane(last=lambda cu, i: cu[LANES])),
    _loop("before", "from the token before", lane_by_lane(first=lambda cu, i: jnp.maximum(cu[i] - 1, 0))),
    _loop("other-bounds", "the bounds of the first lane", lane_by_lane(lambda cu, i: cu[0], lambda cu, i: cu[1])),
    _loop("next-token", "the token after", lane_by_lane(read=lambda x, t: x[jnp.minimum(t + 1, TOKENS - 1)])),
    _loop("fewer", "tokens clamped to fewer", lane_by_lane(read=lambda x, t: x[:-4].at[t].get(mode="clip"))),
    _loop("written-next", "written to the token after", lane_by_lane(written=lambda t: jnp.minimum(t + 1, TOKENS - 1))),
    _loop("carried", "the state of the lane before", lane_by_lane(carried=True)),
    _position("next", "positions one later", by_position(1)),
    _position("longer", "lengths one more",
              by_position(length=lambda cu, i: jnp.minimum(cu[i + 1] - cu[i] + 1, TOKENS - cu[i]))),
    _position("end", "the end for the length", by_position(length=lambda cu, i: cu[i + 1])),
    _scan("same-start", "the first start for all", scanned_lanes(lambda cu: jnp.zeros_like(cu[:-1]))),
    _pool("next-row", "the row of the next lane", pool_rows(lambda slots, i: slots[(i + 1) % LANES])),
    _sums("to-the-end", "from the start on", masked_sums(lambda cu, i: index() >= cu[i])),
    _sums("one-more", "one token more", masked_sums(lambda cu, i: (index() >= cu[i]) & (index() <= cu[i + 1]))),
    _sums("either", "either bound", masked_sums(lambda cu, i: (index() >= cu[i]) | (index() < cu[i + 1]))),
    _sums("before", "the lanes up to the lane", masked_sums(lambda cu, i: index() < cu[i + 1])),
    _sums("next", "the bound of another lane",
          masked_sums(lambda cu, i: (index() >= cu[i]) & (index() < cu[jnp.minimum(i + 2, LANES)]))),
)  # fmt: skip
