"""Uses of rows in engines: null rows, guards, copies, moves, forks, and hand-overs between pools."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo.program import HIDDEN, KEY, LANES, SLOTS, VALUE, Program, normal, slot_map, weight

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

POOLS = (Pool("seq"), Pool("seq"), Pool("seq"))
STEP = LaneContract(inputs=(Pool("seq"), SlotMap("seq", SLOTS), Lane(), Shared()), outputs=(Lane(), Pool("seq")))
LENGTH = LaneContract(inputs=(*STEP.inputs, Lane(role="length")), outputs=STEP.outputs)
COPY = LaneContract(
    inputs=(POOLS, SlotMap("seq", SLOTS, role="read"), SlotMap("seq", SLOTS, role="write")), outputs=(POOLS,)
)
ELSEWHERE = LaneContract(
    inputs=(
        Pool("seq"), SlotMap("seq", SLOTS, role="read"), SlotMap("seq", SLOTS, role="write"), Lane(), Shared(),
        Lane(role="length"),
    ),
    outputs=(Lane(), Pool("seq")),
)  # fmt: skip
MAX_PREFILL_ROWS = LaneContract(
    inputs=(Pool("prefill"), Pool("decode"), SlotMap("prefill", LANES + 1), SlotMap("decode", SLOTS)),
    outputs=(Pool("decode"),),
)
FORK = LaneContract(
    inputs=(Pool("snapshots"), SlotMap("snapshots", SLOTS, role="read"), Pool("rows"), Lane()), outputs=(Pool("rows"),)
)
TWO = LaneContract(
    inputs=(Pool("a"), Pool("b"), SlotMap("a", SLOTS), SlotMap("b", LANES + 2), Lane()),
    outputs=(Pool("b"), Lane(), Pool("a")),
)


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, SLOTS, KEY, VALUE), slot_map(rng), normal(rng, LANES, HIDDEN), weight(rng, KEY * VALUE, HIDDEN)


def draw_length(rng: np.random.Generator) -> tuple[Any, ...]:
    args = draw(rng)
    lengths = np.where(args[1] == 0, 0, rng.integers(0, 3, LANES)).astype(np.int32)
    return (*args, lengths)


def draw_copy(rng: np.random.Generator) -> tuple[Any, ...]:
    """Sources may repeat and may be another lane's destination."""
    pools = normal(rng, SLOTS, 2, HIDDEN), normal(rng, SLOTS, KEY, VALUE), rng.integers(0, 90, SLOTS).astype(np.int32)
    target = slot_map(rng)
    source = np.where(target == 0, 0, rng.integers(1, SLOTS, LANES)).astype(np.int32)
    return pools, source, target


def draw_elsewhere(rng: np.random.Generator) -> tuple[Any, ...]:
    """Draw lanes with different source and target rows; some are idle, rows may cross."""
    (_, pool, _), source, target = draw_copy(rng)
    lengths = np.where(target == 0, 0, rng.integers(0, 3, LANES)).astype(np.int32)
    return pool, source, target, normal(rng, LANES, HIDDEN), weight(rng, KEY * VALUE, HIDDEN), lengths


def draw_staging(rng: np.random.Generator) -> tuple[Any, ...]:
    target = slot_map(rng)
    source = np.where(target == 0, 0, slot_map(rng, padding=False, slots=LANES + 1)).astype(np.int32)
    return normal(rng, LANES + 1, KEY, VALUE), normal(rng, SLOTS, KEY, VALUE), source, target


def draw_fork(rng: np.random.Generator) -> tuple[Any, ...]:
    source = rng.integers(1, SLOTS, LANES).astype(np.int32)
    return normal(rng, SLOTS, KEY, VALUE), source, normal(rng, LANES, KEY, VALUE), rng.random(LANES) < 0.5


def draw_two(rng: np.random.Generator) -> tuple[Any, ...]:
    """A lane lacks rows of both kinds or of neither."""
    a = slot_map(rng)
    b = np.where(a == 0, 0, slot_map(rng, padding=False, slots=LANES + 2)).astype(np.int32)
    return normal(rng, SLOTS, VALUE), normal(rng, LANES + 2, 2, VALUE), a, b, normal(rng, LANES, VALUE)


def advance(rows, x, w):
    return 0.5 * rows + jnp.tanh(x @ w.T).reshape(-1, KEY, VALUE)


def plain_step(pool, slots, x, w):
    """Read, advance, write."""
    rows = advance(pool[slots], x, w)
    return rows.sum(1), pool.at[slots].set(rows)


def null_row_step(pool, slots, x, w):
    """Lanes on the null row write back their read row, identical for all."""
    rows = pool[slots]
    keep = (slots == 0)[:, None, None]
    rows = jnp.where(keep, rows, advance(rows, x, w))
    return jnp.where(keep[:, :, 0], 0.0, rows.sum(1)), pool.at[slots].set(rows)


def dropped_step(pool, slots, x, w, lengths):
    """Writes of idle lanes are sent past the end, where the scatter drops them."""
    rows = advance(pool.at[slots].get(mode="clip"), x, w)
    target = jnp.where(lengths > 0, slots, SLOTS)
    return rows.sum(1), pool.at[target].set(rows, mode="drop", wrap_negative_indices=False)


def masked_step(pool, slots, x, w, lengths):
    """Idle lanes write back their read row."""
    rows = jnp.take(pool, slots, axis=0, mode="fill", fill_value=0)
    new = lax.fori_loop(0, 2, lambda i, rows: jnp.where((i < lengths)[:, None, None], advance(rows, x, w), rows), rows)
    return new[:, 0], pool.at[slots].set(new, indices_are_sorted=False, unique_indices=False, mode="drop")


def lax_step(pool, slots, x, w):
    """Gather and scatter of lax, with their dimension numbers."""
    gather = lax.GatherDimensionNumbers(offset_dims=(0, 1), collapsed_slice_dims=(0,), start_index_map=(0,))
    scatter = lax.ScatterDimensionNumbers(
        update_window_dims=(0, 1), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    index = lax.expand_dims(slots, [1])
    rows = lax.gather(pool, index, gather, (1, KEY, VALUE), mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)
    rows = rows * 0.5 + jnp.tanh(w @ x.T).reshape(KEY, VALUE, -1)
    pool = lax.scatter(pool, index, rows, scatter, mode=lax.GatherScatterMode.FILL_OR_DROP)
    return rows.transpose(2, 1, 0), pool


def add_step(pool, slots, x, w):
    """Rows are never read separately: updates are added in place."""
    new = jnp.tanh(x @ w.T).reshape(-1, KEY, VALUE)
    pool = pool.at[slots].multiply(0.5).at[slots].add(new)
    return jnp.einsum("nkv->nk", pool[slots]), pool


def copy_step(pools, source, target):
    """Rows are copied, forked and moved in every array of the group."""
    return (jax.tree.map(lambda pool: pool.at[target].set(pool[source]), pools),)


def elsewhere_step(pool, source, target, x, w, lengths):
    """Read and write different rows; idle lanes write nowhere, and their rows stay."""
    rows = advance(pool[source], x, w)
    target = jnp.where(lengths > 0, target, SLOTS)
    return rows.sum(1), pool.at[target].set(rows, mode="drop", wrap_negative_indices=False)


def added_elsewhere_step(pool, source, target, x, w, lengths):
    """Add a lane's read row to part of its target row; the rest stays."""
    new = jnp.where((lengths > 0)[:, None], advance(pool[source], x, w)[:, 0], 0.0)
    target = jnp.where(lengths > 0, target, SLOTS)
    return new, pool.at[target, 1].add(new, mode="drop", wrap_negative_indices=False)


def staging_step(staging, decode, source, target):
    """Prefilled rows are handed over to the pool that decodes."""
    return (decode.at[target].set(staging[source]),)


def fork_step(snapshots, source, rows, begins):
    """Some lanes begin from a snapshot, the others go on."""
    return (jnp.where(begins[:, None, None], snapshots[source], rows),)


def two_maps_step(a, b, slots_a, slots_b, x):
    """Two kinds of state behind separate slot maps."""
    state = 0.5 * a[slots_a] + x
    window = jnp.roll(b[slots_b], -1, axis=1).at[:, -1].set(state)
    return b.at[slots_b].set(window), window.mean(1), a.at[slots_a].set(state)


PROGRAMS = (
    Program("rows behind a slot map", plain_step, STEP, draw),
    Program("null rows written back", null_row_step, STEP, draw),
    Program("idle writes dropped", dropped_step, LENGTH, draw_length),
    Program("idle rows written back", masked_step, LENGTH, draw_length),
    Program("lax gather and scatter", lax_step, STEP, draw),
    Program("rows added to in place", add_step, STEP, draw),
    Program("copies, moves and forks", copy_step, COPY, draw_copy),
    Program("rows read here and written there", elsewhere_step, ELSEWHERE, draw_elsewhere),
    Program("rows read here and added to there", added_elsewhere_step, ELSEWHERE, draw_elsewhere),
    Program("hand-over from a prefill pool", staging_step, MAX_PREFILL_ROWS, draw_staging),
    Program("fork of snapshots", fork_step, FORK, draw_fork),
    Program("two slot maps", two_maps_step, TWO, draw_two),
)
