"""Packed tokens in rows of lanes and back, and loops over each lane's tokens."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo.packed import CU, TOKENS
from zoo.program import HIDDEN, LANES, SLOTS, Program, normal
from zoo.tokens.token_neighbours import ends_passed, index, start
from zoo.tokens.token_sums import draw_rows as draw_pool

from ir_passes import Lane, LaneContract, Packed, Pool, SlotMap

Array = Any
WIDTH = 6
TILES = LaneContract((Packed(), CU), Lane())
BACK = LaneContract((Packed(), CU), Packed())
_QUERIES = Packed(layout="q"), Packed(role="cu_seqlens", layout="q")
TWO = LaneContract((*_QUERIES, Packed(layout="k"), Packed(role="cu_seqlens", layout="k")), Packed(layout="k"))
STATES = LaneContract((Packed(), CU, Lane()), (Packed(), Lane()))
ROWS = LaneContract((Packed(), CU, Pool("s"), SlotMap("s", SLOTS)), Pool("s"))


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return draw_pool(rng)[:2]


def draw_states(rng: np.random.Generator) -> tuple[Any, ...]:
    return *draw(rng), normal(rng, LANES, HIDDEN)


def places(cu: Array) -> Array:
    return cu[:-1, None] + jnp.arange(WIDTH)[None]


def before_end(cu: Array) -> Array:
    return places(cu) < cu[1:, None]


def within_length(cu: Array) -> Array:
    return jnp.arange(WIDTH)[None] < jnp.diff(cu)[:, None]


def clipped(x: Array, index: Array) -> Array:
    return x[jnp.clip(index, 0, TOKENS - 1)]


def tiles(
    mask: Callable[[Array], Array] = before_end,
    places: Callable[[Array], Array] = places,
    gather: Callable[[Array, Array], Array] = clipped,
) -> Any:
    """Return a step that gathers each lane's tokens at places, selected by a mask."""
    return lambda x, cu: jnp.where(mask(cu)[..., None], gather(x, places(cu)), 0.0)


def from_the_last(cu: Array) -> Array:
    return cu[1:, None] - 1 - jnp.arange(WIDTH)[None]


def filled(mask: Callable[[Array], Array] = before_end, padding: int = TOKENS) -> Any:
    """Return a step that reads at masked places, with zeros past the last token."""
    return lambda x, cu: x.at[jnp.where(mask(cu), places(cu), padding)].get(mode="fill", fill_value=0.0)


def sliced(length: int = WIDTH) -> Any:
    """Return a step that slices each lane's tokens, padded by `length` rows."""

    def step(x, cu):
        padded = jnp.pad(x, ((0, length), (0, 0)))
        rows = jax.vmap(lambda first: lax.dynamic_slice(padded, (first, 0), (WIDTH, HIDDEN)))(cu[:-1])
        return jnp.where(within_length(cu)[..., None], rows, 0.0)

    return step


def spread(mask: Callable[[Array], Array]) -> Any:
    """Return a step that gives each lane all tokens, and zeros under a mask [lanes, tokens]."""
    return lambda x, cu: jnp.where(mask(cu)[..., None], x[None], 0.0)


def between_bounds(cu: Array) -> Array:
    return (index()[None] >= cu[:-1, None]) & (index()[None] < cu[1:, None])


def of_one_lane(low: int = 2, high: int = 3, by: int = 0) -> Any:
    """Return a step that sums the tokens from the start of a lane to the start of another one."""

    def step(x, cu):
        mask = (index() + by >= cu[low]) & (index() < cu[high])
        return jnp.zeros((LANES, HIDDEN)).at[2].set(jnp.where(mask[:, None], x, 0.0).sum(0))

    return step


def and_back(
    mask: Callable[[Array], Array] = before_end,
    padding: int = TOKENS,
    flat: bool = False,
    work: Callable[[Array], Array] = lambda rows: jnp.cumsum(rows, 1),
) -> Any:
    """Return a step that works on rows of lanes and writes the tokens back."""

    def step(x, cu):
        rows = work(tiles()(x, cu))
        index = jnp.where(mask(cu), places(cu), padding)
        if flat:
            rows, index = rows.reshape(-1, HIDDEN), index.reshape(-1)
        return jnp.zeros_like(x).at[index].set(rows, mode="drop")

    return step


def gathered_back(position: Callable[[Array], Array] = lambda cu: index() - start(cu)) -> Any:
    """Return a step that reads each token's row of its lane."""

    def step(x, cu):
        rows = jnp.cumsum(tiles()(x, cu), 1)
        return rows[jnp.clip(ends_passed(cu), 0, LANES - 1), jnp.clip(position(cu), 0, WIDTH - 1)]

    return step


def lane_by_lane(
    first: Callable[[Array, Array], Array] = lambda cu, i: cu[i],
    last: Callable[[Array, Array], Array] = lambda cu, i: cu[i + 1],
    read: Callable[[Array, Array], Array] = lambda x, t: x[t],
    written: Callable[[Array], Array] = lambda t: t,
    carried: bool = False,
) -> Any:
    """Return a loop over lanes with a loop over the tokens of the lane.

    Args:
        carried: begin with the last state of the lane before.
    """

    def step(x, cu, states):
        def lane(i, carry):
            states, out, previous = carry

            def token(t, carry):
                state, out = carry
                state = 0.5 * state + read(x, t)
                return state, out.at[written(t)].set(state)

            begin = previous if carried else states[i]
            state, out = lax.fori_loop(first(cu, i), last(cu, i), token, (begin, out))
            return states.at[i].set(state), out, state if carried else previous

        zeros = jnp.zeros((TOKENS, HIDDEN)), jnp.zeros(HIDDEN)
        states, out, _ = lax.fori_loop(0, LANES, lane, (states, *zeros))
        return out, states

    return step


def by_position(by: int = 0, length: Callable[[Array, Array], Array] = lambda cu, i: cu[i + 1] - cu[i]) -> Any:
    """Return a map over lanes with a loop over positions."""

    def step(x, cu, states):
        def lane(i):
            return lax.fori_loop(0, length(cu, i), lambda k, state: 0.5 * state + x[cu[i] + k + by], states[i])

        return x, lax.map(lane, jnp.arange(LANES))

    return step


def scanned_lanes(starts: Callable[[Array], Array] = lambda cu: cu[:-1]) -> Any:
    """Return a scan over lanes with their bounds, and a while loop over their tokens."""

    def step(x, cu, states):
        def lane(_, of):
            first, last, state = of

            def token(carry):
                t, state = carry
                return t + 1, 0.5 * state + x[t]

            return None, lax.while_loop(lambda carry: carry[0] < last, token, (first, state))[1]

        return x, lax.scan(lane, None, (starts(cu), cu[1:], states))[1]

    return step


def pool_rows(row: Callable[[Array, Array], Array] = lambda slots, i: slots[i]) -> Any:
    """Return a loop over lanes that sums tokens into pool rows."""

    def step(x, cu, pool, slots):
        def lane(i, pool):
            state = lax.fori_loop(cu[i], cu[i + 1], lambda t, state: 0.5 * state + x[t], pool[slots[i]])
            return pool.at[row(slots, i)].set(state)

        return lax.fori_loop(0, LANES, lane, pool)

    return step


def masked_sums(mask: Callable[..., Array] = lambda cu, i: (index() >= cu[i]) & (index() < cu[i + 1])) -> Any:
    """Return a map over lanes that sums the tokens of each lane by a mask."""
    return lambda x, cu: lax.map(lambda i: jnp.where(mask(cu, i)[:, None], x, 0.0).sum(0), jnp.arange(LANES))


def unrolled_sums(x, cu):
    """Sum the tokens of each lane by a mask, lane by lane of the program."""
    masks = [(index() >= cu[i]) & (index() < cu[i + 1]) for i in range(LANES)]
    return jnp.stack([jnp.where(mask[:, None], x, 0.0).sum(0) for mask in masks])


def previous(queries: bool = False) -> Any:
    """Return a step that gives each key the key before it, of one lane by its bounds.

    Args:
        queries: take the lane of the query at the same place instead.
    """

    def step(x, cu, keys, cu_keys):
        bounds = cu_keys[jnp.clip(ends_passed(cu if queries else cu_keys), 0, LANES - 1)]
        mask = index() - bounds >= 1
        return jnp.where(mask[:, None], jnp.pad(keys, ((1, 0), (0, 0)))[:-1], 0.0)

    return step


def draw_two(rng: np.random.Generator) -> tuple[Any, ...]:
    return *draw(rng), *draw(rng)


PROGRAMS = (
    Program("token tiles: two layouts", previous(), TWO, draw_two),
    Program("token tiles: spread", spread(between_bounds), TILES, draw),
    Program("token tiles: of one lane", of_one_lane(), TILES, draw),
    Program("token tiles: before the end", tiles(), TILES, draw),
    Program("token tiles: within the length", tiles(within_length), TILES, draw),
    Program("token tiles: from the last", tiles(within_length, from_the_last), TILES, draw),
    Program("token tiles: from the last, not before the start",
            tiles(lambda cu: from_the_last(cu) >= cu[:-1, None], from_the_last), TILES, draw),
    Program("token tiles: scaled", tiles(gather=lambda x, index: 2.0 * x.at[index].get(mode="clip")), TILES, draw),
    Program("token tiles: filled", filled(), TILES, draw),
    Program("token tiles: sliced", sliced(), TILES, draw),
    Program("token tiles: written back", and_back(), BACK, draw),
    Program("token tiles: written back, flat", and_back(flat=True), BACK, draw),
    Program("token tiles: gathered back", gathered_back(), BACK, draw),
    Program("token tiles: lane by lane", lane_by_lane(), STATES, draw_states),
    Program("token tiles: by position", by_position(), STATES, draw_states),
    Program("token tiles: scanned lanes", scanned_lanes(), STATES, draw_states),
    Program("token tiles: rows of a pool", pool_rows(), ROWS, draw_pool),
    Program("token tiles: masked sums", masked_sums(), TILES, draw),
    Program("token tiles: masked sums, unrolled", unrolled_sums, TILES, draw),
)  # fmt: skip
