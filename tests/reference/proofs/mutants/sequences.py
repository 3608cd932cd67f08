"""Loops over sequences: shared or small scratch, running state, constant rows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from mutants.mutant import Evidence, Kind, wrong
from zoo import rows
from zoo.loops import one
from zoo.program import HIDDEN, LANES, SLOTS, VALUE, slot_map
from zoo.rows import advance

UNROLLED, LOOP, SCAN = "loop over lanes, unrolled", "loop over lanes", "scan over lanes with carried pools"
PLAIN = "rows behind a slot map"
MIXED = (Kind.CROSS_LANE, Kind.WRONG_ROW, Kind.FRAME, Kind.BOUNDS)
BAKED = (Kind.CONSTANT, Kind.FRAME, Kind.WRONG_ROW, Kind.CROSS_LANE)
BAKED_POOL = np.random.default_rng(0).normal(size=(SLOTS, rows.KEY, VALUE)).astype(np.float32)
BAKED_ROWS = slot_map(np.random.default_rng(0), padding=False)


def unrolled(
    w, pools, slots, x, read=lambda slots, i: slots[i], write=lambda slots, i: slots[i], token=lambda x, i: x[i]
):
    """The loop over lanes with other rows or tokens."""
    tails, states = pools
    out = []
    for i in range(LANES):
        tail, state, y = one(w, tails[read(slots, i)], states[read(slots, i)], token(x, i))
        tails, states = tails.at[write(slots, i)].set(tail), states.at[write(slots, i)].set(state)
        out.append(y)
    return (tails, states), jnp.stack(out)


def scratch_too_small(w, pools, slots, x):
    """Each lane's scratch begins where half of the one before ends."""
    size = HIDDEN // 2
    scratch = jnp.zeros(size * (LANES - 1) + HIDDEN)
    for i in range(LANES):
        scratch = lax.dynamic_update_slice(scratch, jnp.tanh(x[i]), (i * size,))
    array = jnp.stack([lax.dynamic_slice(scratch, (i * size,), (HIDDEN,)) for i in range(LANES)])
    return unrolled(w, pools, slots, array)


def scratch_freed_early(w, pools, slots, x):
    """One scratch row for all lanes, read after the loop that writes it."""
    scratch = jnp.zeros((1, HIDDEN))
    for i in range(LANES):
        scratch = scratch.at[0].set(jnp.tanh(x[i]))
    return unrolled(w, pools, slots, x + scratch)


def two_scratch_rows(w, pools, slots, x):
    """Two alternating scratch rows, read at the end: right for two lanes."""
    scratch = jnp.zeros((2, HIDDEN))
    for i in range(LANES):
        scratch = scratch.at[i % 2].set(jnp.tanh(x[i]))
    return unrolled(w, pools, slots, jnp.stack([x[i] + scratch[i % 2] for i in range(LANES)]))


def state_runs_on(w, pools, slots, x):
    """The scan's carry passes a sequence's state to the next."""

    def body(carry, lane):
        tails, states, tail = carry
        slot, x = lane
        tail, state, y = one(w, tail, states[slot], x)
        return (tails.at[slot].set(tail), states.at[slot].set(state), tail), y

    (tails, states, _), y = lax.scan(body, (*pools, pools[0][slots[0]]), (slots, x))
    return (tails, states), y


def scratch_in_the_carry(w, pools, slots, x):
    """Scratch that the loop carries is not cleared between lanes."""

    def body(carry, lane):
        pools, scratch = carry
        slot, x = lane
        scratch = 0.5 * scratch + x
        tail, state, y = one(w, pools[0][slot], pools[1][slot], scratch)
        return ((pools[0].at[slot].set(tail), pools[1].at[slot].set(state)), scratch), y

    (pools, _), y = lax.scan(body, (pools, jnp.zeros(HIDDEN)), (slots, x))
    return pools, y


def previous_lane_row(w, pools, slots, x):
    def body(i, carry):
        (tails, states), out = carry
        tail, state, y = one(w, tails[slots[i - 1]], states[slots[i]], x[i])
        return (tails.at[slots[i]].set(tail), states.at[slots[i]].set(state)), out.at[i].set(y)

    return lax.fori_loop(0, LANES, body, (pools, jnp.zeros((LANES, VALUE))))


def output_of_another_lane(w, pools, slots, x):
    def body(i, carry):
        (tails, states), out = carry
        tail, state, y = one(w, tails[slots[i]], states[slots[i]], x[i])
        return (tails.at[slots[i]].set(tail), states.at[slots[i]].set(state)), out.at[LANES - 1 - i].set(y)

    return lax.fori_loop(0, LANES, body, (pools, jnp.zeros((LANES, VALUE))))


@functools.partial(jax.jit, static_argnums=0)
def _for_slot(slot: int, pool: Any, x: Any, w: Any) -> Any:
    new = advance(pool[slot][None], x[None], w)
    return new[0].sum(0), pool.at[slot].set(new[0])


def row_of_the_first_trace(pool, slots, x, w):
    """The row was a Python number when the program was traced."""
    out = []
    for i in range(LANES):
        y, pool = _for_slot(i + 2, pool, x[i], w)
        out.append(y)
    return jnp.stack(out), pool


def rows_as_constants(pool, slots, x, w):
    return rows.plain_step(pool, jnp.asarray(BAKED_ROWS), x, w)


def never_written(pool, slots, x, w):
    """The rows of the capture are all null: the state is never written."""
    new = advance(pool[slots], x, w)
    return new.sum(1), pool.at[jnp.zeros(LANES, jnp.int32)].set(new)


def pool_as_constant(pool, slots, x, w):
    new = advance(jnp.asarray(BAKED_POOL)[slots], x, w)
    return new.sum(1), pool.at[slots].set(new)


def warm_up_row(pool, slots, x, w):
    """The warm-up's write to row 1 has stayed in the program."""
    y, pool = rows.plain_step(pool, slots, x, w)
    return y, pool.at[1].set(0.0)


def _unrolled(id: str, source: str, description: str, **parts: Any) -> Any:
    return wrong(UNROLLED, id, source, description, lambda *args: unrolled(*args, **parts), *MIXED)


MUTANTS = (
    wrong(UNROLLED, "scratch-too-small", "Atlas#6", "scratch of one lane reaches into the next lane's",
          scratch_too_small, *MIXED),
    wrong(UNROLLED, "scratch-freed-early", "ik#1932", "one scratch row serves lanes that live at a time",
          scratch_freed_early, *MIXED),
    wrong(UNROLLED, "two-scratch-rows", "ik#1932", "two scratch rows in turn: wrong from three lanes on",
          two_scratch_rows, *MIXED),
    _unrolled("writes-next-lanes-row", "JAX", "the result goes to the next lane's row",
              write=lambda slots, i: slots[(i + 1) % LANES]),
    _unrolled("reads-previous-lanes-row", "JAX", "the state comes from the row just written",
              read=lambda slots, i: slots[i - 1]),
    _unrolled("token-of-another-lane", "mlx-vlm#1889", "the token is the neighbour's", token=lambda x, i: x[i - 1]),
    _unrolled("first-lane-for-all", "ik#2260, club-3090#920", "every lane decodes on the first lane's state",
              read=lambda slots, i: slots[0]),
    wrong(SCAN, "state-runs-on", "JAX", "the carry of the scan goes from lane to lane", state_runs_on, *MIXED),
    wrong(SCAN, "scratch-in-the-carry", "JAX", "scratch persists from lane to lane", scratch_in_the_carry, *MIXED),
    wrong(LOOP, "previous-lane-in-loop", "JAX", "iteration i reads the row of lane i - 1", previous_lane_row, *MIXED),
    wrong(LOOP, "reversed-in-loop", "JAX", "iteration i writes the output of lane N-1-i", output_of_another_lane,
          *MIXED),
    wrong(PLAIN, "row-of-the-first-trace", "club-3090#920, ik#2260", "rows are Python numbers", row_of_the_first_trace,
          *BAKED),
    wrong(PLAIN, "rows-as-constants", "club-3090#920", "the slot map is a constant", rows_as_constants, *BAKED),
    wrong(PLAIN, "never-written", "vLLM#47123", "the captured rows are null: nothing is written", never_written, *BAKED,
          Kind.COUPLING, evidence=Evidence.FAULT),
    wrong(PLAIN, "pool-as-constant", "JAX", "the pool is a constant", pool_as_constant, *BAKED,
          evidence=Evidence.FAULT),
    wrong(PLAIN, "warm-up-row", "SGLang#17404", "a write of the warm-up has stayed", warm_up_row, *BAKED),
)  # fmt: skip
