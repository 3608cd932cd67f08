"""Scans over layers: all layers' pool as `xs`, or as an indexed carry."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo.program import HEADS, HIDDEN, KEY, LANES, SLOTS, VALUE, Program, normal, slot_map, weight

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

LAYERS = 3
STACK = Pool("seq", axis=1)
CONTRACT = LaneContract(inputs=(Shared(), STACK, SlotMap("seq", SLOTS), Lane()), outputs=(Lane(), STACK))
ROWS = LaneContract(inputs=(Shared(), STACK, Lane(), Lane(role="length")), outputs=(Lane(), STACK))
TWO = LaneContract(
    inputs=(Shared(), {"conv": Pool("a", axis=1), "state": Pool("b", axis=1)}, SlotMap(("a", "b"), SLOTS), Lane()),
    outputs=(Lane(), {"conv": Pool("a", axis=1), "state": Pool("b", axis=1)}),
)


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "in": weight(rng, LAYERS, HEADS * (2 * KEY + VALUE), HIDDEN),
        "out": weight(rng, LAYERS, HIDDEN, HEADS * VALUE),
    }


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    pool = normal(rng, LAYERS, SLOTS, HEADS, KEY, VALUE)
    return weights(rng), pool, slot_map(rng), normal(rng, LANES, HIDDEN)


def draw_rows(rng: np.random.Generator) -> tuple[Any, ...]:
    pool = normal(rng, LAYERS, LANES, HEADS, KEY, VALUE)
    return weights(rng), pool, normal(rng, LANES, HIDDEN), rng.integers(0, 2, LANES).astype(np.int32)


def draw_two(rng: np.random.Generator) -> tuple[Any, ...]:
    w, pool, slots, x = draw(rng)
    return w, {"conv": normal(rng, LAYERS, SLOTS, 2, HIDDEN), "state": pool}, slots, x


def layer(w, state, x):
    """Linear attention: state [N, H, K, V], x [N, D]."""
    q, k, v = jnp.split(x @ w["in"].T, [HEADS * KEY, 2 * HEADS * KEY], axis=-1)
    q, k, v = (y.reshape((-1, HEADS, y.shape[-1] // HEADS)) for y in (q, k, v))
    state = 0.9 * state + k[..., None] * v[:, :, None]
    y = jnp.einsum("nhk,nhkv->nhv", jax.nn.softmax(q), state)
    return state, x + jnp.tanh(y.reshape(len(x), -1) @ w["out"].T)


def xs_step(w, pools, slots, x):
    """A layer's pool enters as one of `xs` and leaves as one of `ys`."""

    def body(x, inputs):
        w, pool = inputs
        rows, x = layer(w, pool[slots], x)
        return x, pool.at[slots].set(rows)

    return lax.scan(body, x, (w, pools))


def carry_step(w, pools, slots, x):
    """All layers' pools are carried; row and layer index one gather and one scatter."""

    def body(i, carry):
        pools, x = carry
        rows, x = layer(jax.tree.map(lambda leaf: leaf[i], w), pools[i, slots], x)
        return pools.at[i, slots].set(rows), x

    pools, x = lax.fori_loop(0, LAYERS, body, (pools, x))
    return x, pools


def sliced_step(w, pools, slots, x):
    """The layer is taken out of the carried pools and put back by dynamic slices."""

    def body(carry, inputs):
        pools, x = carry
        i, w = inputs
        pool = lax.dynamic_index_in_dim(pools, i, 0, keepdims=False)
        rows, x = layer(w, pool[slots], x)
        return (lax.dynamic_update_index_in_dim(pools, pool.at[slots].set(rows), i, 0), x), None

    (pools, x), _ = lax.scan(body, (pools, x), (jnp.arange(LAYERS), w))
    return x, pools


def unrolled_step(w, pools, slots, x):
    """A Python loop over layers, one gather of all rows, one scatter at the end."""
    rows, new = pools[:, slots], []
    for i in range(LAYERS):
        state, x = layer(jax.tree.map(lambda leaf, i=i: leaf[i], w), rows[i], x)
        new.append(state)
    return x, pools.at[:, slots].set(jnp.stack(new))


def rows_step(w, pools, x, lengths):
    """Row pools scanned over, idle lanes, the body recomputed for gradients."""

    @jax.checkpoint
    def body(x, inputs):
        w, pool = inputs
        rows, new = layer(w, pool, x)
        return jnp.where((lengths > 0)[:, None], new, x), jnp.where((lengths > 0)[:, None, None, None], rows, pool)

    return lax.scan(body, x, (w, pools))


def carried_rows_step(w, pools, x, lengths):
    """Row pools carried: a layer's rows are read, kept in idle lanes, and written."""

    def body(i, carry):
        pools, x = carry
        pool = lax.dynamic_index_in_dim(pools, i, 0, keepdims=False)
        rows, new = layer(jax.tree.map(lambda leaf: leaf[i], w), pool, x)
        rows = jnp.where((lengths > 0)[:, None, None, None], rows, pool)
        return lax.dynamic_update_index_in_dim(pools, rows, i, 0), jnp.where((lengths > 0)[:, None], new, x)

    pools, x = lax.fori_loop(0, LAYERS, body, (pools, x))
    return x, pools


def two_groups_step(w, pools, slots, x):
    """Two groups in one carry, with a branch on the layer for all lanes."""

    def body(carry, inputs):
        pools, x = carry
        i, w = inputs
        window = jnp.concatenate([pools["conv"][i, slots], x[:, None]], axis=1)
        x = lax.cond(i % 2 == 0, lambda w: w.sum(1), lambda w: w[:, 0] - w[:, 2], window)
        rows, x = layer(w, pools["state"][i, slots], x)
        pools = {"conv": pools["conv"].at[i, slots].set(window[:, 1:]), "state": pools["state"].at[i, slots].set(rows)}
        return (pools, x), None

    (pools, x), _ = lax.scan(body, (pools, x), (jnp.arange(LAYERS), w))
    return x, pools


PROGRAMS = (
    Program("layers scanned over with their pools", xs_step, CONTRACT, draw),
    Program("layers with carried pools", carry_step, CONTRACT, draw),
    Program("layers with carried pools, sliced", sliced_step, CONTRACT, draw),
    Program("layers unrolled", unrolled_step, CONTRACT, draw),
    Program("layers over row pools, idle lanes, remat", rows_step, ROWS, draw_rows),
    Program("layers over carried row pools, idle lanes", carried_rows_step, ROWS, draw_rows),
    Program("layers with two groups and a branch", two_groups_step, TWO, draw_two),
)
