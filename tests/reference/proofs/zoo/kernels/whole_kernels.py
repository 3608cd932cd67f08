"""Pallas kernels that take whole arrays and index a lane in the body."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu
from zoo.kernels.read_kernels import IDLE, ONE, Kernel, draw_in_place, like
from zoo.program import CONTEXT, LANES, VALUE, Program, normal

from ir_passes import Lane, LaneContract, Pool

WHOLE = pl.BlockSpec(memory_space=pl.ANY)
BLOCK = 2
ROWS = LaneContract((Pool("rows"), Lane(), Lane(role="length")), (Lane(), Pool("rows")))
SUMS = LaneContract((Lane(), Lane()), (Lane(),))
MASKED = LaneContract((Lane(),), (Lane(),))


def rows_body(lengths: Any, x: Any, old: Any, out: Any, new: Any) -> None:
    """A lane's row of whole arrays, by grid step; an idle lane's row stays."""
    lane = pl.program_id(0)
    out[lane] = new[lane] * x[lane]

    @pl.when(lengths[lane] > 0)
    def _() -> None:
        new[lane] = new[lane] * 0.5 + x[lane]


def by_row(body: Kernel = rows_body, alias: bool = True, lanes: int = LANES) -> Callable[..., Any]:
    """Rows by lane as in Triton: arrays stay whole, the kernel writes its rows."""

    def step(rows: Array, x: Array, lengths: Array) -> Any:
        call = pl.pallas_call(
            body,
            grid=(lanes,),
            in_specs=[WHOLE] * 3,
            out_specs=[WHOLE] * 2,
            out_shape=like(x, rows),
            input_output_aliases={2: 1} if alias else {},
            compiler_params=plgpu.CompilerParams(),
            interpret=True,
        )
        return call(lengths, x, rows)

    return step


def draw_by_row(rng: np.random.Generator) -> tuple[Any, ...]:
    lengths = rng.permutation(np.resize([0, 1, 2], LANES)).astype(np.int32)
    return normal(rng, LANES, VALUE), normal(rng, LANES, VALUE), lengths


def copied(source: Any, target: Any, semaphore: Any) -> None:
    copy = pltpu.make_async_copy(source, target, semaphore)
    copy.start()
    copy.wait()


def copies_body(slots: Any, lengths: Any, x: Any, old: Any, out: Any, new: Any, buffer: Any, signals: Any) -> None:
    """Copy a lane's row to the core and back; keep an idle lane's row."""
    lane = pl.program_id(0)
    row = new.at[pl.ds(slots[lane], 1)]
    copied(row, buffer, signals.at[0])
    out[...] = buffer[...] * x[...]

    @pl.when(lengths[lane] > 0)
    def _() -> None:
        buffer[...] = buffer[...] * 0.5 + x[...]
        copied(buffer, row, signals.at[1])


def copies(body: Kernel = copies_body) -> Callable[..., Any]:
    """A TPU's way: the pool stays in the device's memory."""

    def step(pool: Array, slots: Array, x: Array, lengths: Array) -> Any:
        row = pl.BlockSpec((1, VALUE), lambda lane, *_: (lane, 0))
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(LANES,),
            in_specs=[row, WHOLE],
            out_specs=[row, WHOLE],
            scratch_shapes=[pltpu.VMEM((1, VALUE), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
        )
        call = pl.pallas_call(
            body,
            grid_spec=spec,
            out_shape=like(x, pool),
            input_output_aliases={3: 1},
            compiler_params=pltpu.CompilerParams(),
            interpret=True,
        )
        return call(slots, lengths, x, pool)

    return step


def masked_body(x: Any, out: Any) -> None:
    """A softmax over a row that is shorter than the block that works on it."""
    columns = jnp.arange(8)
    mask = columns < VALUE
    row = plgpu.load(x.at[columns], mask=mask, other=-jnp.inf)
    weights = jnp.exp(row - jnp.max(row))
    plgpu.store(out.at[columns], weights / jnp.sum(weights), mask=mask)


def masked(body: Kernel = masked_body) -> Callable[..., Any]:
    def step(x: Array) -> Any:
        row = pl.BlockSpec((ONE, VALUE), lambda lane: (lane, 0))
        call = pl.pallas_call(
            body, grid=(LANES,), in_specs=[row], out_specs=row, out_shape=like(x)[0],
            compiler_params=plgpu.CompilerParams(), interpret=True,
        )  # fmt: skip
        return (call(x),)

    return step


def draw_masked(rng: np.random.Generator) -> tuple[Any, ...]:
    return (normal(rng, LANES, VALUE),)


def turns_body(lengths: Any, keys: Any, out: Any) -> None:
    """A loop over blocks of a lane's keys with one turn per block."""
    length = lengths[pl.program_id(0)]
    blocks = jnp.minimum(lax.div(length + BLOCK - 1, BLOCK), CONTEXT // BLOCK)

    def block(number: Any, total: Any) -> Any:
        positions = number * BLOCK + lax.broadcasted_iota(jnp.int32, (BLOCK, VALUE), 0)
        return total + jnp.sum(jnp.where(positions < length, keys[pl.ds(number * BLOCK, BLOCK)], 0.0), axis=0)

    out[...] = lax.fori_loop(0, blocks, block, jnp.zeros(VALUE))


def turns(body: Kernel = turns_body) -> Callable[..., Any]:
    def step(keys: Array, lengths: Array) -> Any:
        call = pl.pallas_call(
            body,
            grid=(LANES,),
            in_specs=[WHOLE, pl.BlockSpec((ONE, CONTEXT, VALUE), lambda lane: (lane, 0, 0))],
            out_specs=pl.BlockSpec((ONE, VALUE), lambda lane: (lane, 0)),
            out_shape=like(keys[:, 0])[0],
            compiler_params=plgpu.CompilerParams(),
            interpret=True,
        )
        return (call(lengths, keys),)

    return step


def draw_turns(rng: np.random.Generator) -> tuple[Any, ...]:
    lengths = rng.permutation(np.resize([0, 1, BLOCK + 1, CONTEXT], LANES)).astype(np.int32)
    return normal(rng, LANES, CONTEXT, VALUE), lengths


PROGRAMS = (
    Program("kernel: rows of whole arrays", by_row(), ROWS, draw_by_row),
    Program("kernel: rows by copies", copies(), IDLE, draw_in_place),
    Program("kernel: a masked block", masked(), MASKED, draw_masked),
    Program("kernel: turns by length", turns(), SUMS, draw_turns),
)
