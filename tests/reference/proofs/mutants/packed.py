"""Packed tokens of wrong lanes: shifted layouts, leaking padding and masks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from mutants.mutant import Evidence, Kind, wrong
from zoo.attention import HEADS, KV, SIZE, project
from zoo.packed import (
    LANES,
    PAGE,
    PAGES,
    SLOTS,
    TOKENS,
    Change,
    channels,
    identity,
    lanes_of,
    mapped,
    scanned,
)

BAD = (Kind.WRONG_ROW, Kind.CROSS_LANE, Kind.FRAME, Kind.BOUNDS)
NO_RULE = (Kind.UNKNOWN,)
"""Uses of `searchsorted` in jax 0.12, one operation without a rule: the right ones are known as a whole."""


_page_of = lambda tables, lane, place: tables.at[lane, place].get(mode="fill", fill_value=PAGES)
_equal = lambda ids: ids[:, None] == ids[None, :]


def _counted(ends: Change = lambda cu: cu[1:], side: str = "right") -> Change:
    return lambda cu: jnp.searchsorted(ends(cu), jnp.arange(TOKENS), side=side)


def _running(ends: Change = lambda cu: cu[1:], unique: bool = False) -> Change:
    """Lanes of tokens by running counts of ends."""
    return lambda cu: jnp.cumsum(jnp.zeros(TOKENS, jnp.int32).at[ends(cu)].add(1, unique_indices=unique))


def _carried(mode: str = "drop", lane: Change = lanes_of, reset: bool = True) -> Any:
    """All states carried: padding clamped to the last lane, or one state."""

    def step(w, x, cu, pool, slots):
        def token(carry, item):
            states, one_state = carry
            x, lane = item
            old = states[lane] if reset else one_state
            new = jnp.tanh(0.5 * old + x @ w)
            return (states.at[lane].set(new, mode=mode), new), new

        (states, _), y = lax.scan(token, (pool[slots], jnp.zeros_like(x[0])), (x, lane(cu)))
        return y, pool.at[slots].set(states)

    return step


def _pooled(lane: Change = lanes_of, last: Change = lambda cu: cu[1:] - 1, running: bool = False) -> Any:
    """Sums with padding, next lanes' tokens, or running over lanes."""

    def step(w, x, cu, pool, slots):
        y = jnp.tanh(x @ w)
        y = jnp.cumsum(y, axis=0) if running else y
        total = jax.ops.segment_sum(y * pool[slots][lanes_of(cu)], lane(cu), LANES)
        return total + x[last(cu)], pool.at[slots].set(0.5 * pool[slots] + total)

    return step


def _attention(mask: Callable[[Any], Any], finite: bool = True, outer: float = -jnp.inf) -> Any:
    def step(w, x, ids, positions, bias):
        q, k, v = project(w, x + bias.at[ids].get(mode="fill", fill_value=0.0))
        q = q.reshape(TOKENS, KV * HEADS, SIZE)
        v = jnp.where(jnp.isfinite(v), v, 0.0) if finite else v
        k, v = (jnp.repeat(each, HEADS, axis=1) for each in (k, v))
        scores = jnp.where(mask(ids)[None], jnp.einsum("thd,shd->hts", q, k), outer)
        y = x + jnp.einsum("hts,shd->thd", jax.nn.softmax(scores, axis=-1), v).reshape(TOKENS, -1) @ w["o"].T
        return y, jax.ops.segment_max(y, ids, LANES)

    return step


def _paged(page: Any, read: Change = identity) -> Any:
    """Keys and values on other lanes' pages, or padding on lanes' pages."""

    def step(w, x, positions, cu, pools, tables, temperature):
        lane = lanes_of(cu)
        _, k, v = project(w, x)
        index = positions % PAGE
        row = page(tables, lane, positions // PAGE)
        pools = {"k": pools["k"].at[row, index].set(k, mode="drop"), "v": pools["v"].at[row, index].set(v, mode="drop")}
        total = pools["k"][read(tables)].reshape(LANES, -1).sum(-1, keepdims=True)
        return x[cu[1:] - 1] / temperature[:, None] + total, x, pools

    return step


def _one(base: str, id: str, description: str, step: Any, *kinds: Kind, **changes: Any) -> Any:
    return wrong(base, f"packed-{id}", "vLLM", description, step, *BAD, *kinds, **changes)


SCANNED, CARRIED, POOLED, PAGED, MAPPED, IDS = (
    f"packed tokens, {name}"
    for name in (
        "scanned by slot", "states carried", "sums and last tokens", "paged prefill and decode", "slot mapping",
        "segment ids",
    )
)  # fmt: skip
_repeated = lambda cu: jnp.repeat(jnp.arange(LANES), jnp.diff(cu), total_repeat_length=TOKENS)  # noqa: E731
CHANNELS = "sharded channels of packed tokens"
MUTANTS = (
    _one(CHANNELS, "channels-left", "inside of a shard_map the last token of a lane is the next one's",
         channels(_counted(side="left")), *NO_RULE),
    _one(CHANNELS, "channels-shifted", "cu_seqlens shifted by one token inside of a shard_map",
         channels(_counted(lambda cu: cu[1:] + 1)), *NO_RULE),
    _one(CHANNELS, "channels-padding", "padding is added to the last lane inside of a shard_map", channels(_repeated)),
    _one(CHANNELS, "channels-summed", "all tokens see a sum over tokens, of the devices too",
         channels(change=lambda x: lax.psum(x.sum(0, keepdims=True), "model"))),
    _one(SCANNED, "left", "the last token of a lane is the next one's", scanned(_counted(side="left")), *NO_RULE),
    _one(SCANNED, "begins", "lanes counted from their beginnings", scanned(_counted(lambda cu: cu[:-1])), *NO_RULE),
    _one(SCANNED, "shifted", "cu_seqlens shifted by one token", scanned(_counted(lambda cu: cu[1:] + 1)), *NO_RULE),
    _one(SCANNED, "padding-clamped", "padding reads and writes the slot of the last lane",
         scanned(rows=lambda lane, slots, cu: slots[lane])),
    _one(SCANNED, "padding-half", "the guard lets the first token of padding through",
         scanned(rows=lambda lane, slots, cu: jnp.where(jnp.arange(TOKENS) <= cu[-1], slots[lane], SLOTS))),
    _one(SCANNED, "rolled", "tokens one place further", scanned(tokens=lambda x: jnp.roll(x, 1, axis=0))),
    _one(CARRIED, "clip", "padding is clamped to the state of the last lane", _carried(mode="clip")),
    _one(CARRIED, "repeat", "padding is of the last lane", _carried(lane=_repeated)),
    _one(CARRIED, "no-reset", "one state goes on from lane to lane", _carried(reset=False)),
    _one(CARRIED, "carried-left", "the last token of a lane is the next one's", _carried(lane=_counted(side="left"))),
    _one(POOLED, "padding-summed", "padding is added to the last lane", _pooled(lane=_repeated)),
    _one(POOLED, "first-of-next", "the last token is the next lane's first", _pooled(last=lambda cu: cu[1:])),
    _one(POOLED, "last-but-one", "the last token is the one before", _pooled(last=lambda cu: cu[1:] - 2)),
    _one(POOLED, "running", "sums run over all tokens", _pooled(running=True)),
    _one(POOLED, "counted-twice", "each end is counted twice",
         _pooled(lane=_running(lambda cu: jnp.broadcast_to(cu[1:, None], (LANES, 2))))),
    _one(POOLED, "counted-once", "equal ends are declared unique",
         _pooled(lane=_running(unique=True)), evidence=Evidence.TRACED),
    _one(POOLED, "lanes-rolled", "sums of the next lane", _pooled(lane=lambda cu: (lanes_of(cu) + 1) % LANES)),
    _one(PAGED, "page-clamped", "padding writes to pages of the last lane", _paged(lambda t, lane, i: t[lane, i])),
    _one(PAGED, "page-of-next", "pages of the next lane", _paged(lambda t, lane, index: _page_of(t, lane + 1, index))),
    _one(PAGED, "page-after", "tokens go to the page behind", _paged(lambda t, lane, i: _page_of(t, lane, i) + 1)),
    _one(PAGED, "read-of-next", "pages of the next lane are read", _paged(_page_of, read=lambda t: jnp.roll(t, 1, 0))),
    _one(MAPPED, "rows-clamped", "padding is clamped to the last row", mapped(mode="clip")),
    _one(MAPPED, "rows-rolled", "the row of the token before", mapped(lambda rows: jnp.roll(rows, 1))),
    _one(MAPPED, "rows-shifted", "the row behind", mapped(lambda rows: rows + 1)),
    _one(MAPPED, "rows-read", "pages are read from the row behind their first", mapped(shift=1)),
    _one(IDS, "less-or-equal", "lanes see those before", _attention(lambda ids: ids[:, None] >= ids[None, :])),
    _one(IDS, "no-mask", "tokens see all before", _attention(lambda ids: jnp.tril(jnp.ones((TOKENS, TOKENS), bool)))),
    _one(IDS, "or-mask", "causal or of one lane", _attention(lambda ids: _equal(ids) | (jnp.eye(TOKENS) > 0)[::-1])),
    _one(IDS, "not-finite", "zero times nan of another lane", _attention(_equal, finite=False)),
    _one(IDS, "small-mask", "a mask that is a small number", _attention(_equal, outer=-3.0)),
    _one(IDS, "padding-masked-in", "padding is of the last lane",
         _attention(lambda ids: _equal(jnp.minimum(ids, LANES - 1)))),
)  # fmt: skip
