"""Steps with mutable arrays (`jax.new_ref`): lane states, pool rows, packed tokens' states."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo.packed import CU, TOKENS, layout
from zoo.program import HIDDEN, LANES, SLOTS, Program, normal, slot_map
from zoo.tokens.token_neighbours import index, start

from ir_passes import Lane, LaneContract, Packed, Pool, SlotMap

Step = Callable[..., Any]
LANE_BY_LANE = LaneContract((Lane(), Lane()), Lane())
ROWS = LaneContract((Pool("s"), SlotMap("s", SLOTS), Lane()), (Lane(), Pool("s")))
PACKED = LaneContract((Packed(), CU), Packed())


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, LANES, HIDDEN), normal(rng, LANES, HIDDEN)


def draw_rows(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, SLOTS, HIDDEN), slot_map(rng), normal(rng, LANES, HIDDEN)


def draw_tokens(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, TOKENS, HIDDEN), layout(rng)


def accumulated(x, y):
    total = jax.new_ref(x)
    total[...] += y
    total[..., 0] = 0.5 * total[..., 1]
    return jax.freeze(total)


def looped(lane: Callable[[Any], Any] = lambda i: i) -> Step:
    """Return a loop over lanes that writes the result of each lane."""

    def step(x, y):
        out = jax.new_ref(jnp.zeros_like(x))

        def body(i, carry):
            out[i] = x[lane(i)] * y[i]
            return carry

        lax.fori_loop(0, LANES, body, 0)
        return out[...]

    return step


def scanned(resets: bool = True) -> Step:
    """Return a loop over lanes with state in a mutable array; `resets`: zeros per lane."""

    def step(x, y):
        state = jax.new_ref(jnp.zeros(HIDDEN))

        def body(carry, lane):
            a, b = lane
            if resets:
                state[...] = jnp.zeros(HIDDEN)
            state[...] = 0.5 * state[...] + a
            return carry, state[...] * b

        return lax.scan(body, 0, (x, y))[1]

    return step


def of_each_lane(x, y):
    def lane(a, b):
        state = jax.new_ref(a)
        state[0] = state[1] + b[0]
        return state[...]

    return jax.vmap(lane)(x, y)


def chosen(x, y):
    """The array changes in one branch of a shared condition."""
    state = jax.new_ref(x)
    lax.cond(jnp.float32(HIDDEN) > 1.0, lambda: state.addupdate(y), lambda: None)
    return state[...]


def inner(x, y):
    """Each iteration has a mutable array."""

    def body(carry, lane):
        state = jax.new_ref(lane)
        state[...] *= 2.0
        return carry, jax.freeze(state)

    return lax.scan(body, 0, x)[1] + y


def rows(read: Callable[[Any], Any] = lambda slots: slots, write: Callable[[Any], Any] = lambda slots: slots) -> Step:
    """Return a step that reads and writes rows of a pool in a mutable array."""

    def step(pool, slots, x):
        state = jax.new_ref(pool)
        new = 0.9 * state[read(slots)] + x
        state[write(slots)] = new
        return new, jax.freeze(state)

    return step


def row_by_row(read: Callable[[int], int] = lambda lane: lane) -> Step:
    def step(pool, slots, x):
        state, out = jax.new_ref(pool), []
        for lane in range(LANES):
            out.append(0.9 * state[slots[read(lane)]] + x[lane])
            state[slots[lane]] = out[-1]
        return jnp.stack(out), state[...]

    return step


def recurrence(mask: Callable[[Any], Any]) -> Step:
    """Return a loop over packed tokens; the state restarts at true mask elements."""

    def step(x, cu):
        state = jax.new_ref(jnp.zeros(HIDDEN))

        def token(carry, now):
            value, first = now
            state[...] = jnp.where(first, 0.0, state[...]) * 0.5 + value
            return carry, state[...]

        return lax.scan(token, 0, (x, mask(cu)))[1]

    return step


STEPS = {
    "accumulated": accumulated, "a loop over lanes": looped(), "a state in a loop": scanned(),
    "of each lane": of_each_lane, "one branch": chosen, "one for each iteration": inner,
}  # fmt: skip
PROGRAMS = (
    *(Program(f"mutable arrays: {name}", step, LANE_BY_LANE, draw) for name, step in STEPS.items()),
    Program("mutable arrays: rows", rows(), ROWS, draw_rows),
    Program("mutable arrays: row by row", row_by_row(), ROWS, draw_rows),
    Program("mutable arrays: packed tokens", recurrence(lambda cu: index() == start(cu)), PACKED, draw_tokens),
)
