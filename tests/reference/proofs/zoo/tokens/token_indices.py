"""Token windows, last tokens by length, finite values, and loops by token index."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo.packed import CU, STATE, TOKENS
from zoo.program import HIDDEN, LANES, SLOTS, Program, normal
from zoo.tokens.token_neighbours import NEIGHBOURS, draw, ends_passed, index, start, starts_passed

from ir_passes import Lane, LaneContract, Packed, Pool, SlotMap

Array = Any
Step = Callable[..., Any]
WIDTH = 3
LAST = LaneContract((Packed(), CU), Lane())
LOOPS = LaneContract(STATE.inputs[1:], STATE.outputs)
INDEXED = LaneContract((Packed(), CU, Lane(), Pool("s"), SlotMap("s", SLOTS)), (Packed(), Lane(), Pool("s")))


def draw_rows(rng: np.random.Generator) -> tuple[Any, ...]:
    slots = (1 + rng.permutation(SLOTS - 1)[:LANES]).astype(np.int32)
    return *draw(rng), normal(rng, SLOTS, HIDDEN), slots


def draw_as_many(rng: np.random.Generator) -> tuple[Any, ...]:
    """Draw as many tokens as lanes."""
    slots = (1 + rng.permutation(SLOTS - 1)[:LANES]).astype(np.int32)
    cu = np.array([0, 2, 3, LANES, LANES], np.int32)
    return normal(rng, LANES, HIDDEN), cu, normal(rng, LANES, HIDDEN), normal(rng, SLOTS, HIDDEN), slots


def windows(mask: Step, gathered: Step) -> Step:
    """Return a step that sums earlier tokens where a mask [tokens, WIDTH] is true."""
    return lambda x, cu: jnp.where(mask(cu)[..., None], gathered(x), 0.0).sum(1)


def places() -> Array:
    return index()[:, None] - jnp.arange(WIDTH)[None]


def from_start(cu: Array) -> Array:
    return places() >= start(cu)[:, None]


def by_position(cu: Array) -> Array:
    return (index() - start(cu))[:, None] >= jnp.arange(WIDTH)[None]


def clipped(x: Array) -> Array:
    return x[jnp.clip(places(), 0, TOKENS - 1)]


def stacked(x: Array) -> Array:
    return jnp.stack([jnp.pad(x, ((k, 0), (0, 0)))[:TOKENS] for k in range(WIDTH)], axis=1)


def padded(x: Array) -> Array:
    reverse = index()[:, None] + WIDTH - 1 - jnp.arange(WIDTH)[None]
    return jnp.pad(x, ((WIDTH - 1, 0), (0, 0)))[reverse]


WINDOWS = {
    "clipped": windows(from_start, clipped),
    "from the end": windows(from_start, lambda x: x[places()]),
    "by position": windows(by_position, clipped),
    "padded": windows(from_start, padded),
    "stacked": windows(by_position, stacked),
}
LENGTHS: dict[str, Step] = {
    "starts and lengths": lambda x, cu: x[cu[:-1] + jnp.diff(cu) - 1],
    "running lengths": lambda x, cu: x[jnp.cumsum(cu[1:] - cu[:-1]) - 1],
    "first tokens": lambda x, cu: x[jnp.cumsum(jnp.diff(cu)) - jnp.diff(cu)],
    "one by one": lambda x, cu: jnp.stack([x[cu[lane + 1] - 1] for lane in range(LANES)]),
}
"""Tokens of lanes by the lengths of lanes."""


def attention(finite: Step) -> Step:
    """Return attention with minus infinity as mask."""

    def step(x, cu):
        lane = ends_passed(cu)
        mask = (lane[:, None] == lane[None]) & (index()[:, None] >= index()[None])
        return jax.nn.softmax(jnp.where(mask, x @ x.T, -jnp.inf)) @ finite(x)

    return step


def resetting(reset: Step) -> Step:
    """Return a recurrence with a reset of the state by a flag of first tokens."""

    def step(x, cu):
        def token(state, now):
            x, first = now
            state = jnp.tanh(reset(first, state) + x)
            return state, state

        return lax.scan(token, jnp.zeros(HIDDEN), (x, index() == start(cu)))[1]

    return step


def zero_first(first: Array, state: Array) -> Array:
    return lax.cond(first, lambda state: jnp.zeros_like(state), lambda state: state, state)


def counted(stop: Step, row: Step) -> Step:
    """Return a loop over the indices of tokens that updates rows of a pool.

    Args:
        stop: cu_seqlens -> number of iterations.
        row: token, its row, all real tokens -> row to write.
    """

    def step(x, cu, pool, slots):
        lane = starts_passed(cu)

        def token(t, carry):
            pool, y = carry
            slot = slots[lane[t]]
            state = jnp.tanh(pool[slot] + x[t])
            return pool.at[row(t, slot, cu[-1])].set(state, mode="drop"), y.at[t].set(state)

        pool, y = lax.fori_loop(0, stop(cu), token, (pool, jnp.zeros((TOKENS, HIDDEN))))
        return y, pool

    return step


def real_row(t: Array, row: Array, tokens: Array) -> Array:
    return jnp.where(t < tokens, row, SLOTS)


def carried(first: Step) -> Step:
    """Return a recurrence over token indices that resets at true mask elements."""

    def step(x, cu):
        flags = first(cu)

        def token(t, carry):
            state, y = carry
            state = jnp.tanh(jnp.where(flags[t], 0.0, state) + x[t])
            return state, y.at[t].set(state)

        return lax.fori_loop(0, TOKENS, token, (jnp.zeros(HIDDEN), jnp.zeros((TOKENS, HIDDEN))))[1]

    return step


def each_index(decides: Step, chosen: Step) -> Step:
    """Return a loop over indices of as many tokens as lanes.

    Args:
        decides: a token and a lane -> the array with the flag of a write.
        chosen: a token and a lane -> the lane's result.
    """

    def step(x, cu, rows, pool, slots):
        def lane(pool, k):
            pool = lax.cond(decides(x[k], rows[k])[0] > 0, lambda p: p.at[slots[k]].set(rows[k]), lambda p: p, pool)
            return pool, chosen(x[k], rows[k])

        pool, y = lax.scan(lane, pool, jnp.arange(LANES))
        return x, y, pool

    return step


PROGRAMS = (
    *(Program(f"token gathers: {name}", step, NEIGHBOURS, draw) for name, step in WINDOWS.items()),
    *(Program(f"token lengths: {name}", step, LAST, draw) for name, step in LENGTHS.items()),
    Program("token finite: nan_to_num", attention(jnp.nan_to_num), NEIGHBOURS, draw),
    Program("token branch: reset", resetting(zero_first), NEIGHBOURS, draw),
    Program("token index: all", counted(lambda cu: TOKENS, real_row), LOOPS, draw_rows),
    Program("token index: real", counted(lambda cu: cu[-1], real_row), LOOPS, draw_rows),
    Program("token index: carried", carried(lambda cu: index() == start(cu)), NEIGHBOURS, draw),
    Program("token index: lanes", each_index(lambda x, row: row, lambda x, row: row), INDEXED, draw_as_many),
)
