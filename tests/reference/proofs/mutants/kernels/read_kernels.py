"""Faults inside Pallas kernels, for the proof to find."""

from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from mutants.mutant import Evidence, Kind, kernels_of, wrong
from zoo.kernels import read_kernels as zoo
from zoo.program import HEADS, KEY, LANES

SLOTS, PLACE, CHUNKS, ATTEND, TILES, WINDOW = (program.name for program in zoo.PROGRAMS)
NEXT = LANES - 1


def always(slots: Any, lengths: Any, x: Any, pool: Any, out: Any, new: Any) -> None:
    row = new.at[slots[pl.program_id(0)]]
    out[...] = row[...] * x[...]
    row[...] = row[...] * 0.5 + x[...]


def _at(change: Any) -> Any:
    return zoo.in_place(zoo.in_place_body(change))


def null_row_total(slots: Any, lengths: Any, x: Any, pool: Any, out: Any, new: Any) -> None:
    """A sum over all lanes in a row of the pool."""
    zoo.in_place_body()(slots, lengths, x, pool, out, new)
    new[1] = new[1] + x[...]


def _prefill(*conditions: Any) -> Any:
    return zoo.prefill(zoo.prefill_body(*conditions))


def lanes_inside(x: Any, rows: Any, out: Any, end: Any, state: Any) -> None:
    chunk = pl.program_id(0)

    @pl.when(chunk == 0)
    def _() -> None:
        state[...] = rows[...]

    for token in range(zoo.CHUNK):
        state[...] = state[...] * 0.9 + x[token]
        out[token] = state[...]
    end[...] = state[...]


def half_a_chunk(x: Any, rows: Any, out: Any, end: Any, state: Any) -> None:
    state[...] = rows[...]
    for token in range(zoo.CHUNK - 1):
        state[...] = state[...] * 0.9 + x[token]
        out[token] = state[...]
    end[...] = state[...]


def _attend(first: Any, length: Any, reset: tuple[str, ...] = ("best", "total", "mixed")) -> Any:
    def body(lengths: Any, q: Any, keys: Any, out: Any, best: Any, total: Any, mixed: Any) -> None:
        lane, block = pl.program_id(0), pl.program_id(1)
        scratch = {"best": best, "total": total, "mixed": mixed}

        @pl.when(first(lane, block))
        def _() -> None:
            for name in reset:
                scratch[name][...] = jnp.zeros_like(scratch[name][...])

        @pl.when(block * zoo.BLOCK < length(lengths, lane))
        def _() -> None:
            scores = jnp.sum(keys[...] * q[...][None], axis=1)
            best[...] = jnp.maximum(best[...], jnp.max(scores))
            total[...] = total[...] + jnp.sum(jnp.exp(scores))
            mixed[...] = mixed[...] + jnp.sum(jnp.exp(scores)[:, None] * keys[...], axis=0)

        @pl.when(block == pl.num_programs(1) - 1)
        def _() -> None:
            out[...] = mixed[...] / jnp.maximum(total[...], 1e-9) + best[...]

    return zoo.attend(body)


_first = lambda lane, block: block == 0
_length = lambda lengths, lane: lengths[lane]


def mean_of_a_tile(x: Any, w: Any, out: Any) -> None:
    out[...] = x[...] - jnp.mean(x[...], axis=0, keepdims=True) * w[...]


def rolled_tile(x: Any, w: Any, out: Any) -> None:
    out[0, :] = x[1, :] * w[0, :]
    out[1, :] = x[0, :] * w[0, :]


def kept_tile(x: Any, w: Any, out: Any) -> None:
    pltpu.store(out, x[...] * w[...], mask=x[...] > 0)


def rolled_window(rows: Any, x: Any, taps: Any, out: Any, new: Any, full: Any) -> None:
    full[1:, :KEY] = rows[:-1]
    full[:1, :KEY] = rows[-1:]
    full[:, KEY:] = x[...][:, None]
    out[...] = jnp.sum(full[...] * taps[...][None], axis=1)
    new[...] = full[:, 1:]


def open_window(rows: Any, x: Any, taps: Any, out: Any, new: Any, full: Any) -> None:
    full[:, :KEY] = rows[...]
    out[...] = jnp.sum(full[...] * taps[...][None], axis=1)
    new[...] = full[:, 1:]


def shared_window(rows: Any, x: Any, taps: Any, out: Any, new: Any, full: Any) -> None:
    full[:, :KEY] = rows[...]
    full[:, KEY:] = jnp.broadcast_to(x[0][None, None], (LANES, 1, x.shape[1]))
    out[...] = jnp.sum(full[...] * taps[...][None], axis=1)
    new[...] = full[:, 1:]


def summed_window(rows: Any, x: Any, taps: Any, out: Any, new: Any, full: Any) -> None:
    full[:, :KEY] = rows[...]
    full[:, KEY:] = x[...][:, None]
    out[...] = jnp.broadcast_to(jnp.sum(full[...] * taps[...][None], axis=(0, 1))[None], x.shape)
    new[...] = full[:, 1:]


def _slots(id: str, description: str, *kinds: Kind, evidence: Evidence = Evidence.LEAK, **changes: Any) -> Any:
    return wrong(SLOTS, f"kernel-{id}", "JAX", description, zoo.by_slot(**changes), *kinds, evidence=evidence)


CROSS, ROW, OPEN, BOUNDS = Kind.CROSS_LANE, Kind.WRONG_ROW, Kind.UNINITIALIZED, Kind.BOUNDS
_in_place, chunk, attention, tile, taps = map(kernels_of, (PLACE, CHUNKS, ATTEND, TILES, WINDOW))
MUTANTS = (
    _slots("slot-plus-one", "the row behind a lane's slot", BOUNDS, ROW, read=lambda i, h, s: (s[i] + 1, h, 0, 0)),
    _slots("slot-of-next", "the slot of the lane before", ROW, CROSS,
           read=lambda i, h, s: (s[(i + NEXT) % LANES], h, 0, 0)),
    _slots("slot-of-first", "one lane's slot for all", ROW, CROSS, Kind.OPAQUE, read=lambda i, h, s: (s[0], h, 0, 0)),
    _slots("slot-constant", "a row that is a constant", ROW, Kind.CONSTANT, Kind.OPAQUE,
           read=lambda i, h, s: (1, h, 0, 0)),
    _slots("row-for-slot", "the lane's number for its slot", ROW, CROSS, read=lambda i, h, s: (i, h, 0, 0)),
    _slots("tokens-of-first", "one lane's tokens for all", CROSS, ROW, Kind.OPAQUE, row=lambda i, h, s: (0, h, 0)),
    _slots("other-axis", "a block picked by the number of a head", CROSS, ROW, Kind.OPAQUE,
           row=lambda i, h, s: (h, h, 0)),
    _slots("tokens-of-next", "tokens of the lane before", CROSS, ROW, row=lambda i, h, s: ((i + NEXT) % LANES, h, 0)),
    _slots("grid-too-short", "the last lane has no step", OPEN, evidence=Evidence.FAULT, grid=(LANES - 1, HEADS)),
    _slots("not-aliased", "rows of no lane are never written", OPEN, Kind.FRAME, evidence=Evidence.FAULT, alias=False),
    _slots("written-elsewhere", "a row is written by another map than it is read", ROW, CROSS, Kind.OPAQUE,
           evidence=Evidence.FAULT, write=lambda i, h, s: (s[(i + NEXT) % LANES], h, 0, 0)),
    _in_place("idle-mask", "the store of an idle lane is not masked", zoo.in_place(always), Kind.IDLE),
    _in_place("idle-of-next", "the mask of the lane before",
              _at(lambda s, n, i: (s[i], s[i], n[(i + NEXT) % LANES])), CROSS, Kind.IDLE, ROW, Kind.CONTROL),
    _in_place("read-of-next", "the row of the lane before is read",
              _at(lambda s, n, i: (s[(i + NEXT) % LANES], s[i], n[i])), ROW, CROSS),
    _in_place("write-of-next", "the row of the lane before is written",
              _at(lambda s, n, i: (s[i], s[(i + NEXT) % LANES], n[i])), ROW, CROSS),
    _in_place("write-one", "one row is written by all", _at(lambda s, n, i: (s[i], 1, n[i])), ROW, CROSS,
              Kind.CONSTANT),
    _in_place("read-lane", "the row of the lane's number", _at(lambda s, n, i: (i, s[i], n[i])), ROW, CROSS),
    _in_place("total", "a sum over the lanes in a row", zoo.in_place(null_row_total), ROW, CROSS, Kind.CONSTANT),
    _in_place("blocks-keep-nothing", "a masked store where blocks are written as a whole",
              zoo.in_place(params=pltpu.CompilerParams()), OPEN, Kind.OPAQUE, evidence=Evidence.FAULT),
    chunk("no-reset", "scratch is never set", _prefill(lambda i, c: c < 0), OPEN, evidence=Evidence.FAULT),
    chunk("reset-for-first", "scratch is set for the first lane alone", _prefill(lambda i, c: i + c == 0),
          CROSS, OPEN),
    chunk("reset-late", "scratch is set at the second chunk", _prefill(lambda i, c: c == 1), CROSS, OPEN,
          evidence=Evidence.FAULT),
    chunk("state-by-value", "the last state is written where a value says so",
          _prefill(lambda i, c: c == 0, lambda x: x[0, 0] > 0), OPEN, Kind.CONTROL,
          evidence=Evidence.FAULT),
    chunk("chunks-side-by-side", "chunks in any order with a state in scratch",
          zoo.prefill(dimension_semantics=("parallel", "parallel")), OPEN, Kind.OPAQUE, evidence=Evidence.FAULT),
    chunk("chunks-of-next", "tokens of the lane before", zoo.prefill(read=lambda i, c: ((i + NEXT) % LANES, c, 0)),
          CROSS),
    chunk("lanes-inside", "the inner axis of the grid is the lanes", zoo.prefill(lanes_inside, lanes_inside=True),
          CROSS, OPEN, Kind.OPAQUE),
    chunk("half-written", "half of a chunk's results are never written", zoo.prefill(half_a_chunk), OPEN,
          evidence=Evidence.FAULT),
    attention("keys-of-pairs", "two lanes with one lane's keys", zoo.attend(keys=lambda i, b, n: (i // 2, b, 0)), CROSS,
              ROW),
    attention("block-beyond", "the block behind the last", zoo.attend(keys=lambda i, b, n: (i, b + 1, 0)), BOUNDS,
              evidence=Evidence.FAULT),
    attention("length-of-first", "one lane's length for all", _attend(_first, lambda n, i: n[0]), CROSS, Kind.CONTROL),
    attention("reset-once", "scratch is set for the first lane alone", _attend(lambda i, b: i + b == 0, _length), CROSS,
              OPEN),
    attention("total-not-reset", "one of three sums is not set", _attend(_first, _length, ("best", "mixed")), OPEN,
              evidence=Evidence.FAULT),
    tile("mean-of-tile", "a mean over the lanes of a block", zoo.tiles(mean_of_a_tile), CROSS),
    tile("rolled-tile", "the lanes of a block in another order", zoo.tiles(rolled_tile), CROSS),
    tile("first-tile", "one block for all", zoo.tiles(index=lambda tile: (0, 0)), CROSS),
    tile("ragged-tile", "a block that reaches beyond the last lane", zoo.tiles(rows=3), Kind.OPAQUE, OPEN,
         evidence=Evidence.FAULT),
    tile("masked-store", "a masked store into what was there", zoo.tiles(kept_tile), OPEN, Kind.OPAQUE,
         evidence=Evidence.FAULT),
    taps("rolled-window", "the window of the lane before", zoo.window(rolled_window), CROSS),
    taps("open-window", "a tap of scratch is never written", zoo.window(open_window), OPEN, evidence=Evidence.FAULT),
    taps("shared-window", "one lane's token in every window", zoo.window(shared_window), CROSS),
    taps("summed-window", "a sum over lanes", zoo.window(summed_window), CROSS),
)  # fmt: skip
