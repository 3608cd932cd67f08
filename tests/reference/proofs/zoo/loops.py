"""One sequence after the other: unrolled, in a `fori_loop`, in a scan over lanes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo.program import HIDDEN, KEY, LANES, SLOTS, VALUE, Program, normal, slot_map, weight

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

POOLS = (Pool("seq"), Pool("seq", dims=("slot", "key", "value")))
CONTRACT = LaneContract(inputs=(Shared(), POOLS, SlotMap("seq", SLOTS), Lane()), outputs=(POOLS, Lane()))
ROWS = LaneContract(inputs=(Shared(), POOLS, Lane()), outputs=(POOLS, Lane()))


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {name: weight(rng, size, HIDDEN) for name, size in (("q", KEY), ("k", KEY), ("v", VALUE))}


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    pools = normal(rng, SLOTS, 2, HIDDEN), normal(rng, SLOTS, KEY, VALUE)
    return weights(rng), pools, slot_map(rng), normal(rng, LANES, HIDDEN)


def draw_rows(rng: np.random.Generator) -> tuple[Any, ...]:
    pools = normal(rng, LANES, 2, HIDDEN), normal(rng, LANES, KEY, VALUE)
    return weights(rng), pools, normal(rng, LANES, HIDDEN)


def one(w, tail, state, x):
    """One token of one sequence: tail [2, D], state [K, V], x [D]."""
    mixed = jax.nn.silu(tail.sum(0) + x)
    state = 0.9 * state + jnp.outer(w["k"] @ mixed, w["v"] @ mixed)
    return jnp.concatenate([tail[1:], x[None]]), state, jnp.tanh(w["q"] @ mixed) @ state


def unrolled_step(w, pools, slots, x):
    """A loop in Python; rows are read and written by slot."""
    tails, states = pools
    out = []
    for i in range(LANES):
        tail = lax.dynamic_slice(tails, (slots[i], 0, 0), (1, 2, HIDDEN))[0]
        state = lax.dynamic_index_in_dim(states, slots[i], keepdims=False)
        tail, state, y = one(w, tail, state, x[i])
        tails = lax.dynamic_update_slice(tails, tail[None], (slots[i], 0, 0))
        states = lax.dynamic_update_index_in_dim(states, state, slots[i], 0)
        out.append(y)
    return (tails, states), jnp.stack(out)


def indexed_step(w, pools, slots, x):
    """The same with brackets, results collected by `.at` in an array of lanes."""
    tails, states = pools
    out = jnp.zeros((LANES, VALUE))
    for i, slot in enumerate(slots):
        tail, state, y = one(w, tails[slot], states[slot], x[i])
        tails, states = tails.at[slot].set(tail), states.at[slot].set(state)
        out = out.at[i].set(y)
    return (tails, states), out


def read_first_step(w, pools, slots, x):
    """All rows are read before the first write and joined by `concatenate`."""
    read = [(pools[0][slots[i]], pools[1][slots[i]]) for i in range(LANES)]
    rows = [one(w, *read[i], x[i]) for i in range(LANES)]
    tails, states = (jnp.concatenate([row[i][None] for row in rows]) for i in range(2))
    return (pools[0].at[slots].set(tails), pools[1].at[slots].set(states)), jnp.vstack([row[2] for row in rows])


def fori_step(w, pools, slots, x):
    """A loop over lanes that carries the pools and an array of results."""

    def body(i, carry):
        (tails, states), out = carry
        tail, state, y = one(w, tails[slots[i]], states[slots[i]], x[i])
        return (tails.at[slots[i]].set(tail), states.at[slots[i]].set(state)), out.at[i].set(y)

    return lax.fori_loop(0, LANES, body, (pools, jnp.zeros((LANES, VALUE))))


def scan_step(w, pools, slots, x):
    """A scan over slots and inputs of the lanes; pools are carried, rows sliced."""

    def body(pools, lane):
        slot, x = lane
        tail, state = (lax.dynamic_index_in_dim(pool, slot, 0, keepdims=False) for pool in pools)
        tail, state, y = one(w, tail, state, x)
        return tuple(
            lax.dynamic_update_index_in_dim(p, r, slot, 0) for p, r in zip(pools, (tail, state), strict=True)
        ), y

    return lax.scan(body, pools, (slots, x))


def map_step(w, pools, slots, x):
    """A map over lanes of gathered rows: nothing is carried from one to the next."""
    rows = tuple(pool[slots] for pool in pools)
    tails, states, y = lax.map(lambda lane: one(w, *lane), (*rows, x))
    return (pools[0].at[slots].set(tails), pools[1].at[slots].set(states)), y


def rows_step(w, pools, x):
    """A loop in Python over the rows of row pools."""
    new = [one(w, pools[0][i], pools[1][i], x[i]) for i in range(LANES)]
    tails, states, y = (jnp.stack(parts) for parts in zip(*new, strict=True))
    return (tails, states), y


def rows_in_place_step(w, pools, x):
    """The same, each row written when it is computed."""
    tails, states = pools
    out = []
    for i in range(LANES):
        tail, state, y = one(w, tails[i], states[i], lax.index_in_dim(x, i, keepdims=False))
        tails, states = tails.at[i].set(tail), lax.dynamic_update_slice_in_dim(states, state[None], i, 0)
        out.append(y[None])
    return (tails, states), jnp.concatenate(out)


PROGRAMS = (
    Program("loop over lanes, unrolled", unrolled_step, CONTRACT, draw),
    Program("loop over lanes, unrolled, by brackets", indexed_step, CONTRACT, draw),
    Program("loop over lanes, all reads first", read_first_step, CONTRACT, draw),
    Program("loop over lanes", fori_step, CONTRACT, draw),
    Program("scan over lanes with carried pools", scan_step, CONTRACT, draw),
    Program("map over lanes", map_step, CONTRACT, draw),
    Program("loop over row pools", rows_step, ROWS, draw_rows),
    Program("loop over row pools, in place", rows_in_place_step, ROWS, draw_rows),
)
