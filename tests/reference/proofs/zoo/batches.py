"""Server batches: snapshot rows, slots within a device, idle lanes by mask or count."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P
from zoo.meshes.sharded import mesh
from zoo.program import LANES, SLOTS, VALUE, Program, normal, slot_map

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap, Unspecified

RESULTS = (Lane(), Pool("seq"))
PLAIN = (Lane(), Pool("seq"), SlotMap("seq", SLOTS))
TRACKED = LaneContract((*PLAIN, SlotMap("seq", SLOTS, role="write", disjoint=True)), RESULTS)
RESTORED = LaneContract((*PLAIN, SlotMap("seq", SLOTS, disjoint=True)), RESULTS)
FLAT = LaneContract(PLAIN, RESULTS)
MASK = LaneContract((*PLAIN, Lane(role="active")), RESULTS)
COUNT = LaneContract((*PLAIN, Shared("active_count")), RESULTS)
LEFT_OUT = LaneContract((*PLAIN, None), (*RESULTS, Unspecified()))
RANK_ROWS, RANKS = 4, 2
RANK = LaneContract((Lane(), Pool("seq"), SlotMap("seq", RANK_ROWS, local="data")), RESULTS)


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, LANES, VALUE), normal(rng, SLOTS, VALUE), slot_map(rng)


def draw_tracked(rng: np.random.Generator) -> tuple[Any, ...]:
    """Draw separate rows for running states and snapshots; some lanes take no snapshot."""
    rows = (1 + rng.permutation(SLOTS - 1)).astype(np.int32)
    tracked = np.where(rng.random(LANES) < 0.7, rows[LANES : 2 * LANES], 0).astype(np.int32)
    return normal(rng, LANES, VALUE), normal(rng, SLOTS, VALUE), rows[:LANES], tracked


def draw_mask(rng: np.random.Generator) -> tuple[Any, ...]:
    return *draw(rng), rng.random(LANES) < 0.5


def draw_count(rng: np.random.Generator) -> tuple[Any, ...]:
    return *draw(rng), np.int32(rng.integers(-1, LANES + 2))


def draw_left_out(rng: np.random.Generator) -> tuple[Any, ...]:
    return *draw(rng), normal(rng, LANES)


def draw_rank(rng: np.random.Generator) -> tuple[Any, ...]:
    """Lanes of different devices often have the same number."""
    parts = [slot_map(rng, lanes=LANES // RANKS, slots=RANK_ROWS, padding=False) for _ in range(RANKS)]
    slots = np.where(rng.random(LANES) < 0.8, np.concatenate(parts), 0).astype(np.int32)
    return normal(rng, LANES, VALUE), normal(rng, RANKS * RANK_ROWS, VALUE), slots


def advance(rows: Array, x: Array) -> Array:
    return 0.5 * rows + jnp.tanh(x)


def tracked_step(x, pool, slots, tracked):
    """Return the new running state and the lane's previous state."""
    state = pool[slots]
    new = advance(state, x)
    return new, pool.at[slots].set(new).at[tracked].set(state)


def restored_step(x, pool, slots, saved):
    """Lanes that have a snapshot begin from it, and take another one."""
    snapshot = pool.at[jnp.where(saved > 0, saved, SLOTS)].get(mode="fill", fill_value=0.0)
    state = jnp.where((saved > 0)[:, None], snapshot, pool[slots])
    new = advance(state, x)
    return new, pool.at[slots].set(new).at[saved].set(new)


def flat_step(x, pool, slots):
    """The pool as one vector: a row begins at slot * VALUE."""
    flat = pool.reshape(SLOTS * VALUE)
    places = slots[:, None] * VALUE + jnp.arange(VALUE, dtype=jnp.int32)[None]
    new = advance(flat[places], x)
    return new, flat.at[places].set(new).reshape(SLOTS, VALUE)


def mask_step(x, pool, slots, active):
    state = pool[slots]
    new = jnp.where(active[:, None], advance(state, x), state)
    return new, pool.at[slots].set(new)


def mask_dropped_step(x, pool, slots, active):
    new = advance(pool[slots], x)
    return new, pool.at[jnp.where(active, slots, SLOTS)].set(new, mode="drop")


def count_step(x, pool, slots, count):
    state = pool[slots]
    new = jnp.where((jnp.arange(LANES) < count)[:, None], advance(state, x), state)
    return new, pool.at[slots].set(new)


def count_vmapped_step(x, pool, slots, count):
    def one(lane, x, state):
        return jnp.where(count > lane, advance(state, x), state)

    new = jax.vmap(one)(jnp.arange(LANES), x, pool[slots])
    return new, pool.at[slots].set(new)


def left_out_step(x, pool, slots, times):
    """Measurements of each lane are given and not used; the number of lanes is returned."""
    new = advance(pool[slots], x)
    return new, pool.at[slots].set(new), jnp.float32(times.shape[0])


def over_ranks(local: Any) -> Any:
    specs = (P("data"), P("data"), P("data"))

    def step(x, pool, slots):
        return jax.shard_map(local, mesh=mesh(RANKS, 2), in_specs=specs, out_specs=specs[:2])(x, pool, slots)

    return step


def rank_rows(x, pool, slots):
    new = advance(pool[slots], x)
    return new, pool.at[slots].set(new)


PROGRAMS = (
    Program("snapshot beside the running state", tracked_step, TRACKED, draw_tracked),
    Program("snapshot restored", restored_step, RESTORED, draw_tracked),
    Program("flat pool", flat_step, FLAT, draw),
    Program("idle by a mask", mask_step, MASK, draw_mask),
    Program("idle by a mask, dropped", mask_dropped_step, MASK, draw_mask),
    Program("idle by a count", count_step, COUNT, draw_count),
    Program("idle by a count, vmapped", count_vmapped_step, COUNT, draw_count),
    Program("arrays left out", left_out_step, LEFT_OUT, draw_left_out),
    Program("sharded, rows of a rank", over_ranks(rank_rows), RANK, draw_rank),
)
