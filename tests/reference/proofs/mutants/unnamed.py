"""Writes of unlabelled values into a labelled pool's dimensions."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from mutants.mutant import Evidence, Kind, Mutant, wrong
from zoo import labelled_layers as zoo
from zoo.labelled_layers import LANES, LAYERS, SIZE

SCANNED, UNROLLED, ROWS = (program.name for program in zoo.PROGRAMS)


def strange(x: Array, w: Array) -> Array:
    """[N, SIZE, SIZE] without known axes."""
    rest, right, _ = jnp.split(x @ w.T, 3, axis=-1)
    return rest[:, :, None] * right[:, None, :]


def _into_a_part(pool: Array, layer: Any, slots: Array, x: Array, w: Array) -> Array:
    part = lax.dynamic_index_in_dim(pool, layer, 0, keepdims=False)
    return lax.dynamic_update_index_in_dim(pool, part.at[slots].set(strange(x, w)), layer, 0)


def part_taken_out(pool, slots, x, w):
    for layer in range(LAYERS):
        pool = _into_a_part(pool, layer, slots, x, w[layer])
    return jnp.zeros((LANES, SIZE)), pool


def part_of_a_number(pool, slots, x, w):
    for layer in range(LAYERS):
        pool = pool.at[layer].set(pool[layer].at[slots].set(strange(x, w[layer])))
    return jnp.zeros((LANES, SIZE)), pool


def part_of_a_carry(pool, slots, x, w):
    pool = lax.fori_loop(0, LAYERS, lambda layer, pool: _into_a_part(pool, layer, slots, x, w[layer]), pool)
    return jnp.zeros((LANES, SIZE)), pool


def scanned(pool, slots, x, w):
    def body(total, layer):
        part, w = layer
        return total, part.at[slots].set(strange(x, w))

    return lax.scan(body, jnp.zeros((LANES, SIZE)), (pool, w))


def chosen(pool, lengths, x, w):
    y, _ = zoo.memory(pool, x, w)
    return y, jnp.where((lengths > 0)[:, None, None], strange(x, w), pool)


def carried(pool, lengths, x, w):
    y, _ = zoo.memory(pool, x, w)
    rows = lax.fori_loop(0, y.shape[1], lambda _, rows: strange(x, w), pool)
    return y, jnp.where((lengths > 0)[:, None, None], rows, pool)


def branch(pool, lengths, x, w):
    y, rows = zoo.memory(pool, x, w)
    rows = lax.cond(w[0, 0] > 0, lambda: rows, lambda: strange(x, w))
    return y, jnp.where((lengths > 0)[:, None, None], rows, pool)


def beside(pool, lengths, x, w):
    y, rows = zoo.memory(pool, x, w)
    rows = jnp.concatenate([rows[:1], strange(x, w)[1:]])
    return y, jnp.where((lengths > 0)[:, None, None], rows, pool)


def corners(pool, slots, x, w):
    total, _ = zoo.unrolled_step(pool, slots, x, w)
    for layer in range(LAYERS):
        _, rows = zoo.memory(pool[layer, slots], x, w[layer])
        pool = pool.at[layer, slots, :2, :2].set(rows.mT[:, :2, :2])
    return total, pool


def turned_in_a_loop(pool, lengths, x, w):
    y, rows = zoo.memory(pool, x, w)
    rows = pool + lax.fori_loop(0, 3, lambda _, rows: rows.mT, rows)
    return y, jnp.where((lengths > 0)[:, None, None], rows, pool)


def cut_across(pool, lengths, x, w):
    """Sizes 6, 4, 4 become 4, 4, 6."""
    y, rows = zoo.memory(pool, x, w)
    rows = jnp.stack([rows.mT] * 6, 1).reshape(LANES, SIZE, SIZE, 6)[..., 0]
    return y, jnp.where((lengths > 0)[:, None, None], rows, pool)


def _unnamed(base: str, id: str, description: str, step: Any, **changes: Any) -> Mutant:
    return wrong(base, id, "JAX", description, step, Kind.DIMENSIONS, evidence=Evidence.FAULT, **changes)


NO_LAYER = replace(zoo.STACK, dims=(None, "slot", "key", "value"))
SOME = replace(zoo.CONTRACT, inputs=(NO_LAYER, *zoo.CONTRACT.inputs[1:]), outputs=(zoo.CONTRACT.outputs[0], NO_LAYER))
VALUE_ONLY = replace(zoo.ROWS, dims=("row", None, "value"))
IDLE = replace(zoo.IDLE, inputs=(VALUE_ONLY, *zoo.IDLE.inputs[1:]), outputs=(zoo.IDLE.outputs[0], VALUE_ONLY))
MUTANTS = (
    _unnamed(UNROLLED, "unnamed-in-a-part", "written to a part that is taken out and put back", part_taken_out),
    _unnamed(UNROLLED, "unnamed-in-a-layer", "the same, the part taken by a number", part_of_a_number),
    _unnamed(UNROLLED, "unnamed-in-a-carry", "written to a part of a pool that a loop carries", part_of_a_carry),
    _unnamed(SCANNED, "unnamed-in-a-scan", "written to a part that is scanned over", scanned, contract=SOME),
    _unnamed(ROWS, "unnamed-where-active", "chosen by `where` in place of the old rows", chosen),
    _unnamed(ROWS, "unnamed-behind-a-loop", "a loop begins with the rows and ends with others", carried),
    _unnamed(ROWS, "unnamed-in-a-branch", "what one branch of a condition gives", branch),
    _unnamed(ROWS, "unnamed-beside-rows", "put together with rows of the pool", beside),
    _unnamed(UNROLLED, "exchanged-corner", "a part of both dimensions, exchanged", corners),
    _unnamed(ROWS, "exchanged-in-a-loop", "exchanged in each iteration, then added to the rows", turned_in_a_loop),
    _unnamed(ROWS, "cut-across", "reshaped across the ends of dimensions", cut_across, contract=IDLE),
)
