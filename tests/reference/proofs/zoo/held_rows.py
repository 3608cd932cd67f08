"""One pool for an engine: idle lanes on other or free rows, no null row."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from zoo.program import CONTEXT, HIDDEN, KEY, LANES, SLOTS, VALUE, Program, normal, weight
from zoo.rows import advance

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

POOLS = Pool("seq"), Pool("seq")
HELD = LaneContract(
    inputs=(POOLS, SlotMap("seq", SLOTS, null=False), Lane(), Shared(), Lane(role="length"), Lane()),
    outputs=(Lane(), POOLS),
)


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    pools = normal(rng, SLOTS, KEY, VALUE), normal(rng, SLOTS, CONTEXT, HIDDEN)
    slots, lengths = rng.permutation(SLOTS)[:LANES].astype(np.int32), rng.integers(0, 2, LANES).astype(np.int32)
    positions = rng.integers(0, CONTEXT, LANES).astype(np.int32)
    return pools, slots, normal(rng, LANES, HIDDEN), weight(rng, KEY * VALUE, HIDDEN), lengths, positions


def attended(cache, slots, positions):
    """A sum over the positions so far, in the lane's row."""
    visible = jnp.arange(CONTEXT)[None] <= positions[:, None]
    return jnp.where(visible[..., None], cache[slots], 0.0).sum(1)


def appended(cache, slots, x, lengths, positions):
    """Write each lane's token at its position; idle lanes write past the end."""
    places = jnp.where(lengths > 0, positions, CONTEXT)
    return cache.at[slots, places].set(x, mode="drop", unique_indices=True, wrap_negative_indices=False)


def held_step(pools, slots, x, w, lengths, positions):
    """Idle lanes write back their read state, and nothing to the cache."""
    states, cache = pools
    rows = states.at[slots].get(mode="promise_in_bounds", unique_indices=True)
    new = jnp.where((lengths > 0)[:, None, None], advance(rows, x, w), rows)
    states = states.at[slots].set(new, mode="promise_in_bounds", unique_indices=True)
    cache = appended(cache, slots, x, lengths, positions)
    return jnp.concatenate([new.sum(1), attended(cache, slots, positions)], axis=1), (states, cache)


PROGRAMS = (Program("idle lanes on rows that others hold", held_step, HELD, draw),)
