"""Pallas kernels that take whole arrays and index a lane in the body."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu
from zoo.kernels.read_kernels import IDLE, ONE, Kernel, draw_in_place, like, own_row
from zoo.program import CONTEXT, LANES, VALUE, Program, normal

from ir_passes import Lane, LaneContract, Pool

WHOLE = pl.BlockSpec(memory_space=pl.ANY)
BLOCK = 2
ROWS = LaneContract((Pool("rows"), Lane(), Lane(role="length")), (Lane(), Pool("rows")))
SUMS = LaneContract((Lane(), Lane()), (Lane(),))
MASKED = LaneContract((Lane(),), (Lane(),))


def rows_body(change: Any = lambda lengths, lane: (lane, lane, lane, lengths[lane])) -> Kernel:
    """A lane's row of whole arrays, by grid step, kept if it is idle; `change` gives rows and length."""

    def row_body(lengths: Any, x: Any, old: Any, out: Any, new: Any) -> None:
        lane = pl.program_id(0)
        read, output, written, length = change(lengths, lane)
        out[output] = new[read] * x[lane]

        @pl.when(length > 0)
        def _() -> None:
            new[written] = new[lane] * 0.5 + x[lane]

    return row_body


def by_row(body: Kernel | None = None, alias: bool = True, lanes: int = LANES) -> Callable[..., Any]:
    """Rows by lane as in Triton: arrays stay whole, the kernel writes its rows."""

    def step(rows: Array, x: Array, lengths: Array) -> Any:
        call = pl.pallas_call(
            body or rows_body(),
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


def copies_body(change: Any = own_row) -> Kernel:
    """Copy a lane's row to the core and back, unless it is idle; `change` gives rows and length."""

    def copy_body(slots: Any, lengths: Any, x: Any, old: Any, out: Any, new: Any, contents: Any, results: Any) -> None:
        read, written, length = change(slots, lengths, pl.program_id(0))
        copied(new.at[pl.ds(read, 1)], contents, results.at[0])
        out[...] = contents[...] * x[...]

        @pl.when(length > 0)
        def _() -> None:
            contents[...] = contents[...] * 0.5 + x[...]
            copied(contents, new.at[pl.ds(written, 1)], results.at[1])

    return copy_body


def copies(body: Kernel | None = None) -> Callable[..., Any]:
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
            body or copies_body(),
            grid_spec=spec,
            out_shape=like(x, pool),
            input_output_aliases={3: 1},
            compiler_params=pltpu.CompilerParams(),
            interpret=True,
        )
        return call(slots, lengths, x, pool)

    return step


def masked_body(stored: int = VALUE, read: int = VALUE, other: bool = True, length: int = 8) -> Kernel:
    """A softmax over a row that is shorter than the block that works on it."""

    def softmax_body(x: Any, out: Any) -> None:
        indices = jnp.arange(length)
        instead = -jnp.inf if other else None
        row = plgpu.load(x.at[indices], mask=indices < read, other=instead)
        weights = jnp.exp(row - jnp.max(row))
        plgpu.store(out.at[indices], weights / jnp.sum(weights), mask=indices < stored)

    return softmax_body


def masked(body: Kernel | None = None) -> Callable[..., Any]:
    def step(x: Array) -> Any:
        row = pl.BlockSpec((ONE, VALUE), lambda lane: (lane, 0))
        call = pl.pallas_call(
            body or masked_body(), grid=(LANES,), in_specs=[row], out_specs=row, out_shape=like(x)[0],
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
