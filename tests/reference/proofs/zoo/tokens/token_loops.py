"""Loops over the real tokens, with state of lanes, pool rows, or the last token."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo.packed import CU, TOKENS
from zoo.program import HIDDEN, LANES, SLOTS, Program, normal
from zoo.tokens.token_neighbours import ends_passed, index, start
from zoo.tokens.token_sums import draw_rows as draw_pool

from ir_passes import Lane, LaneContract, Packed, Pool, SlotMap

Array = Any
GUARDED = LaneContract((Packed(), CU, Pool("s"), SlotMap("s", SLOTS)), Pool("s"))
SUMS = LaneContract((Packed(), CU), Packed())
STATES = LaneContract((Packed(), CU, Lane()), (Packed(), Lane()))
ROWS = LaneContract((Packed(), CU, Pool("s"), SlotMap("s", SLOTS)), (Packed(), Pool("s")))


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return *draw_pool(rng)[:2], normal(rng, LANES, HIDDEN)


def real(cu: Array) -> Array:
    return cu[-1]


def rows_of_lanes(lane: Callable[..., Array] = lambda ids, t: ids[t], end: Callable[[Array], Array] = real) -> Any:
    """Return a loop with a row of state for each lane."""

    def step(x, cu, states):
        ids = ends_passed(cu)

        def token(t, carry):
            states, out = carry
            new = 0.5 * states[lane(ids, t)] + x[t]
            return states.at[lane(ids, t)].set(new), out.at[t].set(new)

        states, out = lax.fori_loop(0, end(cu), token, (states, jnp.zeros((TOKENS, HIDDEN))))
        return out, states

    return step


def rows_of_a_pool(
    row: Callable[..., Array] = lambda slots, ids, t: slots[ids[t]], end: Callable[[Array], Array] = real
) -> Any:
    """Return a loop that reads and writes the row of each token's lane."""

    def step(x, cu, pool, slots):
        ids = ends_passed(cu)

        def token(t, carry):
            pool, out = carry
            place = row(slots, ids, t)
            new = 0.5 * pool[place] + x[t]
            return pool.at[place].set(new), out.at[t].set(new)

        pool, out = lax.fori_loop(0, end(cu), token, (pool, jnp.zeros((TOKENS, HIDDEN))))
        return out, pool

    return step


def begun_anew(
    mask: Callable[[Array], Array] = lambda cu: index() == start(cu), exchanged: bool = False, by: int = 1
) -> Any:
    """Return a loop over tokens with one state that restarts under a mask.

    Args:
        mask: cu_seqlens -> mask of the first tokens.
        exchanged: exchange the cases.
        by: step of the counter.
    """

    def step(x, cu, states):
        first, ids = mask(cu), jnp.clip(ends_passed(cu), 0, LANES - 1)

        def token(carry):
            t, state, out = carry
            cases = (state, states[ids[t]]) if exchanged else (states[ids[t]], state)
            new = 0.5 * jnp.where(first[t], *cases) + x[t]
            return t + by, new, out.at[t].set(new)

        begin = jnp.int32(0), jnp.zeros(HIDDEN), jnp.zeros((TOKENS, HIDDEN))
        return lax.while_loop(lambda carry: carry[0] < cu[-1], token, begin)[2], states

    return step


def total_at_padding(
    count: int = TOKENS, is_real: Callable[[Array, Array], Array] = lambda t, cu: t < cu[-1], total: Any = jnp.sum
) -> Any:
    """Return a loop by slices that copies real tokens and gives padding the sum of all tokens.

    A slice past the end is clamped to the last token.
    """

    def step(x, cu):
        def token(t, out):
            row = lax.dynamic_slice(x, (t, 0), (1, HIDDEN))
            new = jnp.where(is_real(t, cu), row, total(x, axis=0, keepdims=True))
            return lax.dynamic_update_slice(out, new, (t, 0))

        return lax.fori_loop(0, count, token, jnp.zeros_like(x))

    return step


def rows_under_a_condition(
    is_real: Callable[[Array, Array], Array] = lambda t, cu: t < cu[-1],
    exchanged: bool = False,
    lane: Any = lambda i: i,
) -> Any:
    """Return a loop over all places that writes the row of a token's lane in a branch for real tokens."""

    def step(x, cu, pool, slots):
        ids = jnp.clip(ends_passed(cu), 0, LANES - 1)

        def token(t, pool):
            write, keep = lambda pool: pool.at[slots[lane(ids[t])]].set(x[t]), lambda pool: pool
            return lax.cond(is_real(t, cu), *((keep, write) if exchanged else (write, keep)), pool)

        return lax.fori_loop(0, TOKENS, token, pool)

    return step


def draw_full(rng: np.random.Generator) -> tuple[Any, ...]:
    """Draw tokens without padding."""
    x, cu = draw_pool(rng)[:2]
    return x, np.append(cu[:-1], TOKENS).astype(np.int32)


PROGRAMS = (
    Program("token loops: rows of lanes", rows_of_lanes(), STATES, draw),
    Program("token loops: rows of lanes, clipped", rows_of_lanes(lambda ids, t: jnp.clip(ids[t], 0, LANES - 1)),
            STATES, draw),
    Program("token loops: rows of a pool", rows_of_a_pool(), ROWS, draw_pool),
    Program("token loops: rows of a pool, clamped", rows_of_a_pool(
        lambda slots, ids, t: slots[lax.clamp(0, ids[t], LANES - 1)]), ROWS, draw_pool),
    Program("token loops: a state begun anew", begun_anew(), STATES, draw),
    Program("token loops: rows under a condition", rows_under_a_condition(), GUARDED, draw_pool),
    Program("token loops: a sum at padding", total_at_padding(), SUMS, draw_full),
)  # fmt: skip
