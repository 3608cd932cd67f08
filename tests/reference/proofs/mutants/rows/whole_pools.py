"""Pools with every row replaced, summed or moved, and misplaced idle rows."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from mutants.mutant import Kind, wrong
from zoo import rows
from zoo.program import KEY, LANES, SLOTS, VALUE, normal, slot_map
from zoo.rows import advance

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

PLAIN = "rows behind a slot map"
FRAME = (Kind.FRAME,)
OTHER = LaneContract(inputs=(*rows.STEP.inputs, Shared(), Shared()), outputs=rows.STEP.outputs)
ACTIVE = LaneContract(inputs=(*rows.LENGTH.inputs, Lane()), outputs=rows.LENGTH.outputs)
APART = LaneContract(
    inputs=(
        Pool("seq"),
        SlotMap("seq", SLOTS, role="read"),
        SlotMap("seq", SLOTS, role="write"),
        *rows.LENGTH.inputs[2:],
    ),
    outputs=rows.STEP.outputs,
)
PAIR = LaneContract(inputs=(*rows.STEP.inputs, Shared(), Shared()), outputs=rows.STEP.outputs)


def draw_other(rng: np.random.Generator) -> tuple[Any, ...]:
    return (*rows.draw(rng), normal(rng, SLOTS, KEY, VALUE), np.int32(rng.integers(0, 2)))


def draw_active(rng: np.random.Generator) -> tuple[Any, ...]:
    return (*rows.draw_length(rng), rng.integers(0, 2, LANES).astype(np.int32))


def draw_apart(rng: np.random.Generator) -> tuple[Any, ...]:
    pool, write, *rest = rows.draw_length(rng)
    return (pool, np.where(write == 0, 0, slot_map(rng, padding=False)).astype(np.int32), write, *rest)


def draw_pair(rng: np.random.Generator) -> tuple[Any, ...]:
    source, target = (np.array([rng.integers(0, KEY), rng.integers(0, VALUE)], np.int32) for _ in range(2))
    return (*rows.draw(rng), source, target)


def histogram(pool, slots, x, w):
    """Counts over the rows of everybody: how often each is the greatest."""
    greatest = jnp.argmax(pool.reshape(SLOTS, KEY * VALUE), axis=1)
    return rows.plain_step(pool, slots, x + jnp.zeros(SLOTS).at[greatest].add(1.0)[slots][:, None], w)


def _replaced(replace: Any) -> Any:
    step = lambda pool, slots, x, w, other, flag: (advance(pool[slots], x, w).sum(1), replace(pool, other, flag))
    return step


def rounded(pool, slots, x, w):
    """The whole pool is rounded to sixteen bits and back."""
    return rows.plain_step(pool.astype(jnp.bfloat16).astype(jnp.float32), slots, x, w)


def _gated(new: Any, old: Any, lengths: Any) -> Any:
    return jnp.where(lengths[:, None, None] > 0, new, old)


def guarded_read(pool, slots, x, w, lengths, active):
    """Guarded reads with unguarded writes: an idle lane writes the fill value."""
    old = pool.at[jnp.where(active > 0, slots, SLOTS)].get(mode="fill")
    new = advance(old, x, w)
    return new.sum(1), pool.at[slots].set(_gated(new, old, lengths))


def copied_while_idle(pool, read, write, x, w, lengths):
    """An idle lane copies its read row to its write row."""
    old = pool[read]
    new = advance(old, x, w)
    return new.sum(1), pool.at[write].set(_gated(new, old, lengths))


def moved_element(pool, slots, x, w, source, target):
    """One element per row moves between two index pairs."""
    read = lax.GatherDimensionNumbers((0,), (1, 2), (1, 2))
    write = lax.ScatterDimensionNumbers((0,), (1, 2), (1, 2))
    selection = lax.gather(pool, source, read, (SLOTS, 1, 1), mode="clip")
    return advance(pool[slots], x, w).sum(1), lax.scatter(pool, target, selection, write, mode="clip")


def _whole(id: str, description: str, step: Any, kinds: Any = FRAME, **options: Any) -> Any:
    return wrong(PLAIN, id, "JAX", description, step, *kinds, **options)


def _other(id: str, description: str, replace: Any) -> Any:
    return _whole(id, description, _replaced(replace), contract=OTHER, draw=draw_other)


MUTANTS = (
    _whole("histogram-of-rows", "counts over the rows of everybody, read by row", histogram, (Kind.CROSS_LANE,)),
    _other("pool-added-to", "the pool is added to a shared array, which is returned", lambda p, o, f: o.at[:].add(p)),
    _other("branch-of-pools", "a branch gives the pool or a shared array",
           lambda p, o, f: lax.cond(f > 0, lambda: p, lambda: o)),
    _other("loop-of-pools", "a loop puts a shared array in the place of the pool",
           lambda p, o, f: lax.fori_loop(0, f, lambda i, _: o, p)),
    _whole("rounded-pool", "the whole pool is rounded and widened again", rounded),
    _whole("element-moved", "index columns of one array, read by one and written by another", moved_element,
           contract=PAIR, draw=draw_pair),
    _whole("guarded-read", "rows of idle lanes are read with a guard and written without", guarded_read, (Kind.IDLE,),
           contract=ACTIVE, draw=draw_active),
    _whole("copied-while-idle", "an idle lane copies from its row to read to its row to write", copied_while_idle,
           (Kind.IDLE,), contract=APART, draw=draw_apart),
)  # fmt: skip
