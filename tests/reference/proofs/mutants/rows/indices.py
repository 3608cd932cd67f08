"""Row numbers that are not the lane's: neighbours, clamps, wraps, narrow integers."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from mutants.mutant import Evidence, Kind, wrong
from zoo import attention, rows, speculative
from zoo.program import KEY, LANES, SLOTS, VALUE
from zoo.rows import advance

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

PLAIN = "rows behind a slot map"
ROW = {Kind.WRONG_ROW, Kind.CROSS_LANE, Kind.FRAME}
BAD = ROW | {Kind.BOUNDS}
AT = LaneContract(inputs=(*rows.STEP.inputs, Lane()), outputs=rows.STEP.outputs)


def draw_at(rng: np.random.Generator) -> tuple[Any, ...]:
    return (*rows.draw(rng), rng.integers(1, SLOTS, LANES).astype(np.int32))


def draw_ids(rng: np.random.Generator) -> tuple[Any, ...]:
    return (*rows.draw(rng), rng.permutation(90)[:LANES].astype(np.int32))


def elsewhere(read: Array, write: Array, pool: Array, x: Array, w: Array, mode: str | None = None) -> Any:
    new = advance(pool.at[read].get(mode=mode), x, w)
    return new.sum(1), pool.at[write].set(new, mode=mode)


def narrow_offsets(pool, slots, x, w):
    """Row times stride in eight bits."""
    stride = KEY * VALUE
    begin = (slots.astype(jnp.int8) * jnp.int8(stride)).astype(jnp.int32)
    state = pool.reshape(-1)[begin[:, None] + jnp.arange(stride, dtype=jnp.int32)[None]]
    new = advance(state.reshape(-1, KEY, VALUE), x, w)
    return new.sum(1), pool.at[slots].set(new)


def narrow_rows(pool, slots, x, w):
    """A detour over bytes: 7 * 37 does not fit."""
    read = (slots.astype(jnp.uint8) * jnp.uint8(37)) // jnp.uint8(37)
    return elsewhere(read, slots, pool, x, w)


def tile_past_the_end(pool, slots, x, w):
    """A kernel takes eight rows of metadata where there are four: the index is clamped."""
    tile = jnp.arange(2 * LANES, dtype=jnp.int32)
    source = slots.at[tile].get(mode="clip")
    new = advance(pool[source], jnp.pad(x, ((0, LANES), (0, 0))), w)
    return new[:LANES].sum(1), pool.at[source].set(new)


def batch_buffer_by_row(pool, slots, x, w):
    """An intermediate buffer of the batch, indexed by the row of the pool."""
    new = advance(pool[slots], x.at[slots].get(mode="clip"), w)
    return new.sum(1), pool.at[slots].set(new)


def batch_did_not_grow(pool, slots, x, w):
    state = pool[slots[:-1]]
    new = advance(state.at[jnp.arange(LANES)].get(mode="clip"), x, w)
    return new.sum(1), pool.at[slots].set(new)


def window_of_two(pool, slots, x, w):
    window = lax.dynamic_slice(pool, (slots[0], 0, 0), (2, KEY, VALUE))
    y, new = rows.plain_step(pool, slots, x, w)
    return y.at[0].add(window[1].sum(0)), new


def read_past_the_row(pool, slots, x, w):
    first = lax.dynamic_slice_in_dim(pool, slots[0] + 1, 1)
    new = advance(jnp.concatenate([first, pool[slots[1:]]]), x, w)
    return new.sum(1), pool.at[slots].set(new)


def written_past_the_row(pool, slots, x, w):
    new = advance(pool[slots], x, w)
    for i in range(LANES):
        pool = lax.dynamic_update_slice_in_dim(pool, new[i][None], slots[i] + (1 if i == 2 else 0), 0)
    return new.sum(1), pool


def block_of_position(w, pools, slots, positions, x):
    """A column of the cache looked up with another group's block size."""
    q, k, v = attention.project(w, x)
    row = jnp.minimum(slots + positions // 4, SLOTS - 1)
    pools = {"k": pools["k"].at[row, positions].set(k), "v": pools["v"].at[row, positions].set(v)}
    mask = jnp.arange(attention.CONTEXT, dtype=jnp.int32)[None] <= positions[:, None]
    return attention.attend(q, pools["k"][row], pools["v"][row], mask) @ w["o"].T, pools


def none_accepted(w, pool, slots, accepted, drafts):
    """Reading at offset -1 takes the previous row's last state."""
    flat = pool.reshape(SLOTS * speculative.DRAFTS, KEY, VALUE)
    state = flat[slots * speculative.DRAFTS + accepted - 1]
    states, out = [], []
    for i in range(speculative.DRAFTS):
        state, y = speculative.token(w, state, drafts[:, i])
        states.append(state)
        out.append(y)
    return jnp.stack(out, axis=1), pool.at[slots].set(jnp.stack(states, axis=1))


def larger(size: int) -> LaneContract:
    """The contract claims more rows than the pool has."""
    return LaneContract((Pool("seq"), SlotMap("seq", size), Lane(), Shared()), rows.STEP.outputs)


_plain = partial(wrong, PLAIN)
MUTANTS = (
    _plain("narrow-offsets", "flashinfer#3230", "row * stride overflows its integer", narrow_offsets, *BAD),
    _plain("narrow-rows", "JAX", "row numbers computed in uint8 wrap", narrow_rows, *BAD),
    _plain("tile-past-the-end", "tpu-inference#3453", "a tile of 8 reads 4 rows of metadata", tile_past_the_end, *BAD,
           evidence=Evidence.FAULT),
    _plain("batch-buffer-by-row", "flashinfer#3145", "a buffer of the batch is indexed by pool row",
           batch_buffer_by_row, *BAD),
    _plain("batch-did-not-grow", "mlx-lm#1169", "a lane joins and the batch dimension does not grow",
           batch_did_not_grow, *BAD),
    _plain("window-of-two", "JAX", "dynamic_slice takes two rows, the neighbour's too", window_of_two, *BAD),
    _plain("read-past-the-row", "JAX", "dynamic_slice at row + 1", read_past_the_row, *BAD),
    _plain("written-past-the-row", "JAX", "dynamic_update_slice at row + 1", written_past_the_row, *BAD),
    wrong("attention", "block-of-position", "vLLM#53142", "row + position // block leaves the row", block_of_position,
          *BAD),
    wrong("speculative groups", "none-accepted", "vllm#51508", "no token accepted: index -1 is the neighbour's state",
          none_accepted, *BAD),
    _plain("next-row", "JAX", "reads and writes slot + 1",
           lambda pool, slots, x, w: elsewhere(slots + 1, slots + 1, pool, x, w, "clip"), *BAD),
    _plain("reads-next-row", "JAX", "reads the neighbour's row, writes its own",
           lambda pool, slots, x, w: elsewhere((slots + 1) % SLOTS, slots, pool, x, w), *BAD),
    _plain("row-before", "JAX", "jnp.take at slot - 1 wraps",
           lambda pool, slots, x, w: (jnp.take(pool, slots - 1, axis=0).sum(1), rows.plain_step(pool, slots, x, w)[1]),
           *BAD),
    _plain("null-row-read", "JAX", "reads the null row",
           lambda pool, slots, x, w: elsewhere(jnp.zeros_like(slots), slots, pool, x, w), *BAD, Kind.CONSTANT),
    _plain("lane-numbers-as-rows", "JAX", "arange in the place of the slot map",
           lambda pool, slots, x, w: elsewhere(jnp.arange(LANES), jnp.arange(LANES), pool, x, w),
           *BAD, Kind.CONSTANT),
    _plain("sorted-rows", "JAX", "the slot map is sorted first",
           lambda pool, slots, x, w: elsewhere(jnp.sort(slots), slots, pool, x, w), *BAD),
    _plain("rows-of-the-neighbour", "JAX", "the slot map is rolled by one lane",
           lambda pool, slots, x, w: elsewhere(jnp.roll(slots, 1), jnp.roll(slots, 1), pool, x, w), *BAD),
    _plain("undeclared-rows", "JAX", "rows come from an array that is no slot map",
           lambda pool, slots, x, w, index: elsewhere(index, slots, pool, x, w), *BAD, contract=AT, draw=draw_at),
    _plain("undeclared-rows-clipped", "JAX", "the same, written with mode clip",
           lambda pool, slots, x, w, index: elsewhere(slots, index, pool, x, w, "clip"), *BAD, contract=AT,
           draw=draw_at),
    _plain("row-from-request", "kekzl/imp#500", "the row is the request's number modulo the capacity, in the step",
           lambda pool, slots, x, w, index: elsewhere(1 + index % (SLOTS - 1), 1 + index % (SLOTS - 1), pool, x, w),
           *BAD, contract=AT, draw=draw_ids),
    _plain("more-rows-than-the-pool", "tpu-inference#3565", "the slot map has more rows than the pool", rows.plain_step,
           *BAD, contract=larger(2 * SLOTS), evidence=Evidence.FAULT),
)  # fmt: skip
