"""Faults with snapshots, device slots, flat pools, masked lanes, or omitted arrays."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from mutants.mutant import Evidence, Kind, Mutant, wrong
from zoo.batches import LANES, RANK_ROWS, SLOTS, VALUE, advance, over_ranks, rank_rows

ROW = (Kind.WRONG_ROW, Kind.CROSS_LANE, Kind.BOUNDS)
STEP = Kind.WRONG_ROW, Kind.CROSS_LANE, Kind.COLLECTIVE, Kind.BOUNDS


def _flat(places: Any) -> Any:
    def step(x, pool, slots):
        flat, index = pool.reshape(SLOTS * VALUE), places(slots)
        new = advance(flat[index], x)
        return new, flat.at[index].set(new).reshape(SLOTS, VALUE)

    return step


def _places(slots, by=VALUE, first=0):
    return slots[:, None] * by + first + jnp.arange(VALUE, dtype=jnp.int32)[None]


def _tracked(snapshot: Any) -> Any:
    def step(x, pool, slots, tracked):
        initial = pool[slots]
        new = advance(initial, x)
        return new, snapshot(pool.at[slots].set(new), tracked, initial)

    return step


def _restored(rows: Any) -> Any:
    """Snapshots are written, and read after that."""

    def step(x, pool, slots, saved):
        initial = pool[slots]
        pool = pool.at[saved].set(initial)
        snapshot = pool.at[rows(saved)].get(mode="fill", fill_value=0.0)
        new = advance(snapshot, x)
        return new, pool.at[slots].set(new)

    return step


def _kept(alive: Any) -> Any:
    def step(x, pool, slots, records):
        initial = pool[slots]
        new = jnp.where(alive(records), advance(initial, x), initial)
        return new, pool.at[slots].set(new)

    return step


def _left_out(out: Any, options: Any) -> Any:
    def step(x, pool, slots, times):
        new = advance(pool[slots], x)
        return out(new, times), pool.at[slots].set(new), options(x, times)

    return step


def _by(rows: Any) -> Any:
    local = lambda x, pool, slots: rank_rows(x, pool, rows(slots, pool))
    return over_ranks(local)


def _summed(x, pool, slots):
    new, pool = rank_rows(x, pool, slots)
    return new + lax.psum(new, "data"), pool


def _swapped(x, pool, slots):
    new, _ = rank_rows(x, pool, slots)
    return new, pool.at[slots].set(lax.ppermute(new, "data", [(0, 1), (1, 0)]))


def _one(base: str, id: str, description: str, step: Any, *kinds: Kind, fault: bool = False) -> Mutant:
    return wrong(base, id, "JAX", description, step, *kinds, evidence=Evidence.FAULT if fault else Evidence.LEAK)


def _switched_off(row: int) -> Any:
    """Lanes with a negative first number use the flat pool's base element."""

    def step(x, pool, slots):
        flat = pool.reshape(SLOTS * VALUE)
        first = jnp.where(x[:, 0] > 0, slots * VALUE, row)
        index = first[:, None] + jnp.arange(VALUE, dtype=jnp.int32)[None]
        new = flat.at[index].get(mode="fill", fill_value=0, wrap_negative_indices=False) + x
        return new, flat.at[index].set(new, mode="drop", wrap_negative_indices=False).reshape(SLOTS, VALUE)

    return step


SNAPSHOT, RESTORED, FLAT = "snapshot beside the running state", "snapshot restored", "flat pool"
MASK, COUNT, OUT, RANK = "idle by a mask", "idle by a count", "arrays left out", "sharded, rows of a rank"
NUMBERS = jnp.arange(LANES, dtype=jnp.int32)

MUTANTS = (
    _one(SNAPSHOT, "snapshot-of-neighbour", "a lane's snapshot is another lane's state",
         _tracked(lambda pool, index, rows: pool.at[index].set(jnp.roll(rows, 1, 0))), *ROW),
    _one(SNAPSHOT, "snapshot-next-row", "a snapshot is written to the row after its own",
         _tracked(lambda pool, index, rows: pool.at[index + 1].set(rows)), *ROW),
    _one(SNAPSHOT, "snapshot-rows-reversed", "snapshots are written in the reverse order of lanes",
         _tracked(lambda pool, index, rows: pool.at[index[::-1]].set(rows)), *ROW),
    _one(RESTORED, "restored-null-row", "lanes without a snapshot read the null row, which others have written",
         _restored(lambda saved: saved), *ROW),
    _one(RESTORED, "restored-guard-open", "the guard of lanes without a snapshot lets the null row through",
         _restored(lambda saved: jnp.where(saved > -1, saved, SLOTS)), *ROW),
    _one(RESTORED, "restored-guard-turned", "lanes with a snapshot are guarded, those without read the null row",
         _restored(lambda saved: jnp.where(saved > 0, SLOTS, saved)), *ROW),
    _one(RESTORED, "restored-guard-of-neighbour", "a lane is guarded by whether another has a snapshot",
         _restored(lambda saved: jnp.where(jnp.roll(saved, 1) > 0, saved, SLOTS)), *ROW),
    _one(FLAT, "flat-stride-short", "rows of a flat pool overlap by one element",
         _flat(lambda s: _places(s, VALUE - 1)), *ROW),
    _one(FLAT, "flat-one-further", "the last element of a row is the next row's", _flat(lambda s: _places(s, first=1)),
         *ROW),
    _one(FLAT, "flat-rows-reversed", "rows of a flat pool are another lane's", _flat(lambda s: _places(s[::-1])), *ROW),
    _one(FLAT, "flat-null-and-next", "a lane switched off writes from the middle of the null row into the next one",
         _switched_off(VALUE - 1), *ROW),
    _one(FLAT, "flat-below-first", "a lane switched off begins below the first row, and its offsets reach that",
         _switched_off(-1), *ROW),
    _one(MASK, "mask-inverted", "the rows of active lanes are kept, those of the others change",
         _kept(lambda active: ~active[:, None]), Kind.IDLE),
    _one(MASK, "mask-of-neighbour", "a lane is kept by the mask of another",
         _kept(lambda active: jnp.roll(active, 1)[:, None]), *ROW),
    _one(MASK, "mask-ignored", "rows of lanes that are not active change", _kept(lambda active: True), Kind.IDLE),
    _one(COUNT, "count-one-more", "the lane behind the last active one changes its row",
         _kept(lambda count: (NUMBERS <= count)[:, None]), Kind.IDLE),
    _one(COUNT, "count-of-first", "what is so of lane 0 is taken for all",
         _kept(lambda count: (NUMBERS < count)[0]), Kind.IDLE),
    _one(COUNT, "count-reversed", "lanes are counted from the other end",
         _kept(lambda count: (NUMBERS < count)[::-1][:, None]), Kind.IDLE),
    _one(COUNT, "count-any", "all lanes change their rows if one is active",
         _kept(lambda count: (NUMBERS < count).any()), Kind.IDLE),
    _one(OUT, "left-out-used", "an array that is left out reaches every lane",
         _left_out(lambda new, times: new + times.sum(), lambda x, times: jnp.float32(0)), Kind.CROSS_LANE),
    _one(OUT, "left-out-returned", "an array that is left out is returned",
         _left_out(lambda new, times: new, lambda x, times: times), Kind.CROSS_LANE),
    _one(OUT, "left-out-sum", "a result that is left out sums over lanes",
         _left_out(lambda new, times: new, lambda x, times: x.sum()), Kind.CROSS_LANE),
    _one(RANK, "rank-of-whole-pool", "rows within a device are taken for rows of the whole pool",
         _by(lambda slots, pool: slots + lax.axis_index("data") * pool.shape[0]), *STEP),
    _one(RANK, "rank-row-of-neighbour", "a lane has the row of another lane of its device",
         _by(lambda slots, pool: slots[::-1]), *STEP),
    _one(RANK, "rank-slots-sent", "the slots of another device", 
         _by(lambda slots, pool: lax.ppermute(slots, "data", [(0, 1), (1, 0)])), *STEP),
    _one(RANK, "rank-states-sent", "a lane writes what another device computed", over_ranks(_swapped), *STEP),
    _one(RANK, "rank-sum", "a sum over the devices that split lanes", over_ranks(_summed), *STEP),
    _one(RANK, "rank-constant", "the last row of each device",
         _by(lambda slots, pool: jnp.full_like(slots, RANK_ROWS - 1)), Kind.CONSTANT),
)  # fmt: skip
