"""Faults in Pallas kernels that index whole arrays in the body."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu
from mutants.mutant import Evidence, Kind, kernels_of
from zoo.kernels import whole_kernels as zoo
from zoo.program import CONTEXT, LANES, VALUE

ROWS, COPIES, MASKED, TURNS = (program.name for program in zoo.PROGRAMS)


_next = lambda lane: (lane + 1) % LANES
_bounded = lambda blocks: jnp.minimum(blocks, CONTEXT // zoo.BLOCK)


def _rows(change: Any) -> Any:
    return zoo.by_row(zoo.rows_body(change))


def _copies(change: Any) -> Any:
    return zoo.copies(zoo.copies_body(change))


def _masked(stored: int, **changes: Any) -> Any:
    return zoo.masked(zoo.masked_body(stored, **changes))


def parts_of_two(lengths: Any, x: Any, old: Any, out: Any, new: Any) -> None:
    first = pl.program_id(0) * 2
    rows = pl.ds(first, 2)
    out[rows] = new[rows] - jnp.mean(x[rows], axis=0, keepdims=True)


def always(slots: Any, lengths: Any, x: Any, old: Any, out: Any, new: Any, contents: Any, results: Any) -> None:
    row = new.at[pl.ds(slots[pl.program_id(0)], 1)]
    zoo.copied(row, contents, results.at[0])
    out[...] = contents[...] * x[...]
    contents[...] = contents[...] * 0.5 + x[...]
    zoo.copied(contents, row, results.at[1])


def read_too_early(slots: Any, lengths: Any, x: Any, old: Any, out: Any, new: Any, contents: Any, results: Any) -> None:
    copy = pltpu.make_async_copy(new.at[pl.ds(slots[pl.program_id(0)], 1)], contents, results.at[0])
    copy.start()
    out[...] = contents[...] * x[...]
    copy.wait()


def never_waited(slots: Any, lengths: Any, x: Any, old: Any, out: Any, new: Any, contents: Any, results: Any) -> None:
    row = new.at[pl.ds(slots[pl.program_id(0)], 1)]
    zoo.copied(row, contents, results.at[0])
    out[...] = contents[...] * x[...]
    pltpu.make_async_copy(contents, row, results.at[1]).start()


def another_copy(slots: Any, lengths: Any, x: Any, old: Any, out: Any, new: Any, contents: Any, results: Any) -> None:
    row = new.at[pl.ds(slots[pl.program_id(0)], 1)]
    zoo.copied(row, contents, results.at[0])
    out[...] = contents[...] * x[...]
    pltpu.make_async_copy(contents, row, results.at[1]).start()
    pltpu.make_async_copy(contents, row, results.at[0]).wait()


def from_scratch(slots: Any, lengths: Any, x: Any, old: Any, out: Any, new: Any, contents: Any, results: Any) -> None:
    out[...] = contents[...] * x[...]
    contents[...] = x[...]


def through_an_operand(lengths: Any, x: Any, old: Any, out: Any, new: Any) -> None:
    lane = pl.program_id(0)
    out[lane] = new[lane] * x[lane]
    x[_next(lane)] = x[lane]


def through_a_scalar(slots: Any, lengths: Any, x: Any, old: Any, out: Any, new: Any, full: Any, results: Any) -> None:
    lane = pl.program_id(0)
    zoo.copies_body()(slots, lengths, x, old, out, new, full, results)
    lengths[_next(lane)] = (x[0, 0] > 0).astype(jnp.int32)


def written_twice(x: Any, out: Any) -> None:
    plgpu.store(out.at[jnp.arange(8)], jnp.zeros(8))
    zoo.masked_body()(x, out)


def between_masks(load: int, moved: int) -> Any:
    """Return a kernel that multiplies the elements of a masked load, moves them, and stores a whole row."""

    def body(x: Any, out: Any) -> None:
        indices = jnp.arange(8)
        row = plgpu.load(x.at[indices], mask=indices < load) * 2.0
        plgpu.store(out.at[indices], jnp.roll(row, moved) if moved else row, mask=indices < VALUE)

    return zoo.masked(body)


def _turns(end: Any, begin: int = 0, length: Any = None) -> Any:
    def body(lengths: Any, keys: Any, out: Any) -> None:
        actual = lengths[pl.program_id(0) if length is None else length(pl.program_id(0))]
        block = lambda number, total: total + jnp.sum(keys[pl.ds(number * zoo.BLOCK, zoo.BLOCK)], axis=0)
        blocks = lax.div(actual + zoo.BLOCK - 1, zoo.BLOCK)
        out[...] = lax.fori_loop(begin, end(blocks), block, jnp.zeros(VALUE))

    return zoo.turns(body)


CROSS, ROW, OPEN, BOUNDS, OPAQUE = Kind.CROSS_LANE, Kind.WRONG_ROW, Kind.UNINITIALIZED, Kind.BOUNDS, Kind.OPAQUE
LEAK, FAULT, TRACED = Evidence.LEAK, Evidence.FAULT, Evidence.TRACED


rows, copies, masked, turns = map(kernels_of, (ROWS, COPIES, MASKED, TURNS))
MUTANTS = (
    rows("whole-read-next", "a row of the next lane is read", _rows(lambda n, i: (_next(i), i, i, n[i])), CROSS, ROW),
    rows("whole-write-next", "the next lane's row is written", _rows(lambda n, i: (i, i, _next(i), n[i])), CROSS, ROW),
    rows("whole-shown-next", "a result in the next place", _rows(lambda n, i: (i, _next(i), i, n[i])), CROSS, OPEN),
    rows("whole-first", "all show in the first lane's place", _rows(lambda n, i: (i, 0, i, n[i])), CROSS, OPEN,
         evidence=FAULT),
    rows("whole-idle-next", "the mask of the next lane", _rows(lambda n, i: (i, i, i, n[_next(i)])), CROSS, ROW,
         Kind.IDLE, Kind.CONTROL),
    rows("whole-not-aliased", "idle rows are never written", zoo.by_row(alias=False), OPEN, evidence=FAULT),
    rows("whole-too-short", "the last lane has no step", zoo.by_row(lanes=LANES - 1), OPEN, OPAQUE, CROSS,
         evidence=FAULT),
    rows("whole-pairs", "a mean over the two lanes of a part", zoo.by_row(parts_of_two, lanes=LANES // 2), CROSS),
    rows("whole-operand", "an operand is written", zoo.by_row(through_an_operand), OPAQUE, evidence=FAULT),
    copies("copy-scalar", "a prefetched scalar is written", zoo.copies(through_a_scalar), OPAQUE, evidence=FAULT),
    copies("copy-of-next", "the next lane's row is copied", _copies(lambda s, n, i: (s[_next(i)], s[i], n[i])), CROSS,
           ROW),
    copies("copy-to-next", "a row goes back to the next lane's", _copies(lambda s, n, i: (s[i], s[_next(i)], n[i])),
           CROSS, ROW),
    copies("copy-by-lane", "the lane's number for its slot", _copies(lambda s, n, i: (i, s[i], n[i])), CROSS, ROW),
    copies("copy-plus-one", "the row behind a lane's slot", _copies(lambda s, n, i: (s[i] + 1, s[i], n[i])), BOUNDS,
           ROW),
    copies("copy-idle", "the row of an idle lane goes back changed", zoo.copies(always), Kind.IDLE),
    copies("copy-too-early", "a row is used while it comes", zoo.copies(read_too_early), OPAQUE, evidence=TRACED),
    copies("copy-not-waited", "nobody waits for a row to go back", zoo.copies(never_waited), OPAQUE, evidence=TRACED),
    copies("copy-other-semaphore", "a wait for another copy", zoo.copies(another_copy), OPAQUE, evidence=TRACED),
    copies("copy-forgotten", "no row comes to the core", zoo.copies(from_scratch), OPEN, CROSS),
    masked("mask-short", "the last place is never written", _masked(VALUE - 1), OPEN, evidence=FAULT),
    masked("mask-beyond", "a store beyond the row", _masked(VALUE + 1), OPAQUE, BOUNDS, evidence=TRACED),
    masked("mask-reads-beyond", "a load beyond the row", _masked(VALUE, read=VALUE + 1), OPAQUE, BOUNDS,
           evidence=TRACED),
    masked("mask-twice", "a store beyond the row, before the right one", zoo.masked(written_twice), OPAQUE, BOUNDS,
           evidence=TRACED),
    masked("mask-no-other", "what a mask leaves out is used", _masked(VALUE, other=False), OPEN, evidence=FAULT),
    masked("mask-wider", "a store of more elements than the load has", between_masks(VALUE - 1, 0), OPEN,
           evidence=FAULT),
    masked("mask-moved", "an element behind the mask moves before it", between_masks(VALUE, 1), OPEN, evidence=FAULT),
    turns("turns-unbounded", "as many turns as the length says", _turns(lambda blocks: blocks), BOUNDS, evidence=FAULT),
    turns("turns-one-more", "a turn more than there are blocks", _turns(lambda blocks: _bounded(blocks) + 1), BOUNDS,
          evidence=FAULT),
    turns("turns-before", "a turn before the first block", _turns(_bounded, begin=-1), BOUNDS, evidence=FAULT),
    turns("turns-of-next", "the next lane's length", _turns(_bounded, length=_next), CROSS, Kind.CONTROL),
)  # fmt: skip
