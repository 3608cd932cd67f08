"""Page table faults: other pages, offsets, padding writes, wrong strides."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from mutants.mutant import Kind, wrong
from zoo.attention import attend, project, rotate
from zoo.pages import CHUNK, HIDDEN, KV, LANES, LAYERS, PAGE, PAGES, SIZE, WIDE, of_lane, visible

BAD = (Kind.WRONG_ROW, Kind.CROSS_LANE, Kind.FRAME, Kind.BOUNDS, Kind.IDLE, Kind.CONSTANT)
Pages = Callable[[Any, Any], Any]


def _taken(tables: Any, index: Any) -> Any:
    return jnp.take_along_axis(tables, index[:, None], axis=1, mode="clip")[:, 0]


def _decoding(page: Pages = _taken, offset: int = 0, read: Pages = lambda tables, _: tables) -> Any:
    """Decoding with another page of the write, another offset, another table of the reads."""

    def step(w, pools, tables, positions, x):
        q, k, v = project(w, x)
        q, k = rotate(q, positions), rotate(k, positions)
        index, place = page(tables, positions // PAGE), (positions + offset) % PAGE
        pools = {"k": pools["k"].at[index, place].set(k), "v": pools["v"].at[index, place].set(v)}
        calls = read(tables, positions)
        y = attend(q, of_lane(pools["k"], calls), of_lane(pools["v"], calls), visible(positions))
        return y @ w["o"].T, pools

    return step


def _chosen(other: Pages) -> Any:
    """The last choice of `where` is something else."""

    def step(w, pools, tables, positions, x):
        q, k, v = project(w, x)
        page = jnp.where(positions // PAGE == 1, tables[:, 1], other(tables, positions))
        y = attend(q, of_lane(pools["k"], tables), of_lane(pools["v"], tables), visible(positions - 1))
        new = {name: pools[name].at[page, positions % PAGE].set(each) for name, each in (("k", k), ("v", v))}
        return y @ w["o"].T, new

    return step


def _chunks(guard: Pages, mode: str = "drop") -> Any:
    """Tokens behind a lane's length written somewhere."""

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


def _flat(
    stride: int = PAGE, shift: int = 0, rows: Callable[[Any], Any] = lambda rows: rows, mode: str = "drop"
) -> Any:
    """Rows read with another stride or shifted by one, rows written by others, clamped."""

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


def _whole(stride: int = PAGE, shift: int = 0) -> Any:
    def step(pool, tables, positions, x):
        page = tables[jnp.arange(LANES), positions // PAGE]
        flat = pool.reshape(PAGES * PAGE, 2)
        return (flat.at[page * stride + positions % PAGE + shift].add(x).reshape(PAGES, PAGE, 2),)

    return step


def computed_everywhere(pool, tables, positions, x):
    """The pages of every lane and of none are computed with."""
    return (pool * 0.5,)


def split_otherwise(pool, tables, positions, x):
    """Pages taken apart again with the page axis and the axis of tokens swapped."""
    page = tables[jnp.arange(LANES), positions // PAGE]
    return (pool.reshape(PAGE, PAGES, 2).at[positions % PAGE, page].add(x).reshape(PAGES, PAGE, 2),)


def _one(base: str, id: str, description: str, step: Any, source: str = "vLLM", **options: Any) -> Any:
    return wrong(base, f"page-{id}", source, description, step, *BAD, **options)


DECODE, WHERE, CHUNKS = (f"paged attention, {name}" for name in ("decoding", "page chosen by where", "chunks"))
FLAT, WHOLE = "flat token pool of several layers", "pages seen as a flat token pool"
MUTANTS = (
    _one(DECODE, "after", "the page behind the lane's", _decoding(lambda tables, index: _taken(tables, index) + 1)),
    _one(DECODE, "of-neighbour", "the table of the next lane", _decoding(lambda t, i: _taken(jnp.roll(t, 1, 0), i))),
    _one(DECODE, "as-position", "the place of the page in its table is the page", _decoding(lambda _, index: index)),
    _one(DECODE, "read-of-neighbour", "pages are read by the lanes' tables in reverse",
         _decoding(read=lambda tables, _: tables[::-1])),
    _one(DECODE, "of-lane-0", "every lane attends to the pages of lane 0",
         _decoding(read=lambda tables, _: jnp.broadcast_to(tables[:1], tables.shape))),
    _one(WHERE, "choice-other", "the last choice is the next lane's page", _chosen(lambda t, _: jnp.roll(t[:, 2], 1))),
    _one(WHERE, "choice-constant", "the last choice is page 3", _chosen(lambda t, _: 3)),
    _one(WHERE, "choice-null", "the last choice is the null page, which all lanes read", _chosen(lambda t, _: 0)),
    _one(WHERE, "choice-end", "the last choice counts from the end", _chosen(lambda t, _: -1)),
    _one(CHUNKS, "padding-null", "padding goes to the null page", _chunks(lambda real, page: jnp.where(real, page, 0))),
    _one(CHUNKS, "padding-clamped", "padding past the end is clamped to the last page",
         _chunks(lambda real, page: jnp.where(real, page, PAGES), mode="clip")),
    _one(CHUNKS, "padding-minus-one", "padding at -1 is the last page",
         _chunks(lambda real, page: jnp.where(real, page, -1))),
    _one(CHUNKS, "padding-kept", "padding goes where a token would, over the rows of an idle lane",
         _chunks(lambda real, page: page)),
    _one(FLAT, "stride", "rows are read as if pages had one token less", _flat(stride=PAGE - 1)),
    _one(FLAT, "shift", "rows are read shifted by one token", _flat(shift=1)),
    _one(FLAT, "rows-clamped", "rows past the end are clamped to the last one", _flat(mode="clip")),
    _one(FLAT, "rows-rolled", "rows of the next lane are written", _flat(rows=lambda rows: jnp.roll(rows, 1))),
    _one(WHOLE, "flat-shift", "the row behind the lane's", _whole(shift=1)),
    _one(WHOLE, "flat-stride", "a page is taken for a row", _whole(stride=1)),
    _one(WHOLE, "everywhere", "all pages are computed with", computed_everywhere),
    _one(WHOLE, "swapped", "pages and offsets swapped", split_otherwise),
)  # fmt: skip
