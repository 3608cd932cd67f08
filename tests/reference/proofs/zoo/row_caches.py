"""Row caches in the manner of MaxText and JAX-LLM-examples: prefill by segment ids, decoding, rings."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from zoo.attention import HEADS, KV, SIZE, WINDOW, attend, project, rotate, weights
from zoo.program import CONTEXT, HIDDEN, LANES, TOKENS, Program, normal

from ir_passes import Lane, LaneContract, Pool, Shared

ROWS = {"k": Pool("kv"), "v": Pool("kv"), "segment": Pool("kv")}
RING = {"k": Pool("kv"), "v": Pool("kv")}
PREFILL = LaneContract(inputs=(Shared(), ROWS, Lane(), Lane()), outputs=(Lane(), ROWS))
DECODE = LaneContract(inputs=(Shared(), ROWS, Lane(), Lane()), outputs=(Lane(), ROWS))
RINGS = LaneContract(inputs=(Shared(), RING, Shared(), Lane(), Lane()), outputs=(Lane(), RING))


def cache(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Keys and values of as many positions as the segments say."""
    mask = np.arange(CONTEXT)[None] < rng.integers(1, CONTEXT + 1, LANES)[:, None]
    rows = {name: normal(rng, LANES, CONTEXT, KV, SIZE) for name in ("k", "v")}
    return {**rows, "segment": mask.astype(np.int32)}


def draw_prefill(rng: np.random.Generator) -> tuple[Any, ...]:
    """Prompts of different lengths; the tokens behind them have segment 0."""
    lengths = rng.permutation(np.resize(1 + rng.permutation(TOKENS), LANES))
    segments = (np.arange(TOKENS)[None] < lengths[:, None]).astype(np.int32)
    return weights(rng), cache(rng), normal(rng, LANES, TOKENS, HIDDEN), segments


def draw_decode(rng: np.random.Generator) -> tuple[Any, ...]:
    positions = rng.permutation(CONTEXT)[:LANES].astype(np.int32)
    return weights(rng), cache(rng), positions, normal(rng, LANES, HIDDEN)


def draw_ring(rng: np.random.Generator) -> tuple[Any, ...]:
    """Draw a common place in the ring, and different starts of lanes."""
    rows = {name: normal(rng, LANES, WINDOW, KV, SIZE) for name in ("k", "v")}
    began = rng.permutation(np.resize(rng.permutation(WINDOW), LANES)).astype(np.int32)
    return weights(rng), rows, np.int32(rng.integers(0, 100)), began, normal(rng, LANES, HIDDEN)


def within(q: Array, k: Array, v: Array, mask: Array) -> Array:
    """Attention of the tokens of a prompt; q [n, t, heads], mask [n, t, s]."""
    k, v = (jnp.repeat(each, HEADS, axis=2) for each in (k, v))
    scores = jnp.where(mask[:, None], jnp.einsum("nthd,nshd->nhts", q, k) * SIZE**-0.5, -1e30)
    y = jnp.einsum("nhts,nshd->nthd", jax.nn.softmax(scores, axis=-1), v)
    return y.reshape(*y.shape[:2], -1)


def prefill(w: Any, x: Array, segments: Array) -> tuple[Array, Array, Array]:
    """Return results, keys and values of prompts: tokens see earlier tokens of their segment."""
    q, k, v = (each.reshape(LANES, TOKENS, *each.shape[1:]) for each in project(w, x.reshape(-1, HIDDEN)))
    q, offsets = q.reshape(LANES, TOKENS, KV * HEADS, SIZE), jnp.arange(TOKENS, dtype=jnp.int32)
    q, k = (rotate(each, jnp.broadcast_to(offsets, (LANES, TOKENS))) for each in (q, k))
    mask = (segments[:, :, None] == segments[:, None, :]) & (offsets[:, None] >= offsets[None, :])[None]
    return x + within(q, k, v, mask) @ w["o"].T, k, v


def prefill_step(w, pools, x, segments):
    """The new rows begin with the prompt; behind it they hold zeros of segment 0."""
    y, k, v = prefill(w, x, segments)
    padding = CONTEXT - TOKENS
    rows = {"k": k, "v": v, "segment": segments}
    return y, {name: jnp.pad(row, ((0, 0), (0, padding), *[(0, 0)] * (row.ndim - 2))) for name, row in rows.items()}


def put_by_lane(pool: Array, new: Array, positions: Array) -> Array:
    """Each lane's entry at its position, in a loop over lanes."""

    def put(lane, pool):
        begin = (lane, positions[lane], *[jnp.int32(0)] * (pool.ndim - 2))
        return lax.dynamic_update_slice(pool, lax.dynamic_slice_in_dim(new, lane, 1)[:, None], begin)

    return lax.fori_loop(0, LANES, put, pool, unroll=LANES)


Change = Callable[[Array], Array]
unchanged = lambda array: array


def decode(position: Change = unchanged, new: Change = unchanged, contents: Change = unchanged) -> Any:
    """Segments of a lane's row select its visible tokens; positions, entries and segments may be other ones."""

    def step(w, pools, positions, x):
        q, k, v = project(w, x)
        q, k = rotate(q, positions), rotate(k, positions)
        news = {"k": new(k), "v": v, "segment": jnp.ones(LANES, jnp.int32)}
        pools = {name: put_by_lane(pools[name], new, position(positions)) for name, new in news.items()}
        return attend(q, pools["k"], pools["v"], contents(pools["segment"]) == 1) @ w["o"].T, pools

    return step


def seen(position: Array, began: Array) -> Array:
    """The places of a ring that a lane has written since it began."""
    ago = (position - jnp.arange(WINDOW, dtype=jnp.int32)) % WINDOW
    return ago[None] <= began[:, None]


def ring_step(w, pools, steps, began, x):
    """All lanes write at one place of the ring, given by the step count."""
    q, k, v = project(w, x)
    place = steps % WINDOW
    pools = {
        "k": lax.dynamic_update_slice_in_dim(pools["k"], k[:, None], place, axis=1),
        "v": lax.dynamic_update_index_in_dim(pools["v"], v, place, 1),
    }
    return attend(q, pools["k"], pools["v"], seen(place, began)) @ w["o"].T, pools


PROGRAMS = (
    Program("row cache, prefill by segment ids", prefill_step, PREFILL, draw_prefill),
    Program("row cache, decoding by segment ids", decode(), DECODE, draw_decode),
    Program("row cache, ring of a shared index", ring_step, RINGS, draw_ring),
)
