"""Attention with a cache behind a slot map or in row pools, with lane positions."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from zoo.program import CONTEXT, HEADS, HIDDEN, LANES, SLOTS, Program, normal, slot_map, weight

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

KV, SIZE, WINDOW, BLOCK = 2, 3, 5, 4
CACHE = {"k": Pool("kv"), "v": Pool("kv")}
SLOTTED = LaneContract(inputs=(Shared(), CACHE, SlotMap("kv", SLOTS), Lane(), Lane()), outputs=(Lane(), CACHE))
ROWS = LaneContract(inputs=(Shared(), CACHE, Lane(), Lane()), outputs=(Lane(), CACHE))
BLOCKS = LaneContract(inputs=(*SLOTTED.inputs, Shared()), outputs=SLOTTED.outputs)


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "q": weight(rng, KV * HEADS, SIZE, HIDDEN),
        "kv": weight(rng, 2, KV, SIZE, HIDDEN),
        "o": weight(rng, HIDDEN, KV * HEADS * SIZE),
    }


def cache(rng: np.random.Generator, rows: int, context: int = CONTEXT) -> dict[str, np.ndarray]:
    return {name: normal(rng, rows, context, KV, SIZE) for name in ("k", "v")}


def positions(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, CONTEXT, LANES).astype(np.int32)


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return weights(rng), cache(rng, SLOTS), slot_map(rng), positions(rng), normal(rng, LANES, HIDDEN)


def draw_rows(rng: np.random.Generator, context: int = CONTEXT) -> tuple[Any, ...]:
    return weights(rng), cache(rng, LANES, context), positions(rng), normal(rng, LANES, HIDDEN)


def draw_blocks(rng: np.random.Generator) -> tuple[Any, ...]:
    args = draw(rng)
    return (*args, np.int32(args[3].max() // BLOCK + 1))


def project(w: Any, x: Array) -> tuple[Array, Array, Array]:
    k, v = jnp.einsum("ckdh,nh->cnkd", w["kv"], x)
    return jnp.einsum("qdh,nh->nqd", w["q"], x).reshape(-1, KV, HEADS, SIZE), k, v


def rotate(x: Array, position: Array) -> Array:
    """Rotary embedding of the first two channels."""
    angle = position.astype(jnp.float32)
    sin, cos = (f(angle).reshape(angle.shape + (1,) * (x.ndim - angle.ndim - 1)) for f in (jnp.sin, jnp.cos))
    a, b, rest = x[..., 0], x[..., 1], x[..., 2:]
    return jnp.concatenate([jnp.stack([a * cos - b * sin, a * sin + b * cos], axis=-1), rest], axis=-1)


def attend(q: Array, k: Array, v: Array, mask: Array) -> Array:
    scores = jnp.einsum("nkgd,nckd->nkgc", q, k) * SIZE**-0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None, :], scores, -jnp.inf), axis=-1)
    return jnp.einsum("nkgc,nckd->nkgd", weights, jnp.where(mask[:, :, None, None], v, 0.0)).reshape(len(q), -1)


def slots_step(w, pools, slots, positions, x):
    """Writes first, then reads its rows with the new token in them."""
    q, k, v = project(w, x)
    q, k = rotate(q, positions), rotate(k, positions)
    pools = {"k": pools["k"].at[slots, positions].set(k), "v": pools["v"].at[slots, positions].set(v)}
    mask = jnp.arange(CONTEXT, dtype=jnp.int32)[None] <= positions[:, None]
    return attend(q, pools["k"][slots], pools["v"][slots], mask) @ w["o"].T, pools


def rows_step(w, pools, positions, x):
    """Row pools; each lane's token goes to its position by a vmapped `dynamic_update_slice`."""
    q, k, v = project(w, x)
    q, k = rotate(q, positions), rotate(k, positions)
    write = jax.vmap(lambda cache, new, position: lax.dynamic_update_slice(cache, new[None], (position, 0, 0)))
    pools = {"k": write(pools["k"], k, positions), "v": write(pools["v"], v, positions)}
    mask = jnp.arange(CONTEXT, dtype=jnp.int32)[None] <= positions[:, None]
    return attend(q, pools["k"], pools["v"], mask) @ w["o"].T, pools


def ring_step(w, pools, positions, x):
    """A sliding window: the cache is a ring, lanes are `arange`, positions modulo its length."""
    q, k, v = project(w, x)
    lanes = jnp.arange(x.shape[0], dtype=jnp.int32)
    place = positions % WINDOW
    pools = {"k": pools["k"].at[lanes, place].set(k), "v": pools["v"].at[lanes, place].set(v)}
    ages = positions[:, None] - (place[:, None] - jnp.arange(WINDOW, dtype=jnp.int32)[None]) % WINDOW
    return attend(q, pools["k"], pools["v"], ages >= 0) @ w["o"].T, pools


def one_hot_step(w, pools, positions, x):
    """Write by `where` over positions; the sum over the cache is a sum of products."""
    q, k, v = project(w, x)
    place = jax.nn.one_hot(positions, CONTEXT, dtype=bool)[:, :, None, None]
    pools = {"k": jnp.where(place, k[:, None], pools["k"]), "v": jnp.where(place, v[:, None], pools["v"])}
    mask = jnp.tril(jnp.ones((CONTEXT, CONTEXT), bool)).at[positions].get(mode="fill", fill_value=False)
    return attend(q, pools["k"], pools["v"], mask) @ w["o"].T, pools


def one_lane(w, pools, position, x):
    """A single lane: a window of the cache is read with `dynamic_slice`."""
    q, k, v = (y[0] for y in project(w, x[None]))
    pools = {
        "k": lax.dynamic_update_index_in_dim(pools["k"], k, position, 0),
        "v": pools["v"].at[position].set(v, mode="drop"),
    }
    begin = jnp.maximum(position - WINDOW + 1, 0)
    k = lax.dynamic_slice(pools["k"], (begin, 0, 0), (WINDOW, KV, SIZE))
    v = lax.dynamic_slice_in_dim(pools["v"], begin, WINDOW)
    mask = jnp.arange(WINDOW, dtype=jnp.int32) + begin <= position
    scores = jnp.where(mask[None, None], jnp.einsum("kgd,ckd->kgc", q, k), -1e30)
    scores = jnp.exp(scores - scores.max(-1, keepdims=True))
    y = jnp.einsum("kgc,ckd->kgd", scores / scores.sum(-1, keepdims=True), jnp.where(mask[:, None, None], v, 0.0))
    return w["o"] @ y.reshape(-1), pools


def vmapped_rows_step(w, pools, positions, x):
    return jax.vmap(functools.partial(one_lane, w))(pools, positions, x)


def blocks_step(w, pools, slots, positions, x, blocks):
    """A loop to the last block that any lane needs, counted by the host."""
    q, k, v = project(w, x)
    pools = {
        "k": pools["k"].at[slots, positions].set(k, mode="drop"),
        "v": pools["v"].at[slots, positions].set(v, mode="drop"),
    }
    keys, values = pools["k"][slots], pools["v"][slots]

    def block(carry):
        i, best, total, out = carry
        k = lax.dynamic_slice_in_dim(keys, i * BLOCK, BLOCK, axis=1)
        v = lax.dynamic_slice_in_dim(values, i * BLOCK, BLOCK, axis=1)
        mask = (i * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32))[None] <= positions[:, None]
        v = jnp.where(mask[:, :, None, None], v, 0.0)
        scores = jnp.where(mask[:, None, None], jnp.einsum("nkgd,nckd->nkgc", q, k), -1e30)
        top = jnp.maximum(best, scores.max(-1))
        scale, scores = jnp.exp(best - top), jnp.exp(scores - top[..., None])
        out = out * scale[..., None] + jnp.einsum("nkgc,nckd->nkgd", scores, v)
        return i + 1, top, total * scale + scores.sum(-1), out

    begin = (jnp.int32(0), jnp.full(q.shape[:3], -1e30), jnp.zeros(q.shape[:3]), jnp.zeros_like(q))
    _, _, total, out = lax.while_loop(lambda carry: carry[0] < blocks, block, begin)
    return (out / total[..., None]).reshape(len(x), -1) @ w["o"].T, pools


PROGRAMS = (
    Program("attention", slots_step, SLOTTED, draw),
    Program("attention, row pools", rows_step, ROWS, draw_rows),
    Program("attention, ring of a window", ring_step, ROWS, functools.partial(draw_rows, context=WINDOW)),
    Program("attention, one-hot positions", one_hot_step, ROWS, draw_rows),
    Program("attention, row pools, vmapped", vmapped_rows_step, ROWS, draw_rows),
    Program("attention, blocks in a loop", blocks_step, BLOCKS, draw_blocks),
)
