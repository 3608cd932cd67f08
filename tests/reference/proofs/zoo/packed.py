"""Packed tokens as in vLLM-TPU, SGLang-JAX and EasyDeL: mixed prefill and decode, padding."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from zoo.attention import HEADS, KV, SIZE, project, weights
from zoo.meshes.sharded import mesh
from zoo.pages import PAGE, PAGES, WIDE, table
from zoo.program import HIDDEN, LANES, SLOTS, Program, normal, weight

from ir_passes import Lane, LaneContract, Packed, PageTable, Pool, Shared, SlotMap

TOKENS = 10
CU = Packed(role="cu_seqlens")
STATE = LaneContract(inputs=(Shared(), Packed(), CU, Pool("s"), SlotMap("s", SLOTS)), outputs=(Packed(), Pool("s")))
ROWS = LaneContract(inputs=STATE.inputs, outputs=(Lane(), Pool("s")))
CACHE = {"k": Pool("kv"), "v": Pool("kv")}
PAGED = LaneContract(
    inputs=(Shared(), Packed(), Packed(), CU, CACHE, PageTable("kv", PAGES), Lane()), outputs=(Lane(), Packed(), CACHE)
)
MAPPED = LaneContract(
    inputs=(
        Shared(), Packed(), CU, Pool("kv", axis=1), PageTable("kv", PAGES, page_size=PAGE, role="read"),
        PageTable("kv", PAGES * PAGE, role="write", packed=True),
    ),
    outputs=(Lane(), Pool("kv", axis=1)),
)  # fmt: skip
KEYS = 12
CROSS = LaneContract(
    inputs=(
        Packed(layout="queries"), Packed(layout="keys"), Packed(role="cu_seqlens", layout="queries"),
        Packed(role="cu_seqlens", layout="keys"), Lane(),
    ),
    outputs=(Packed(layout="queries"), Lane()),
)  # fmt: skip
IDS = LaneContract(
    inputs=(Shared(), Packed(), Packed(role="segment_ids"), Packed(), Lane()), outputs=(Packed(), Lane())
)


def layout(rng: np.random.Generator, limit: int = TOKENS, empty: bool = True) -> np.ndarray:
    """Return cu_seqlens of lanes with one token or several; the last may be empty."""
    lengths = np.ones(LANES, np.int32)
    if empty and rng.random() < 0.5:
        lengths[-1] = 0
    for _ in range(int(rng.integers(0, limit - LANES + 1))):
        lengths[rng.integers(LANES - 1)] += 1
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    cu = layout(rng)
    rows = (1 + rng.permutation(SLOTS - 1)[:LANES]).astype(np.int32)
    rows = np.where(np.diff(cu) == 0, 0, rows).astype(np.int32)
    return weight(rng, HIDDEN, HIDDEN), normal(rng, TOKENS, HIDDEN), cu, normal(rng, SLOTS, HIDDEN), rows


def draw_paged(rng: np.random.Generator) -> tuple[Any, ...]:
    """Draw consecutive tokens of each lane from a position in its pages."""
    cu = layout(rng, limit=LANES + 3, empty=False)
    lane = np.minimum((np.arange(TOKENS)[:, None] >= cu[None, 1:]).sum(axis=1), LANES - 1)
    begins = rng.integers(PAGE, PAGE + 2, LANES)
    # pages of the right lane for every draw
    positions = (begins[lane] + np.arange(TOKENS) - cu[lane]) % PAGE + PAGE
    cache = {name: normal(rng, PAGES, PAGE, KV, SIZE) for name in ("k", "v")}
    x = normal(rng, TOKENS, HIDDEN)
    return (
        weights(rng), x, positions.astype(np.int32), cu, cache, table(rng),
        rng.uniform(0.5, 2, LANES).astype(np.float32),
    )  # fmt: skip


def draw_mapped(rng: np.random.Generator) -> tuple[Any, ...]:
    """The host gives each token's row of a flat pool; padding goes past the end."""
    _, x, positions, cu, _, tables, _ = draw_paged(rng)
    lane = (np.arange(TOKENS)[:, None] >= cu[None, 1:]).sum(axis=1)
    page = np.take_along_axis(np.pad(tables, ((0, 1), (0, 0)))[lane], (positions // PAGE)[:, None], axis=1)[:, 0]
    rows = np.where(lane < LANES, page * PAGE + positions % PAGE, PAGES * PAGE).astype(np.int32)
    return weight(rng, HIDDEN, HIDDEN), x, cu, normal(rng, 2, PAGES * PAGE, HIDDEN), tables, rows


def draw_ids(rng: np.random.Generator) -> tuple[Any, ...]:
    cu = layout(rng, empty=False)
    ids = (np.arange(TOKENS)[:, None] >= cu[None, 1:]).sum(axis=1).astype(np.int32)
    positions = rng.integers(0, 9, TOKENS).astype(np.int32)
    return weights(rng), normal(rng, TOKENS, HIDDEN), ids, positions, normal(rng, LANES, HIDDEN)


def lanes_of(cu: jax.Array) -> jax.Array:
    """The lane of each token, LANES for padding."""
    return jnp.searchsorted(cu[1:], jnp.arange(TOKENS), side="right")


Change = Callable[[Any], Any]
identity = lambda x: x


def scanned(lane: Change = lanes_of, rows: Any = None, tokens: Change = identity) -> Any:
    """A recurrence token by token; slots of lanes address the states. Lanes, rows or tokens may be other ones."""

    def step(w, x, cu, pool, slots):
        of = lane(cu)
        index = jnp.where(of < LANES, slots[of], SLOTS) if rows is None else rows(of, slots, cu)

        def token(pool, item):
            x, row = item
            state = jnp.tanh(0.5 * pool.at[row].get(mode="fill", fill_value=0) + x @ w)
            return pool.at[row].set(state, mode="drop"), state

        pool, y = lax.scan(token, pool, (tokens(x), index))
        return y, pool

    return step


def carried_step(w, x, cu, pool, slots):
    """The same with the states of all lanes carried; lanes that begin start from zeros."""
    lane, begins = lanes_of(cu), jnp.diff(cu) > 1
    states = jnp.where(begins[:, None], 0.0, pool[slots])

    def token(states, item):
        x, lane = item
        new = jnp.tanh(0.5 * states[lane] + x @ w)
        return states.at[lane].set(new, mode="drop"), new

    states, y = lax.scan(token, states, (x, lane))
    return y, pool.at[slots].set(states)


def pooled_step(w, x, cu, pool, slots):
    """A sum of each lane's tokens, its last token, and its state."""
    lane = jnp.repeat(jnp.arange(LANES + 1), jnp.append(jnp.diff(cu), TOKENS - cu[-1]), total_repeat_length=TOKENS)
    total = jax.ops.segment_sum(jnp.tanh(x @ w) * pool[slots][lane], lane, LANES)
    last = x[cu[1:] - 1]
    return total + last, pool.at[slots].set(0.5 * pool[slots] + total)


def masked(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention among packed tokens; values are made finite, since zero times inf is nan."""
    q = q.reshape(TOKENS, KV * HEADS, SIZE)
    k, v = (jnp.repeat(each, HEADS, axis=1) for each in (k, jnp.where(jnp.isfinite(v), v, 0.0)))
    scores = jnp.where(mask[None], jnp.einsum("thd,shd->hts", q, k) * SIZE**-0.5, -jnp.inf)
    return jnp.einsum("hts,shd->thd", jax.nn.softmax(scores, axis=-1), v).reshape(TOKENS, -1)


def paged_step(w, x, positions, cu, pools, tables, temperature):
    """Prefill and decode: keys and values go to pages; tokens see their lane."""
    lane = lanes_of(cu)
    q, k, v = project(w, x)
    page = tables.at[lane, positions // PAGE].get(mode="fill", fill_value=PAGES)
    offset = positions % PAGE
    pools = {"k": pools["k"].at[page, offset].set(k, mode="drop"), "v": pools["v"].at[page, offset].set(v, mode="drop")}
    mask = (lane[:, None] == lane[None, :]) & (positions[:, None] >= positions[None, :])
    y = x + masked(q, k, v, mask) @ w["o"].T
    old = jnp.where(jnp.isfinite(pools["k"][tables]), pools["k"][tables], 0.0)
    history = old.reshape(LANES, WIDE * PAGE, -1).sum(1)
    return y[cu[1:] - 1] / temperature[:, None] + history.sum(-1, keepdims=True), y, pools


def mapped(rows: Change = identity, mode: str = "drop", shift: int = 0) -> Any:
    """Two layers over a flat pool, written by slot mapping, read by block table, or by wrong rows."""

    def step(w, x, cu, pool, tables, written):
        offsets = jnp.arange(PAGE, dtype=jnp.int32)[None, None] + shift
        read = (tables[:, :, None] * PAGE + offsets).reshape(LANES, -1)
        for layer in range(2):
            pool = pool.at[layer, rows(written)].set(jnp.tanh(x @ w), mode=mode)
            mean = pool[layer, read].mean(axis=1)
            x = x + mean.at[lanes_of(cu)].get(mode="fill", fill_value=0.0)
        return x[cu[1:] - 1], pool

    return step


def ids_step(w, x, ids, positions, bias):
    """The lane of each token is given."""
    q, k, v = project(w, x + bias.at[ids].get(mode="fill", fill_value=0.0))
    mask = (ids[:, None] == ids[None, :]) & (positions[:, None] >= positions[None, :])
    mask = mask | jnp.eye(TOKENS, dtype=bool) & (ids[:, None] == ids[None, :])
    y = x + masked(q, k, v, mask) @ w["o"].T
    greatest = jax.ops.segment_max(y, ids, LANES)
    return y, greatest


def over_channels(local: Any) -> Any:
    """The tokens of all lanes on every device, a part of their channels each."""

    def step(w, x, cu, pool, slots):
        parts = P(None, "model")
        specs = (parts, parts, P(), parts, P())
        return jax.shard_map(local, mesh=mesh(1, 2), in_specs=specs, out_specs=(parts, parts))(w, x, cu, pool, slots)

    return step


def draw_channels(rng: np.random.Generator) -> tuple[Any, ...]:
    w, _, cu, _, slots = draw(rng)
    return np.pad(w, ((0, 0), (0, 1))), normal(rng, TOKENS, HIDDEN + 1), cu, normal(rng, SLOTS, HIDDEN + 1), slots


def channels(lane: Change = lanes_of, mode: str = "fill", change: Change = identity) -> Any:
    """Add each lane's tokens to its state, channels split over devices; tokens read the state before."""

    def local(w, x, cu, pool, slots):
        initial = pool[slots]
        y = jnp.tanh(x + initial.at[lane(cu)].get(mode=mode)) * lax.psum(jnp.sum(w * w), "model") + change(x)
        return y, pool.at[slots].set(0.5 * initial + jax.ops.segment_sum(x, lane(cu), LANES))

    return over_channels(local)


def cross_step(q, k, queries, keys, bias):
    """Attention of packed queries to packed keys, with other lengths; and each lane's last key."""
    mask = lanes_of(queries)[:, None] == jnp.searchsorted(keys[1:], jnp.arange(KEYS), side="right")[None]
    weights = jax.nn.softmax(jnp.where(mask, q @ k.T, -jnp.inf), axis=-1)
    return q + weights @ jnp.where(jnp.isfinite(k), k, 0.0), k[keys[1:] - 1] + bias


def draw_cross(rng: np.random.Generator) -> tuple[Any, ...]:
    """Every lane has queries, and as many keys or one more."""
    queries = layout(rng, empty=False)
    extra = rng.integers(0, 2, LANES)
    extra = extra * (np.cumsum(extra) <= KEYS - TOKENS)
    keys = np.concatenate([[0], np.cumsum(np.diff(queries) + extra)]).astype(np.int32)
    return normal(rng, TOKENS, HIDDEN), normal(rng, KEYS, HIDDEN), queries, keys, normal(rng, LANES, HIDDEN)


PROGRAMS = (
    Program("packed tokens, queries and keys", cross_step, CROSS, draw_cross),
    Program("sharded channels of packed tokens", channels(), STATE, draw_channels),
    Program("packed tokens, scanned by slot", scanned(), STATE, draw),
    Program("packed tokens, states carried", carried_step, STATE, draw),
    Program("packed tokens, sums and last tokens", pooled_step, ROWS, draw),
    Program("packed tokens, paged prefill and decode", paged_step, PAGED, draw_paged),
    Program("packed tokens, slot mapping", mapped(), MAPPED, draw_mapped),
    Program("packed tokens, segment ids", ids_step, IDS, draw_ids),
)
