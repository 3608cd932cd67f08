"""Pallas kernels without a declaration: the proof reads them. They run in interpret mode."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu
from zoo.program import CONTEXT, HEADS, KEY, LANES, SLOTS, VALUE, Program, normal, slot_map

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

Kernel = Callable[..., None]
CHUNK, CHUNKS = 2, 3
BLOCK = CONTEXT // 4
ONE = pl.Squeezed()

STATE = Pool("seq", dims=("slot", "head", "key", "value"))
BY_SLOT = LaneContract(inputs=(STATE, SlotMap("seq", SLOTS), Lane(), Lane(), Lane()), outputs=(Lane(), STATE))
IDLE = LaneContract(
    inputs=(Pool("seq"), SlotMap("seq", SLOTS), Lane(), Lane(role="length")), outputs=(Lane(), Pool("seq"))
)
PREFILL = LaneContract(inputs=(Pool("rows"), Lane()), outputs=(Lane(), Pool("rows")))
ATTEND = LaneContract(inputs=(Pool("rows"), Lane(), Lane()), outputs=(Lane(),))
TILES = LaneContract(inputs=(Lane(), Shared()), outputs=(Lane(),))
WINDOW = LaneContract(inputs=(Pool("rows"), Lane(), Shared()), outputs=(Lane(), Pool("rows")))


def like(*arrays: Array) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]


def delta_body(slots: Any, q: Any, k: Any, v: Any, pool: Any, out: Any, new: Any) -> None:
    """One token of one head: the delta rule's step, rank one."""
    state = pool[...]
    state = state + k[...][:, None] * (v[...] - jnp.sum(state * k[...][:, None], axis=0))[None]
    new[...] = state
    out[...] = jnp.sum(state * q[...][:, None], axis=0)


def by_slot(
    body: Kernel = delta_body, read: Callable[..., Any] | None = None, write: Callable[..., Any] | None = None,
    row: Callable[..., Any] | None = None, alias: bool = True, grid: tuple[int, ...] = (LANES, HEADS),
) -> Callable[..., Any]:  # fmt: skip
    """A step of a head's block for each lane, with rows picked by prefetched slots."""
    row = row or (lambda lane, head, slots: (lane, head, 0))
    read = read or (lambda lane, head, slots: (slots[lane], head, 0, 0))
    write = write or read

    def step(pool: Array, slots: Array, q: Array, k: Array, v: Array) -> Any:
        tokens = [pl.BlockSpec((ONE, ONE, array.shape[-1]), row) for array in (q, k, v)]
        block = (ONE, ONE, KEY, VALUE)
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[*tokens, pl.BlockSpec(block, read)],
            out_specs=[pl.BlockSpec((ONE, ONE, VALUE), row), pl.BlockSpec(block, write)],
        )
        aliases = {4: 1} if alias else {}
        call = pl.pallas_call(
            body, grid_spec=spec, out_shape=like(v, pool), input_output_aliases=aliases, interpret=True
        )
        return call(slots, q, k, v, pool)

    return step


def draw_by_slot(rng: np.random.Generator) -> tuple[Any, ...]:
    q, k = normal(rng, LANES, HEADS, KEY), normal(rng, LANES, HEADS, KEY)
    return normal(rng, SLOTS, HEADS, KEY, VALUE), slot_map(rng), q, k, normal(rng, LANES, HEADS, VALUE)


def own_row(slots: Any, lengths: Any, lane: Any) -> tuple[Any, Any, Any]:
    return slots[lane], slots[lane], lengths[lane]


def in_place_body(change: Any = own_row) -> Kernel:
    """A lane's row in the memory where it stands, kept if the lane is idle; `change` gives rows and length."""

    def row_body(slots: Any, lengths: Any, x: Any, pool: Any, out: Any, new: Any) -> None:
        lane = pl.program_id(0)
        read, write, length = change(slots, lengths, lane)
        target = new.at[write]
        out[...] = new.at[read][...] * x[...]

        @pl.when(length > 0)
        def _() -> None:
            target[...] = target[...] * 0.5 + x[...]

    return row_body


def in_place(body: Kernel | None = None, params: Any = None) -> Callable[..., Any]:
    """Triton's way: each lane finds its row by itself, and works in the pool's memory."""

    def step(pool: Array, slots: Array, x: Array, lengths: Array) -> Any:
        full = pl.BlockSpec(memory_space=pl.ANY)
        row = pl.BlockSpec((ONE, VALUE), lambda lane: (lane, 0))
        call = pl.pallas_call(
            body or in_place_body(),
            grid=(LANES,),
            in_specs=[full, full, row, full],
            out_specs=[row, full],
            out_shape=like(x, pool),
            input_output_aliases={3: 1},
            compiler_params=plgpu.CompilerParams() if params is None else params,
            interpret=True,
        )
        return call(slots, lengths, x, pool)

    return step


def draw_in_place(rng: np.random.Generator) -> tuple[Any, ...]:
    slots = slot_map(rng)
    lengths = np.where(slots == 0, 0, rng.integers(0, 3, LANES)).astype(np.int32)
    return normal(rng, SLOTS, VALUE), slots, normal(rng, LANES, VALUE), lengths


def prefill_body(first: Any = lambda lane, chunk: chunk == 0, last: Any = None) -> Kernel:
    """A chunk of a lane's tokens; the state waits in scratch between the first and the last one."""

    def chunk_body(x: Any, rows: Any, out: Any, end: Any, state: Any) -> None:
        @pl.when(first(pl.program_id(0), pl.program_id(1)))
        def _() -> None:
            state[...] = rows[...]

        for token in range(CHUNK):
            state[...] = state[...] * 0.9 + x[token]
            out[token] = state[...]

        @pl.when(last(x) if last else pl.program_id(1) == CHUNKS - 1)
        def _() -> None:
            end[...] = state[...]

    return chunk_body


def prefill(
    body: Kernel | None = None, read: Callable[..., Any] | None = None, lanes_inside: bool = False, **params: Any
) -> Callable[..., Any]:
    """Chunks one after the other, with the state in scratch."""

    def turned(index: Callable[..., Any]) -> Callable[..., Any]:
        return (lambda chunk, lane: index(lane, chunk)) if lanes_inside else index

    def step(rows: Array, x: Array) -> Any:
        tokens = pl.BlockSpec((ONE, CHUNK, VALUE), turned(lambda lane, chunk: (lane, chunk, 0)))
        row = pl.BlockSpec((ONE, VALUE), turned(lambda lane, chunk: (lane, 0)))
        states = pl.BlockSpec((ONE, CHUNK, VALUE), turned(read)) if read else tokens
        call = pl.pallas_call(
            body or prefill_body(),
            grid=(CHUNKS, LANES) if lanes_inside else (LANES, CHUNKS),
            in_specs=[states, row],
            out_specs=[tokens, row],
            out_shape=like(x, rows),
            scratch_shapes=[pltpu.VMEM((VALUE,), jnp.float32)],
            input_output_aliases={1: 1},
            compiler_params=pltpu.CompilerParams(**params),
            interpret=True,
        )
        return call(x, rows)

    return step


def draw_prefill(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, LANES, VALUE), normal(rng, LANES, CHUNK * CHUNKS, VALUE)


def attend_body(lengths: Any, q: Any, keys: Any, out: Any, best: Any, total: Any, mixed: Any) -> None:
    """A block of a lane's keys, also its values: running softmax."""
    lane, block = pl.program_id(0), pl.program_id(1)

    @pl.when(block == 0)
    def _() -> None:
        best[...] = jnp.full_like(best[...], -1e30)
        total[...] = jnp.zeros_like(total[...])
        mixed[...] = jnp.zeros_like(mixed[...])

    @pl.when(block * BLOCK < lengths[lane])
    def _() -> None:
        scores = jnp.sum(keys[...] * q[...][None], axis=1)
        positions = block * BLOCK + lax.broadcasted_iota(jnp.int32, (BLOCK,), 0)
        scores = jnp.where(positions < lengths[lane], scores, -1e30)
        highest = jnp.maximum(best[...], jnp.max(scores))
        weights, scale = jnp.exp(scores - highest[0]), jnp.exp(best[...] - highest)
        best[...] = highest
        total[...] = total[...] * scale + jnp.sum(weights)
        mixed[...] = mixed[...] * scale + jnp.sum(weights[:, None] * keys[...], axis=0)

    @pl.when(block == pl.num_programs(1) - 1)
    def _() -> None:
        out[...] = mixed[...] / jnp.maximum(total[...], 1e-9)


def attend(body: Kernel = attend_body, keys: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Decoding attention over the rows of a KV cache, as long as each lane is."""
    keys = keys or (lambda lane, block, lengths: (lane, block, 0))

    def step(rows: Array, q: Array, lengths: Array) -> Any:
        row = pl.BlockSpec((ONE, VALUE), lambda lane, block, lengths: (lane, 0))
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(LANES, CONTEXT // BLOCK),
            in_specs=[row, pl.BlockSpec((ONE, BLOCK, VALUE), keys)],
            out_specs=row,
            scratch_shapes=[
                pltpu.VMEM((1,), jnp.float32),
                pltpu.VMEM((1,), jnp.float32),
                pltpu.VMEM((VALUE,), jnp.float32),
            ],
        )
        params = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"))
        call = pl.pallas_call(body, grid_spec=spec, out_shape=like(q)[0], compiler_params=params, interpret=True)
        return (call(lengths, q, rows),)

    return step


def draw_attend(rng: np.random.Generator) -> tuple[Any, ...]:
    lengths = rng.permutation(np.resize([0, 1, BLOCK, CONTEXT - 1, CONTEXT], LANES)).astype(np.int32)
    return normal(rng, LANES, CONTEXT, VALUE), normal(rng, LANES, VALUE), lengths


def norm_body(x: Any, w: Any, out: Any) -> None:
    """A norm of several lanes at once."""
    out[...] = x[...] * lax.rsqrt(jnp.mean(x[...] ** 2, axis=1, keepdims=True) + 1e-6) * w[...]


def tiles(body: Kernel = norm_body, index: Callable[..., Any] | None = None, rows: int = 2) -> Callable[..., Any]:
    """Blocks of several lanes."""
    index = index or (lambda tile: (tile, 0))

    def step(x: Array, w: Array) -> Any:
        spec = pl.BlockSpec((rows, VALUE), index)
        full = pl.BlockSpec((1, VALUE), lambda tile: (0, 0))
        out = pl.BlockSpec((rows, VALUE), lambda tile: (tile, 0))
        call = pl.pallas_call(
            body,
            grid=(pl.cdiv(LANES, rows),),
            in_specs=[spec, full],
            out_specs=out,
            out_shape=like(x)[0],
            interpret=True,
        )
        return (call(x, w),)

    return step


def draw_tiles(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, LANES, VALUE), normal(rng, 1, VALUE)


def window_body(rows: Any, x: Any, taps: Any, out: Any, new: Any, full: Any) -> None:
    """A short convolution of all lanes in one step, its window put together in scratch."""
    full[:, :KEY] = rows[...]
    full[:, KEY:] = x[...][:, None]
    out[...] = jnp.sum(full[...] * taps[...][None], axis=1)
    new[...] = full[:, 1:]


def window(body: Kernel = window_body) -> Callable[..., Any]:
    """No grid: one step does everything."""

    def step(rows: Array, x: Array, taps: Array) -> Any:
        call = pl.pallas_call(
            body,
            out_shape=like(x, rows),
            scratch_shapes=[pltpu.VMEM((LANES, KEY + 1, VALUE), jnp.float32)],
            input_output_aliases={0: 1},
            interpret=True,
        )
        return call(rows, x, taps)

    return step


def draw_window(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, LANES, KEY, VALUE), normal(rng, LANES, VALUE), normal(rng, KEY + 1, VALUE)


PROGRAMS = (
    Program("kernel: rows by prefetched slots", by_slot(), BY_SLOT, draw_by_slot),
    Program("kernel: rows in place", in_place(), IDLE, draw_in_place),
    Program("kernel: chunks with a state in scratch", prefill(), PREFILL, draw_prefill),
    Program("kernel: attention as long as each lane is", attend(), ATTEND, draw_attend),
    Program("kernel: blocks of lanes", tiles(), TILES, draw_tiles),
    Program("kernel: one step for all", window(), WINDOW, draw_window),
)
