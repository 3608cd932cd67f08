"""Sums, masks and conditional writes that reach tokens or rows of other lanes."""

from typing import Any

import jax
import jax.numpy as jnp
from mutants.mutant import Kind, mutants_of, wrong
from zoo.program import HIDDEN, LANES
from zoo.tokens.token_neighbours import ends_passed, index, start, starts_passed, stop
from zoo.tokens.token_sums import (
    LOWER,
    between,
    blank,
    by_lane,
    conditional,
    excluded,
    of_lane,
    real,
    rows_and_columns,
    scattered,
    softmax,
    summed,
    weighted,
    without_nan,
)

BAD = (Kind.CROSS_LANE, Kind.UNKNOWN, Kind.WRONG_ROW, Kind.STALE, Kind.FRAME)


_sum = mutants_of("token sums: masked, ids clipped", *BAD, prefix="token-sum-", source="vLLM")


def _mask(id: str, description: str, mask: Any, when: bool = True) -> Any:
    base = "token masks: not of one lane"
    return wrong(base, f"token-mask-{id}", "vLLM", description, softmax(mask, when), *BAD)


def _write(id: str, description: str, write: Any) -> Any:
    return wrong("lane writes: scatter", f"lane-write-{id}", "SGLang", description, by_lane(write), *BAD)


def _shifted(pool, slots, x, active):
    for lane in range(LANES):
        pool = jnp.where(active[lane - 1], pool.at[slots[lane]].set(x[lane]), pool)
    return pool


def _two_versions(pool, slots, x, active):
    return jnp.where(active[1], pool.at[slots[0]].set(x[0]).at[slots[1]].set(x[1]), pool)


def _clipped_sum(x, cu):
    return jax.ops.segment_sum(x, starts_passed(cu), LANES)


def _by_value(x, cu):
    """Padding picks by its own data where its zero is set."""
    place = jnp.where(x[:, 0] > 0, 1, 0)
    return jnp.ones((LANES, 2, HIDDEN)).at[starts_passed(cu), place].set(blank(x, real(cu))).sum(1)


def _in_fewer_rows(x, cu):
    sums = jnp.zeros((LANES - 1, HIDDEN)).at[starts_passed(cu)].add(blank(x, real(cu)), mode="clip")
    return jnp.pad(sums, ((0, 1), (0, 0)))


MUTANTS = (
    _sum("fewer-rows", "the last lane clamped to the row before", _in_fewer_rows),
    _sum("clipped", "padding is added to the last lane", _clipped_sum),
    _sum("late", "the first token of padding, too", lambda x, cu: jax.ops.segment_sum(
        blank(x, index() <= cu[-1]), starts_passed(cu), LANES)),
    _sum("negated", "padding alone", lambda x, cu: jax.ops.segment_sum(
        blank(x, ~real(cu)), starts_passed(cu), LANES)),
    _sum("mixed", "padding is made of data", lambda x, cu: jax.ops.segment_sum(
        jnp.where(real(cu)[:, None], x, x), starts_passed(cu), LANES) + _clipped_sum(0.5 * x, cu)),
    _sum("after", "the mask is undone", lambda x, cu: jax.ops.segment_sum(
        blank(x, real(cu)) + x, starts_passed(cu), LANES)),
    _sum("shifted", "padding is masked one token away", lambda x, cu: jax.ops.segment_sum(
        jnp.roll(blank(x, real(cu)), 1, axis=0), starts_passed(cu), LANES)),
    _sum("value", "padding picks the place of its zero", _by_value),
    _sum("past", "padding is lane 0", lambda x, cu: jax.ops.segment_sum(
        x, jnp.where(real(cu), starts_passed(cu), 0), LANES)),
    _sum("flipped", "lane 0 for real tokens", lambda x, cu: jax.ops.segment_sum(
        x, jnp.where(real(cu), 0, starts_passed(cu)), LANES)),
    _sum("ids", "all lanes up to each", summed(lambda cu: ends_passed(cu)[None] <= jnp.arange(LANES)[:, None])),
    _sum("not-ids", "all lanes but each", summed(lambda cu: ~of_lane(cu))),
    _sum("last-id", "padding has the last id", summed(
        lambda cu: starts_passed(cu)[None] == jnp.arange(LANES)[:, None])),
    _sum("bounds", "one bound only", summed(lambda cu: index()[None] >= cu[:-1, None])),
    _sum("stops", "two bounds of different lanes", summed(
        lambda cu: (index()[None] >= cu[:-1, None]) & (index()[None] < cu[-1]))),
    _sum("either", "either bound", summed(
        lambda cu: (index()[None] >= cu[:-1, None]) | (index()[None] < cu[1:, None]))),
    _sum("outside", "outside the bounds", summed(lambda cu: ~between(cu))),
    _sum("infinite", "zero times nan is nan", weighted(of_lane, lambda x: x)),
    _sum("clipped-nan", "nan is within every limit", weighted(of_lane, lambda x: jnp.clip(x, -3.0, 3.0))),
    _sum("clipped-above", "no lower limit", weighted(of_lane, lambda x: without_nan(jnp.minimum(x, 3.0)))),
    _sum("clipped-below", "no upper limit", weighted(of_lane, lambda x: without_nan(jnp.maximum(x, -3.0)))),
    _sum("clipped-inf", "a limit is infinite", weighted(of_lane, lambda x: without_nan(jnp.clip(x, -3.0, jnp.inf)))),
    _sum("clipped-by-data", "limits by data", weighted(of_lane, lambda x: without_nan(jnp.clip(x, -abs(x), abs(x))))),
    _sum("clipped-late", "clipped and divided", weighted(of_lane, lambda x: without_nan(1 / jnp.clip(x, 0.0, 3.0)))),
    _sum("clipped-narrow", "limits beyond the range of the dtype",
         weighted(of_lane, lambda x: without_nan(jnp.clip(x, -1e9, 1e9)).astype(jnp.float16))),
    _mask("and", "other lanes' later tokens are excluded only", lambda cu: (
        (rows_and_columns(cu)[0] != rows_and_columns(cu)[1]) & (index()[:, None] < index()[None])), False),
    _mask("excluded", "the tokens to exclude", excluded),
    _mask("not", "a mask is negated twice", lambda cu: ~~excluded(cu)),
    _mask("upper", "later tokens, padding too", lambda cu: (
        starts_passed(cu)[:, None] == starts_passed(cu)[None]) & LOWER.T),
    _mask("rows", "padding is excluded along rows", lambda cu: (
        starts_passed(cu)[:, None] == starts_passed(cu)[None]) & real(cu)[:, None]),
    _mask("start", "one token before the start", lambda cu: (
        index()[None] >= start(cu)[:, None] - 1) & (index()[None] <= index()[:, None])),
    _mask("later", "from the start on", lambda cu: (
        index()[None] >= start(cu)[:, None]) & (index()[None] >= index()[:, None])),
    _mask("stop", "one token behind the stop", lambda cu: (
        index()[None] >= start(cu)[:, None]) & (index()[None] <= stop(cu)[:, None])),
    _mask("either", "before the stop or from the start", lambda cu: (
        index()[None] >= start(cu)[:, None]) | (index()[None] < stop(cu)[:, None])),
    _mask("starts", "the start of the column's lane", lambda cu: (
        index()[:, None] >= start(cu)[None]) & (index()[None] <= index()[:, None])),
    wrong("token writes: where real", "token-write-padding", "SGLang", "padding writes to the last lane's row",
          conditional(scattered, lambda real: ~real), *BAD),
    wrong("token writes: where real", "token-write-all", "SGLang", "all write, padding too",
          conditional(scattered, lambda real: real | True), *BAD),
    wrong("lane writes: scatter", "lane-write-shifted", "SGLang", "the flag of the lane before", _shifted, *BAD),
    wrong("lane writes: scatter", "lane-write-versions", "SGLang", "two writes by the flag of one lane",
          _two_versions, *BAD),
    _write("average", "the mean of the pool", lambda pool, row, x, active: jnp.where(
        active, pool.at[row].set(pool.mean(0)), pool)),
    _write("whole", "another pool", lambda pool, row, x, active: jnp.where(active, pool.at[row].set(x), 0.5 * pool)),
)  # fmt: skip
