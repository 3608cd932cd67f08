"""Changed row numbers: spread columns, fill values, guards, wraps."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from mutants.mutant import Kind, mutants_of
from zoo import rows
from zoo.program import HIDDEN, KEY, LANES, SLOTS, VALUE, normal, slot_map, weight
from zoo.rows import advance

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

PLAIN = "rows behind a slot map"
BAD = (Kind.WRONG_ROW, Kind.CROSS_LANE, Kind.FRAME, Kind.BOUNDS)
MANY = 300
"""Lanes; more than eight bits count."""
CHOICE = LaneContract(inputs=(*rows.STEP.inputs, Lane()), outputs=rows.STEP.outputs)
PLACE = LaneContract(inputs=(*rows.STEP.inputs, Shared()), outputs=rows.STEP.outputs)


def draw_choice(rng: np.random.Generator) -> tuple[Any, ...]:
    return (*rows.draw(rng), rng.integers(0, 3, LANES).astype(np.int32))


def draw_place(rng: np.random.Generator) -> tuple[Any, ...]:
    return (*rows.draw(rng), np.int32(KEY + 2))


def draw_spare(rng: np.random.Generator) -> tuple[Any, ...]:
    """A pool with two rows more than the slot map hands out."""
    _, *rest = draw_choice(rng)
    return (normal(rng, SLOTS + 2, KEY, VALUE), *rest)


def draw_many(rng: np.random.Generator) -> tuple[Any, ...]:
    slots = slot_map(rng, lanes=MANY, slots=MANY + 2)
    return normal(rng, MANY + 2, 1, 1), slots, normal(rng, MANY, HIDDEN), weight(rng, 1, HIDDEN)


def index_columns(pool, slots, x, w):
    """Rows and lane numbers side by side, repeated for every lane, the wrong axis taken."""
    pairs = jnp.stack([slots, jnp.arange(LANES, dtype=jnp.int32)], axis=-1)
    row = jnp.broadcast_to(pairs[None], (LANES, LANES, 2))[:, :, 0][:, 1]
    return advance(pool[row], x, w).sum(1), rows.plain_step(pool, slots, x, w)[1]


def row_as_fill(pool, slots, x, w, choice):
    """A lane's look-up past the end of its rows is filled with row 3."""
    row = slots[:, None].at[jnp.arange(LANES)[:, None], choice[:, None]].get(mode="fill", fill_value=3)[:, 0]
    return advance(pool[row], x, w).sum(1), rows.plain_step(pool, slots, x, w)[1]


def row_as_guard(pool, slots, x, w, choice):
    """Padding writes past the slot map to an existing row."""
    new = advance(pool[slots], x, w)
    return new.sum(1), pool.at[jnp.where(choice > 1, SLOTS, slots)].set(new, mode="drop")


def filled_column(pool, slots, x, w, place):
    """A column past the end reads NaN and overwrites the last column."""
    column = pool.at[:, place].get(mode="fill", wrap_negative_indices=False)
    column = column.at[slots].set(x[:, :1] * jnp.ones((1, VALUE)), mode="drop")
    return advance(pool[slots], x, w).sum(1), pool.at[:, place].set(column, mode="clip", wrap_negative_indices=False)


def eight_bit_count(pool, slots, x, w):
    """Lanes counted in eight bits: the 257th is the first again."""
    return x[lax.iota(jnp.uint8, MANY)] @ w.T, pool


def _windowed(padding: int, dilation: int) -> Any:
    def step(pool: Array, slots: Array, x: Array, w: Array) -> Any:
        sums = lax.reduce_window(x, 0.0, lax.add, (1, 1), (1, 1), ((padding, 0), (0, 0)), base_dilation=(dilation, 1))
        return rows.plain_step(pool, slots, sums[:LANES], w)

    return step


_plain = mutants_of(PLAIN, *BAD)
MUTANTS = (
    _plain("index-columns-spread", "columns of indices spread over lanes are taken along the wrong axis",
           index_columns),
    _plain("row-as-fill", "the fill value of a look-up is a row", row_as_fill, contract=CHOICE, draw=draw_choice),
    _plain("row-as-guard", "the guard is a row that the pool has", row_as_guard, contract=CHOICE, draw=draw_spare),
    _plain("filled-column-put-back", "a column read past the end is put back over the last", filled_column,
           contract=PLACE, draw=draw_place),
    _plain("eight-bit-count", "lane numbers in eight bits wrap", eight_bit_count,
           contract=LaneContract((Pool("seq"), SlotMap("seq", MANY + 2), Lane(), Shared()), rows.STEP.outputs),
           draw=draw_many),
    _plain("padded-windows", "windows of one lane with padding before the first", _windowed(1, 1)),
    _plain("dilated-windows", "windows of one lane with holes between lanes", _windowed(0, 2)),
)  # fmt: skip
