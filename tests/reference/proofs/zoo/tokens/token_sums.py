"""Packed tokens summed by lane, masked between lane bounds, or written conditionally."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo.packed import CU, TOKENS, layout
from zoo.program import HIDDEN, LANES, SLOTS, Program, normal
from zoo.tokens.token_neighbours import LOWEST, attention, ends_passed, index, start, starts_passed, stop

from ir_passes import Lane, LaneContract, Packed, Pool, SlotMap

Array = Any
SUMS = LaneContract((Packed(), CU), Lane())
ATTENTION = LaneContract((Packed(), CU), Packed())
WRITES = LaneContract((Packed(), CU, Pool("s"), SlotMap("s", SLOTS)), (Packed(), Pool("s")))
LANE_WRITES = LaneContract((Pool("s"), SlotMap("s", SLOTS), Lane(), Lane(role="active")), Pool("s"))
Step = Callable[..., Any]


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, TOKENS, HIDDEN), layout(rng, empty=False)


def draw_rows(rng: np.random.Generator) -> tuple[Any, ...]:
    rows = (1 + rng.permutation(SLOTS - 1)[:LANES]).astype(np.int32)
    return *draw(rng), normal(rng, SLOTS, HIDDEN), rows


def draw_lanes(rng: np.random.Generator) -> tuple[Any, ...]:
    _, _, pool, rows = draw_rows(rng)
    return pool, rows, normal(rng, LANES, HIDDEN), rng.random(LANES) < 0.6


def real(cu: Array) -> Array:
    return index() < cu[-1]


def blank(x: Array, mask: Array, fill: float = 0.0) -> Array:
    return jnp.where(mask[:, None], x, fill)


def between(cu: Array) -> Array:
    """[lanes, tokens]: tokens between the bounds of each lane."""
    return (index()[None] >= cu[:-1, None]) & (index()[None] < cu[1:, None])


def of_lane(cu: Array) -> Array:
    """[lanes, tokens]: tokens with the id of each lane."""
    return ends_passed(cu)[None] == jnp.arange(LANES)[:, None]


def finite(x: Array) -> Array:
    return jnp.where(jnp.isfinite(x), x, 0.0)


def without_nan(x: Array) -> Array:
    return jnp.where(jnp.isnan(x), 0.0, x)


def summed(mask: Callable[[Array], Array]) -> Step:
    return lambda x, cu: jnp.where(mask(cu)[..., None], x[None], 0.0).sum(axis=1)


def weighted(mask: Callable[[Array], Array], values: Callable[[Array], Array] = finite) -> Step:
    return lambda x, cu: jnp.where(mask(cu), 1.0, 0.0) @ values(x)


SUMMED = {
    "masked, ids clipped": lambda x, cu: jax.ops.segment_sum(blank(x, real(cu)), starts_passed(cu), LANES),
    "padding is not real": lambda x, cu: (
        jnp.zeros((LANES, HIDDEN)).at[starts_passed(cu)].add(blank(x, ~(index() >= cu[-1])))
    ),
    "greatest": lambda x, cu: jax.ops.segment_max(2 * blank(x, real(cu), -jnp.inf), starts_passed(cu), LANES),
    "padding past the end": lambda x, cu: jax.ops.segment_sum(x, jnp.where(real(cu), starts_passed(cu), LANES), LANES),
    "masked by id": summed(of_lane),
    "masked between bounds": summed(between),
    "weights by id": weighted(of_lane),
    "weights between bounds": weighted(between),
    "clipped without nan": weighted(of_lane, lambda x: jnp.clip(without_nan(x), -3.0, 3.0)),
    "clipped, then without nan": weighted(of_lane, lambda x: without_nan(lax.clamp(-3.0, 1 / x, 3.0))),
    "clipped twice": weighted(of_lane, lambda x: without_nan(jnp.minimum(jnp.maximum(jnp.exp(x), -3.0), 3.0))),
    "finite, then a greater one": weighted(of_lane, lambda x: jnp.maximum(finite(x), 0.0)),
}
"""Sums over the tokens of each lane."""
LOWER = np.tril(np.ones((TOKENS, TOKENS), bool))


def rows_and_columns(cu: Array) -> tuple[Array, Array]:
    return ends_passed(cu)[:, None], ends_passed(cu)[None]


def excluded(cu: Array) -> Array:
    """Pairs of tokens of other lanes, and later tokens."""
    rows, columns = rows_and_columns(cu)
    return (rows != columns) | (index()[:, None] < index()[None])


def softmax(mask: Callable[[Array], Array], when: bool = True) -> Step:
    """Return attention with minus infinity where a mask is not `when`."""

    def step(x, cu):
        cases = (x @ x.T, -jnp.inf) if when else (-jnp.inf, x @ x.T)
        return jax.nn.softmax(jnp.where(mask(cu), *cases), axis=-1) @ finite(x)

    return step


ATTENDING = {
    "other or later tokens": softmax(excluded, when=False),
    "not of one lane": softmax(lambda cu: ~excluded(cu)),
    "a constant mask": softmax(lambda cu: (starts_passed(cu)[:, None] == starts_passed(cu)[None]) & LOWER),
    "real columns": softmax(lambda cu: (starts_passed(cu)[:, None] == starts_passed(cu)[None]) & real(cu)[None]),
    "from the start": softmax(lambda cu: (index()[None] >= start(cu)[:, None]) & (index()[None] <= index()[:, None])),
    "from start to stop": softmax(
        lambda cu: (index()[None] >= start(cu)[:, None]) & (index()[None] < stop(cu)[:, None])
    ),
    "before the start": attention(
        lambda cu: ~((index()[None] < start(cu)[:, None]) | (index()[None] >= stop(cu)[:, None])), LOWEST
    ),
}
"""Attention among the tokens of a lane."""


def conditional(new: Step, condition: Step) -> Step:
    """Return a loop over tokens that writes a state where a condition is true."""

    def step(x, cu, pool, slots):
        def token(pool, now):
            x, row, real = now
            state = jnp.tanh(0.5 * pool[row] + x)
            return jnp.where(condition(real), new(pool, row, state), pool), state

        pool, y = lax.scan(token, pool, (x, slots[starts_passed(cu)], real(cu)))
        return y, pool

    return step


def scattered(pool: Array, row: Array, state: Array) -> Array:
    return pool.at[row].set(state)


def by_lane(write: Step) -> Step:
    """Return a step with one conditional write for each lane."""

    def step(pool, slots, x, active):
        for lane in range(LANES):
            pool = write(pool, slots[lane], x[lane], active[lane])
        return pool

    return step


def sliced(pool: Array, row: Array, x: Array) -> Array:
    return lax.dynamic_update_slice(pool, x[None], (row, 0))


LANES_WRITTEN = {
    "scatter": by_lane(lambda pool, row, x, active: jnp.where(active, pool.at[row].set(x), pool)),
    "the other way round": by_lane(lambda pool, row, x, active: jnp.where(~active, pool, pool.at[row].set(x))),
    "added": by_lane(lambda pool, row, x, active: lax.select(active, pool.at[row].add(x), pool)),
    "slice": by_lane(lambda pool, row, x, active: jnp.where(active, sliced(pool, row, x), pool)),
}
"""Rows of a pool that are written by active lanes."""
PROGRAMS = (
    *(Program(f"token sums: {name}", step, SUMS, draw) for name, step in SUMMED.items()),
    *(Program(f"token masks: {name}", step, ATTENTION, draw) for name, step in ATTENDING.items()),
    Program("token writes: where real", conditional(scattered, lambda real: real), WRITES, draw_rows),
    *(Program(f"lane writes: {name}", step, LANE_WRITES, draw_lanes) for name, step in LANES_WRITTEN.items()),
)
