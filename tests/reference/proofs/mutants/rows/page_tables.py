"""Page table faults: other pages, offsets, padding writes, wrong strides."""

from typing import Any

import jax.numpy as jnp
from mutants.mutant import Kind, wrong
from zoo.attention import attend, project
from zoo.pages import LANES, PAGE, PAGES, Pages, chunks, decoding, flat, of_lane, taken, visible

BAD = (Kind.WRONG_ROW, Kind.CROSS_LANE, Kind.FRAME, Kind.BOUNDS, Kind.IDLE, Kind.CONSTANT)


def _chosen(other: Pages) -> Any:
    """The last choice of `where` is something else."""

    def step(w, pools, tables, positions, x):
        q, k, v = project(w, x)
        page = jnp.where(positions // PAGE == 1, tables[:, 1], other(tables, positions))
        y = attend(q, of_lane(pools["k"], tables), of_lane(pools["v"], tables), visible(positions - 1))
        new = {name: pools[name].at[page, positions % PAGE].set(each) for name, each in (("k", k), ("v", v))}
        return y @ w["o"].T, new

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
    _one(DECODE, "after", "the page behind the lane's", decoding(lambda tables, index: taken(tables, index) + 1)),
    _one(DECODE, "of-neighbour", "the table of the next lane", decoding(lambda t, i: taken(jnp.roll(t, 1, 0), i))),
    _one(DECODE, "as-position", "the place of the page in its table is the page", decoding(lambda _, index: index)),
    _one(DECODE, "read-of-neighbour", "pages are read by the lanes' tables in reverse",
         decoding(read=lambda tables, _: tables[::-1])),
    _one(DECODE, "of-lane-0", "every lane attends to the pages of lane 0",
         decoding(read=lambda tables, _: jnp.broadcast_to(tables[:1], tables.shape))),
    _one(WHERE, "choice-other", "the last choice is the next lane's page", _chosen(lambda t, _: jnp.roll(t[:, 2], 1))),
    _one(WHERE, "choice-constant", "the last choice is page 3", _chosen(lambda t, _: 3)),
    _one(WHERE, "choice-null", "the last choice is the null page, which all lanes read", _chosen(lambda t, _: 0)),
    _one(WHERE, "choice-end", "the last choice counts from the end", _chosen(lambda t, _: -1)),
    _one(CHUNKS, "padding-null", "padding goes to the null page", chunks(lambda real, page: jnp.where(real, page, 0))),
    _one(CHUNKS, "padding-clamped", "padding past the end is clamped to the last page",
         chunks(lambda real, page: jnp.where(real, page, PAGES), mode="clip")),
    _one(CHUNKS, "padding-minus-one", "padding at -1 is the last page",
         chunks(lambda real, page: jnp.where(real, page, -1))),
    _one(CHUNKS, "padding-kept", "padding goes where a token would, over the rows of an idle lane",
         chunks(lambda real, page: page)),
    _one(FLAT, "stride", "rows are read as if pages had one token less", flat(stride=PAGE - 1)),
    _one(FLAT, "shift", "rows are read shifted by one token", flat(shift=1)),
    _one(FLAT, "rows-clamped", "rows past the end are clamped to the last one", flat(mode="clip")),
    _one(FLAT, "rows-rolled", "rows of the next lane are written", flat(rows=lambda rows: jnp.roll(rows, 1))),
    _one(WHOLE, "flat-shift", "the row behind the lane's", _whole(shift=1)),
    _one(WHOLE, "flat-stride", "a page is taken for a row", _whole(stride=1)),
    _one(WHOLE, "everywhere", "all pages are computed with", computed_everywhere),
    _one(WHOLE, "swapped", "pages and offsets swapped", split_otherwise),
)  # fmt: skip
