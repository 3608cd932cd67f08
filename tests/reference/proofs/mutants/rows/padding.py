"""Faults in the reads and writes of padding lanes and of lanes without a sequence."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from mutants.mutant import wrong
from mutants.rows.indices import BAD, PLAIN, elsewhere
from zoo import rows
from zoo.program import LANES, SLOTS
from zoo.rows import advance

from ir_passes import LaneContract, Shared

TABLE = LaneContract(inputs=(*rows.STEP.inputs, Shared()), outputs=rows.STEP.outputs)


def draw_table(rng: np.random.Generator) -> tuple[Any, ...]:
    args = rows.draw(rng)
    return (*args, rng.choice(np.setdiff1d(np.arange(1, SLOTS), args[1]), LANES).astype(np.int32))


def clamped_padding(pool, slots, x, w):
    target = jnp.where(slots == 0, SLOTS, slots)
    return elsewhere(target, target, pool, x, w, "clip")


def last_row_as_sentinel(pool, slots, x, w):
    target = jnp.where(slots == 0, SLOTS - 1, slots)
    return elsewhere(target, target, pool, x, w)


def wrapped_padding(pool, slots, x, w):
    return elsewhere(slots, jnp.where(slots == 0, -1, slots), pool, x, w, "drop")


def live_row_as_padding(pool, slots, x, w):
    target = jnp.where(slots == 0, jnp.max(slots), slots)
    return elsewhere(target, target, pool, x, w)


def first_lane_as_padding(pool, slots, x, w):
    return elsewhere(slots, jnp.where(slots == 0, slots[0], slots), pool, x, w)


def remainder(pool, slots, x, w):
    return elsewhere(slots % (LANES + 1), slots % (LANES + 1), pool, x, w)


def stale_tail(pool, slots, x, w, table):
    """The long-lived index buffer is longer than the batch."""
    new = advance(pool[slots], x, w)
    target = jnp.concatenate([slots, table])
    return new.sum(1), pool.at[target].set(jnp.concatenate([new, jnp.zeros_like(new)]))


def dummy_writes(pool, slots, x, w, table):
    """Lanes without a sequence write through rows left in a table."""
    return elsewhere(slots, jnp.where(slots == 0, table, slots), pool, x, w)


_plain = partial(wrong, PLAIN)
MUTANTS = (
    _plain("clamped-padding", "tpu-inference#2752", "padding index N is clamped to the last row", clamped_padding,
           *BAD),
    _plain("sentinel-last-row", "tokenspeed#700, SGLang#36885", "-1 becomes the last row, which is handed out",
           last_row_as_sentinel, *BAD),
    _plain("wrapped-padding", "flashinfer#5042", "-1 wraps to the last row although mode is drop", wrapped_padding,
           *BAD),
    _plain("padding-holds-a-live-row", "tpu-inference#2469", "padding lanes hold the largest live row",
           live_row_as_padding, *BAD),
    _plain("padding-holds-lane-0", "tpu-inference#2469, TRT-LLM#13151", "padding lanes write the row of lane 0",
           first_lane_as_padding, *BAD),
    _plain("remainder", "vllm-gaudi#1431", "rows modulo the size of a compact pool", remainder, *BAD),
    _plain("stale-tail", "TRT-LLM#13151", "the scatter runs over the stale tail of an index buffer", stale_tail, *BAD,
           contract=TABLE, draw=draw_table),
    _plain("dummy-writes", "vLLM#37728", "a dummy run writes through rows left in a table", dummy_writes, *BAD,
           contract=TABLE, draw=draw_table),
)  # fmt: skip
