"""Idle lanes that write to other sequences' rows in a pool without a null row."""

import jax.numpy as jnp
from mutants.mutant import Kind, wrong
from zoo.held_rows import appended, attended, held_step
from zoo.program import CONTEXT
from zoo.rows import advance

BASE = "idle lanes on rows that others hold"


def idle_lanes_begin(pools, slots, x, w, lengths, positions):
    """A row at position 0 is zeroed even for a lane without tokens."""
    states, cache = pools
    cleared = states.at[slots].set(jnp.where((positions == 0)[:, None, None], 0.0, states[slots]))
    return held_step((cleared, cache), slots, x, w, lengths, positions)


def idle_lanes_advance(pools, slots, x, w, lengths, positions):
    """Lanes without a token advance the row that they are on."""
    y, (_, cache) = held_step(pools, slots, x, w, lengths, positions)
    rows = advance(pools[0][slots], x, w)
    return y, (pools[0].at[slots].set(rows), cache)


def padding_in_the_cache(pools, slots, x, w, lengths, positions):
    """An idle lane's padding token is written to the cache at its position."""
    y, (states, _) = held_step(pools, slots, x, w, lengths, positions)
    return y, (states, appended(pools[1], slots, x, jnp.ones_like(lengths), positions))


def padding_at_the_end(pools, slots, x, w, lengths, positions):
    """A place past the end is clamped to the last position instead of dropped."""
    y, (states, _) = held_step(pools, slots, x, w, lengths, positions)
    places = jnp.where(lengths > 0, positions, CONTEXT)
    return y, (states, pools[1].at[slots, places].set(x, mode="clip", unique_indices=True))


def rows_close_ranks(pools, slots, x, w, lengths, positions):
    """Active lanes take the first rows of the step, regardless of idle lanes before them."""
    order = jnp.argsort(lengths == 0, stable=True)
    return held_step(pools, slots[order], x, w, lengths, positions)


def idle_lanes_on_row_zero(pools, slots, x, w, lengths, positions):
    """Idle lanes go to row 0, an ordinary row that may have an active lane."""
    return held_step(pools, jnp.where(lengths > 0, slots, 0), x, w, lengths, positions)


def cache_of_the_next_lane(pools, slots, x, w, lengths, positions):
    """A lane attends to the next lane's row; its writes are right."""
    y, (states, cache) = held_step(pools, slots, x, w, lengths, positions)
    wrong_read = attended(cache, jnp.roll(slots, 1), positions)
    return jnp.concatenate([y[:, : -wrong_read.shape[1]], wrong_read], axis=1), (states, cache)


def lanes_as_rows(pools, slots, x, w, lengths, positions):
    """Lane i uses row i: right while sequences are in order from row 0."""
    return held_step(pools, jnp.arange(len(slots), dtype=jnp.int32), x, w, lengths, positions)


def state_alone(pools, slots, x, w, lengths, positions):
    """The cache is written in the rows of the step before."""
    y, (states, _) = held_step(pools, slots, x, w, lengths, positions)
    return y, (states, appended(pools[1], jnp.flip(slots), x, lengths, positions))


BAD = Kind.IDLE, Kind.WRONG_ROW, Kind.CROSS_LANE, Kind.FRAME, Kind.BOUNDS, Kind.CONSTANT, Kind.COUPLING, Kind.STALE
MUTANTS = (
    wrong(BASE, "held-rows-begin", "llama.cpp", "an idle lane at position 0 clears its row", idle_lanes_begin, *BAD),
    wrong(BASE, "held-rows-advance", "SGLang#33431", "idle lanes advance their rows", idle_lanes_advance, Kind.IDLE),
    wrong(BASE, "held-rows-padding", "vLLM#35219", "the padding token of an idle lane is written to the cache",
          padding_in_the_cache, Kind.IDLE),
    wrong(BASE, "held-rows-clamped", "JAX", "a place past the end is clamped", padding_at_the_end, Kind.IDLE),
    wrong(BASE, "held-rows-ranks", "vLLM", "lanes with tokens close ranks", rows_close_ranks, *BAD),
    wrong(BASE, "held-rows-zero", "vLLM", "idle lanes go to row 0 without a null row", idle_lanes_on_row_zero, *BAD),
    wrong(BASE, "held-rows-next", "mlx-lm", "a lane attends to the next lane's row", cache_of_the_next_lane, *BAD),
    wrong(BASE, "held-rows-lanes", "SGLang", "lane i takes row i", lanes_as_rows, *BAD),
    wrong(BASE, "held-rows-apart", "vLLM", "state and cache are in different rows", state_alone, *BAD),
)  # fmt: skip
