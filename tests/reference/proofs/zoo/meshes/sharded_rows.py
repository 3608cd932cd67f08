"""Pools split over `data` behind slot maps of the whole pool: copies, keeping, steps.

Two by two devices; each has its own rows, and half of every row along `model`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec as P
from zoo.meshes.sharded import mesh
from zoo.program import LANES, VALUE, Program, normal, slot_map

from ir_passes import Lane, LaneContract, Pool, SlotMap

SOURCE, TARGET, KEPT = 8, 6, 2
"""Rows of pools, two devices' together."""
SPLIT, WHOLE = P("data", "model"), P(None, "model")
READ, WRITE = SlotMap("source", SOURCE, role="read"), SlotMap("target", TARGET, role="write")
COPY = LaneContract(inputs=(Pool("target"), Pool("source"), READ, WRITE), outputs=(Pool("target"),))
KEEP = LaneContract(
    inputs=(Pool("kept"), Pool("source"), READ, SlotMap("kept", KEPT, role="write", null=False)),
    outputs=(Pool("kept"),),
)
RESTORE = LaneContract(
    inputs=(Pool("target"), Pool("kept"), SlotMap("kept", KEPT, role="read", null=False), WRITE),
    outputs=(Pool("target"),),
)
ADVANCE = LaneContract(
    inputs=(Pool("source"), SlotMap("source", SOURCE), Lane(), Lane(role="length")), outputs=(Lane(), Pool("source"))
)


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    """Neighbouring lanes use rows of both devices; sources may repeat."""
    target = slot_map(rng, slots=TARGET)
    source = np.where(target == 0, 0, rng.integers(1, SOURCE, LANES)).astype(np.int32)
    return normal(rng, TARGET, VALUE), normal(rng, SOURCE, VALUE), source, target


def draw_kept(rng: np.random.Generator) -> tuple[Any, ...]:
    row = rng.integers(1, SOURCE, 1).astype(np.int32)
    return normal(rng, KEPT, VALUE), normal(rng, SOURCE, VALUE), row, rng.integers(0, KEPT, 1).astype(np.int32)


def draw_restored(rng: np.random.Generator) -> tuple[Any, ...]:
    row = rng.integers(1, TARGET, 1).astype(np.int32)
    return normal(rng, TARGET, VALUE), normal(rng, KEPT, VALUE), rng.integers(0, KEPT, 1).astype(np.int32), row


def draw_advanced(rng: np.random.Generator) -> tuple[Any, ...]:
    slots = slot_map(rng, slots=SOURCE)
    lengths = np.where(slots == 0, 0, rng.integers(0, 2, LANES)).astype(np.int32)
    return normal(rng, SOURCE, VALUE), slots, normal(rng, LANES, VALUE), lengths


def here(rows: Array, pool: Array) -> Array:
    """Return a device's row numbers for rows of the whole pool; other rows are outside."""
    return rows - lax.axis_index("data") * pool.shape[0]


@jax.jit
def summed(row: Array) -> Array:
    return lax.psum(row, "data")


def gathered(pool: Array, read: Array) -> Array:
    """Rows, wherever they are; the same on all devices along `data`."""
    return summed(pool.at[here(read, pool)].get(mode="fill", fill_value=0, wrap_negative_indices=False))


def put(pool: Array, write: Array, rows: Array) -> Array:
    return pool.at[here(write, pool)].set(rows, mode="drop", wrap_negative_indices=False)


def over(local: Callable[..., Any], *specs: Any, check_vma: bool = True) -> Callable[..., Any]:
    """Run `local` on two by two devices; the last specification is for results."""

    def step(*args):
        return jax.shard_map(local, mesh=mesh(2, 2), in_specs=specs[:-1], out_specs=specs[-1], check_vma=check_vma)(
            *args
        )

    return step


def local_copy(target, source, read, write):
    return (put(target, write, gathered(source, read)),)


def local_keep(snapshots, source, read, write):
    """Keep a row whole on every device along `data`."""
    return (snapshots.at[write].set(gathered(source, read)),)


def local_restore(target, snapshots, read, write):
    return (put(target, write, snapshots[read]),)


def local_advance(pool, slots, x, lengths):
    """Every device computes all lanes; idle ones write nowhere."""
    rows = jnp.tanh(0.5 * gathered(pool, slots) + x)
    write = jnp.where(lengths > 0, slots, SOURCE)
    return lax.all_gather(rows, "model", axis=1, tiled=True, to="invarying"), put(pool, write, rows)


COPY_SPECS = (SPLIT, SPLIT, P(), P(), (SPLIT,))
KEEP_SPECS = (WHOLE, SPLIT, P(), P(), (WHOLE,))
RESTORE_SPECS = (SPLIT, WHOLE, P(), P(), (SPLIT,))
ADVANCE_SPECS = (SPLIT, P(), WHOLE, P(), (P(), SPLIT))

PROGRAMS = (
    Program("sharded rows copied", over(local_copy, *COPY_SPECS), COPY, draw),
    Program("sharded rows kept", over(local_keep, *KEEP_SPECS), KEEP, draw_kept),
    Program("sharded rows restored", over(local_restore, *RESTORE_SPECS), RESTORE, draw_restored),
    Program("sharded rows advanced", over(local_advance, *ADVANCE_SPECS), ADVANCE, draw_advanced),
)
