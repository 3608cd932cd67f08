"""Layers of one labelled pool, equal axis lengths: scanned, unrolled, as row pools."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from zoo.program import LANES, SLOTS, Program, normal, slot_map, weight

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

LAYERS, SIZE, INPUTS = 3, 4, 5
STACK = Pool("seq", axis=1, dims=("layer", "slot", "key", "value"))
CONTRACT = LaneContract(inputs=(STACK, SlotMap("seq", SLOTS), Lane(), Shared()), outputs=(Lane(), STACK))
ROWS = Pool("seq", dims=("row", "key", "value"))
IDLE = LaneContract(inputs=(ROWS, Lane(role="length"), Lane(), Shared()), outputs=(Lane(), ROWS))


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    x, w = normal(rng, LANES, INPUTS), weight(rng, LAYERS, 3 * SIZE, INPUTS)
    return normal(rng, LAYERS, SLOTS, SIZE, SIZE), slot_map(rng), x, w


def draw_rows(rng: np.random.Generator) -> tuple[Any, ...]:
    x, w = normal(rng, LANES, INPUTS), weight(rng, 3 * SIZE, INPUTS)
    return normal(rng, LANES, SIZE, SIZE), rng.integers(0, 2, LANES).astype(np.int32), x, w


def memory(state: Array, x: Array, w: Array) -> tuple[Array, Array]:
    """Linear attention: outputs and the new state [N, K, V]."""
    q, k, v = jnp.split(x @ w.T, 3, axis=-1)
    state = 0.9 * state + k[:, :, None] * v[:, None, :]
    return jnp.einsum("nkv,nk->nv", state, q), state


def scanned_step(pool, slots, x, w):
    """The layers come in as `xs` and leave as `ys`."""

    def body(total, layer):
        part, w = layer
        y, rows = memory(part[slots], x, w)
        return total + y, part.at[slots].set(rows)

    return lax.scan(body, jnp.zeros((LANES, SIZE)), (pool, w))


def unrolled_step(pool, slots, x, w):
    """Each layer is read and written at a constant index."""
    total = jnp.zeros((LANES, SIZE))
    for layer in range(LAYERS):
        part = pool[layer]
        y, rows = memory(part[slots], x, w[layer])
        pool, total = pool.at[layer].set(part.at[slots].set(rows)), total + y
    return total, pool


def idle_step(pool, lengths, x, w):
    y, rows = memory(pool, x, w)
    return y, jnp.where((lengths > 0)[:, None, None], rows, pool)


PROGRAMS = (
    Program("labelled layers scanned over", scanned_step, CONTRACT, draw),
    Program("labelled layers unrolled", unrolled_step, CONTRACT, draw),
    Program("labelled row pool, idle lanes", idle_step, IDLE, draw_rows),
)
