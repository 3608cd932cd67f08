"""Paged caches as in JetStream, SGLang-JAX and vLLM: shared prefixes, flat pools, layers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from zoo.attention import KV, SIZE, attend, project, rotate, weights
from zoo.program import HIDDEN, LANES, Program, normal

from ir_passes import Lane, LaneContract, PageTable, Pool, Shared

PAGE, WIDE, PAGES, LAYERS, CHUNK = 3, 4, 19, 2, 5
"""Tokens of a page, pages of a lane, pages of a pool, layers, tokens of a chunk."""
CACHE = {"k": Pool("kv"), "v": Pool("kv")}
TABLE = PageTable("kv", PAGES)
DECODE = LaneContract(inputs=(Shared(), CACHE, TABLE, Lane(), Lane()), outputs=(Lane(), CACHE))
CHUNKED = LaneContract(inputs=(*DECODE.inputs, Lane(role="length")), outputs=DECODE.outputs)
FLAT_CACHE = {"k": Pool("kv", axis=1), "v": Pool("kv", axis=1)}
FLAT = LaneContract(
    inputs=(
        Shared(), FLAT_CACHE, PageTable("kv", PAGES, page_size=PAGE, role="read"),
        PageTable("kv", PAGES * PAGE, role="write"), Lane(), Lane(),
    ),
    outputs=(Lane(), FLAT_CACHE),
)  # fmt: skip
WHOLE = LaneContract(inputs=(Pool("kv"), TABLE, Lane(), Lane()), outputs=(Pool("kv"),))


def table(rng: np.random.Generator) -> np.ndarray:
    """Draw pages: the first may be shared, the last may be the null page.

    In half of the draws all pages are the lane's own, so that it may write to any of them.
    """
    table, free = np.zeros((LANES, WIDE), np.int32), 1 + rng.permutation(PAGES - 1)
    if rng.random() < 0.5:
        return free[: LANES * WIDE].reshape(LANES, WIDE).astype(np.int32)
    table[:, :3] = free[: 3 * LANES].reshape(LANES, 3)
    sharing = rng.random(LANES) < 0.6
    table[sharing, 0] = free[3 * LANES]
    table[0, 3] = free[3 * LANES + 1] * rng.integers(0, 2)
    return table


def positions_of(rng: np.random.Generator, chunk: int = 1) -> np.ndarray:
    """Return start positions of a chunk inside each lane's unshared pages."""
    return rng.integers(PAGE, 3 * PAGE - chunk + 1, LANES).astype(np.int32)


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    cache = {name: normal(rng, PAGES, PAGE, KV, SIZE) for name in ("k", "v")}
    return weights(rng), cache, table(rng), positions_of(rng), normal(rng, LANES, HIDDEN)


def draw_chunk(rng: np.random.Generator) -> tuple[Any, ...]:
    w, cache, tables, _, _ = draw(rng)
    lengths = rng.integers(0, CHUNK + 1, LANES).astype(np.int32)
    return w, cache, tables, positions_of(rng, CHUNK), normal(rng, LANES, CHUNK, HIDDEN), lengths


def draw_flat(rng: np.random.Generator) -> tuple[Any, ...]:
    """The host computes tokens' rows; rows of lanes without writes are past the end."""
    w, _, tables, positions, x = draw(rng)
    cache = {name: normal(rng, LAYERS, PAGES * PAGE, KV, SIZE) for name in ("k", "v")}
    rows = tables[np.arange(LANES), positions // PAGE] * PAGE + positions % PAGE
    rows = np.where(rng.random(LANES) < 0.2, PAGES * PAGE, rows).astype(np.int32)
    return w, cache, tables, rows, positions, x


def draw_whole(rng: np.random.Generator) -> tuple[Any, ...]:
    _, _, tables, positions, _ = draw(rng)
    return normal(rng, PAGES, PAGE, 2), tables, positions, normal(rng, LANES, 2)


def of_lane(pool: jax.Array, tables: jax.Array) -> jax.Array:
    """Return all tokens of each lane's pages, unused pages included."""
    return pool[tables].reshape(LANES, WIDE * PAGE, *pool.shape[2:])


def visible(positions: jax.Array) -> jax.Array:
    return jnp.arange(WIDE * PAGE, dtype=jnp.int32)[None] <= positions[:, None]


Pages = Callable[[Any, Any], Any]


def taken(tables: Any, index: Any) -> Any:
    """Return the page of each lane at a place of its table."""
    return jnp.take_along_axis(tables, index[:, None], axis=1)[:, 0]


def decoding(page: Pages = taken, offset: int = 0, read: Pages = lambda tables, _: tables) -> Any:
    """Decode with a page and an offset of the write, and a table of the reads: those of the position, or wrong ones."""

    def step(w, pools, tables, positions, x):
        q, k, v = project(w, x)
        q, k = rotate(q, positions), rotate(k, positions)
        index, place = page(tables, positions // PAGE), (positions + offset) % PAGE
        pools = {"k": pools["k"].at[index, place].set(k), "v": pools["v"].at[index, place].set(v)}
        calls = read(tables, positions)
        y = attend(q, of_lane(pools["k"], calls), of_lane(pools["v"], calls), visible(positions))
        return y @ w["o"].T, pools

    return step


def chosen_step(w, pools, tables, positions, x):
    """The page is chosen by `where` and read before the write; the token is appended."""
    q, k, v = project(w, x)
    number, page = positions // PAGE, tables[:, WIDE - 1]
    for place in reversed(range(WIDE - 1)):
        page = jnp.where(number == place, tables[:, place], page)
    old = visible(positions - 1)
    mask = jnp.concatenate([old, jnp.ones((LANES, 1), bool)], axis=1)
    keys = jnp.concatenate([of_lane(pools["k"], tables), k[:, None]], axis=1)
    values = jnp.concatenate([of_lane(pools["v"], tables), v[:, None]], axis=1)
    y = attend(q, keys, values, mask) @ w["o"].T
    return y, {name: pools[name].at[page, positions % PAGE].set(new) for name, new in (("k", k), ("v", v))}


def chunks(guard: Pages = lambda real, page: jnp.where(real, page, PAGES), mode: str = "drop") -> Any:
    """Several tokens per lane; tokens behind the length are dropped past the last page, or written somewhere."""

    def step(w, pools, tables, positions, x, lengths):
        q, k, v = project(w, x.reshape(-1, HIDDEN))
        index = positions[:, None] + jnp.arange(CHUNK, dtype=jnp.int32)[None]
        real = jnp.arange(CHUNK, dtype=jnp.int32)[None] < lengths[:, None]
        page = guard(real, tables.at[jnp.arange(LANES)[:, None], index // PAGE].get(mode="clip"))
        k, v = (new.reshape(LANES, CHUNK, KV, SIZE) for new in (k, v))
        pools = {
            "k": pools["k"].at[page, index % PAGE].set(k, mode=mode),
            "v": pools["v"].at[page, index % PAGE].set(v, mode=mode),
        }
        last = q.reshape(LANES, CHUNK, *q.shape[1:])[:, 0]
        mask = visible(positions) & (lengths > 0)[:, None]
        return attend(last, of_lane(pools["k"], tables), of_lane(pools["v"], tables), mask) @ w["o"].T, pools

    return step


def flat(stride: int = PAGE, shift: int = 0, rows: Callable[[Any], Any] = lambda rows: rows, mode: str = "drop") -> Any:
    """Pools of [layer, token]; the rows that are read are made of pages and offsets, or of wrong ones."""

    def step(w, pools, tables, written, positions, x):
        offsets = jnp.arange(PAGE, dtype=jnp.int32)[None, None] + shift
        read = (tables[:, :, None] * stride + offsets).reshape(LANES, WIDE * PAGE)
        for layer in range(LAYERS):
            q, k, v = project(w, x)
            pools = {
                "k": pools["k"].at[layer, rows(written)].set(k, mode=mode),
                "v": pools["v"].at[layer, rows(written)].set(v, mode=mode),
            }
            y = attend(rotate(q, positions), pools["k"][layer, read], pools["v"][layer, read], visible(positions))
            x = x + y @ w["o"].T
        return x, pools

    return step


def whole_step(pool, tables, positions, x):
    """Pages are reshaped to a flat pool, written, reshaped back, then added to."""
    page = tables[jnp.arange(LANES), positions // PAGE]
    flat = pool.reshape(PAGES * PAGE, 2).at[page * PAGE + positions % PAGE].multiply(0.5)
    return (flat.reshape(PAGES, PAGE, 2).at[page, positions % PAGE].add(x),)


PROGRAMS = (
    Program("paged attention, decoding", decoding(), DECODE, draw),
    Program("paged attention, page chosen by where", chosen_step, DECODE, draw),
    Program("paged attention, chunks", chunks(), CHUNKED, draw_chunk),
    Program("flat token pool of several layers", flat(), FLAT, draw_flat),
    Program("pages seen as a flat token pool", whole_step, WHOLE, draw_whole),
)
