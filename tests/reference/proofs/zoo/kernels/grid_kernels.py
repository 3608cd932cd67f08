"""Pallas kernels for a TPU with computed grids, blocks beyond the lanes, rotated rows."""

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from zoo.kernels.read_kernels import Kernel, like
from zoo.program import LANES, SLOTS, VALUE, Program, normal, slot_map

from ir_passes import Lane, LaneContract, Pool, Shared, SlotMap

COUNTED = LaneContract((Shared(), Pool("seq"), SlotMap("seq", SLOTS), Lane()), (Pool("seq"),))
TILED = LaneContract((Lane(),), (Lane(),))
ROTATED = LaneContract((Lane(), Lane()), (Lane(),))
TPU = pltpu.CompilerParams()


def update_body(slots: Any, x: Any, pool: Any, new: Any) -> None:
    new[...] = pool[...] * 0.5 + x[...]


def _clipped(count: Array, x: Array) -> Array:
    return jnp.clip(count, 0, LANES)


def counted(
    steps: Callable[[Array, Array], Array] = _clipped, row: Callable[..., Any] | None = None, alias: bool = True
) -> Callable[..., Any]:
    """Rows of the first lanes, counted by the host."""
    row = row or (lambda lane, slots: (slots[lane], 0))

    def step(count: Array, pool: Array, slots: Array, x: Array) -> Any:
        block = pl.BlockSpec((1, VALUE), lambda lane, slots: (lane, 0))
        picked = pl.BlockSpec((1, VALUE), row)
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(steps(count, x),), in_specs=[block, picked], out_specs=picked
        )
        call = pl.pallas_call(
            update_body, grid_spec=spec, out_shape=like(pool)[0], input_output_aliases={2: 0} if alias else {},
            compiler_params=TPU, interpret=True,
        )  # fmt: skip
        return (call(slots, x, pool),)

    return step


def draw_counted(rng: np.random.Generator) -> tuple[Any, ...]:
    count = np.int32(rng.integers(0, LANES + 1))
    return count, normal(rng, SLOTS, VALUE), slot_map(rng), normal(rng, LANES, VALUE)


def norm_body(x: Any, out: Any) -> None:
    out[...] = x[...] / (1.0 + jnp.max(jnp.abs(x[...]), axis=1, keepdims=True))


def tiled(body: Kernel = norm_body, block: tuple[int, int] = (3, VALUE), width: int = VALUE) -> Callable[..., Any]:
    """Blocks of several lanes or channels; the last one reaches beyond the array."""

    def step(x: Array) -> Any:
        grid = pl.cdiv(LANES, block[0]), pl.cdiv(VALUE, block[1])
        spec = pl.BlockSpec(block, lambda rows, channels: (rows, channels))
        out = spec if width == VALUE else pl.BlockSpec((block[0], width), lambda rows, channels: (rows, 0))
        shape = like(x[:, :width])[0]
        call = pl.pallas_call(
            body, grid=grid, in_specs=[spec], out_specs=out, out_shape=shape, compiler_params=TPU, interpret=True
        )
        return (call(x),)

    return step


def draw_tiled(rng: np.random.Generator) -> tuple[Any, ...]:
    return (normal(rng, LANES, VALUE),)


def rotate_body(shifts: Any, x: Any, out: Any) -> None:
    out[...] = pltpu.roll(x[...], shifts[pl.program_id(0)], 1) + pltpu.roll(x[...], 1, 1, stride=2, stride_axis=0)


def rotated(body: Kernel = rotate_body, rows: int = 1) -> Callable[..., Any]:
    """Rows that are rotated by the number of their lane."""

    def step(shifts: Array, x: Array) -> Any:
        spec = pl.BlockSpec((rows, VALUE), lambda lane, shifts: (lane, 0))
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(LANES // rows,), in_specs=[spec], out_specs=spec
        )
        call = pl.pallas_call(body, grid_spec=grid, out_shape=like(x)[0], compiler_params=TPU, interpret=True)
        return (call(shifts, x),)

    return step


def draw_rotated(rng: np.random.Generator) -> tuple[Any, ...]:
    return rng.integers(0, VALUE, LANES).astype(np.int32), normal(rng, LANES, VALUE)


STEPS, ROWS, HALF = 5, 2, VALUE // 2
BLOCKS = LaneContract((Shared(), Shared(), Shared(), Lane(), Lane()), (Lane(),))


def is_new(blocks: Any) -> Any:
    """True in a step with another block than the step before."""
    step = pl.program_id(0)
    return (step == 0) | (blocks[step] != blocks[jnp.where(step > 0, step - 1, 0)])


def only_first(blocks: Any) -> Any:
    return pl.program_id(0) == 0


def blocks_body(
    begins: Callable[[Any], Any] = is_new,
    resets: Callable[[], Any] = lambda: pl.program_id(1) == 0,
    change: Callable[[Any], Any] = lambda total: total,
) -> Kernel:
    """Sum over both halves of a block, stored to the rows of the step."""

    def sum_body(blocks: Any, ends: Any, x: Any, old: Any, out: Any, total: Any) -> None:
        step, half = pl.program_id(0), pl.program_id(1)

        @pl.when(resets())
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        @pl.when((half == 0) & begins(blocks))
        def _() -> None:
            out[...] = old[...]

        total[...] += change(x[...]) * (step + 1).astype(jnp.float32)

        @pl.when(half == 1)
        def _() -> None:
            row = lax.broadcasted_iota(jnp.int32, (ROWS, HALF), 0) + blocks[step] * ROWS
            out[...] = jnp.where((row >= ends[step]) & (row < ends[step + 1]), total[...], out[...])

    return sum_body


def _all_clipped(count: Array, blocks: Array, x: Array) -> tuple[Array, Array]:
    return jnp.clip(count, 0, STEPS), jnp.clip(blocks, 0, LANES // ROWS - 1)


def in_blocks(
    body: Kernel | None = None,
    read: Callable[..., Any] = lambda step, half, blocks, ends: (blocks[step], half),
    written: Callable[..., Any] = lambda step, half, blocks, ends: (blocks[step], 0),
    numbers: Callable[[Array, Array, Array], tuple[Array, Array]] = _all_clipped,
    alias: bool = True,
    order: Literal["arbitrary", "parallel"] = "arbitrary",
    interpret: Any = True,
) -> Callable[..., Any]:
    """Sums of rows in the blocks that the host names; several steps in line may have one block."""

    def step(count: Array, blocks: Array, ends: Array, old: Array, x: Array) -> Any:
        count, blocks = numbers(count, blocks, x)
        spec = pl.BlockSpec((ROWS, HALF), written)
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2, grid=(count, 2), in_specs=[pl.BlockSpec((ROWS, HALF), read), spec], out_specs=spec,
            scratch_shapes=[pltpu.VMEM((ROWS, HALF), jnp.float32)],
        )  # fmt: skip
        call = pl.pallas_call(
            body or blocks_body(), grid_spec=grid, out_shape=like(old)[0], input_output_aliases={3: 0} if alias else {},
            compiler_params=pltpu.CompilerParams(dimension_semantics=(order, "arbitrary")), interpret=interpret,
        )  # fmt: skip
        return (call(blocks, ends, x, old),)

    return step


def draw_blocks(rng: np.random.Generator) -> tuple[Any, ...]:
    blocks, ends = (np.sort(rng.integers(0, size, STEPS + k)) for k, size in enumerate((LANES // ROWS, LANES + 1)))
    count = np.int32(rng.integers(1, STEPS + 1))
    return count, *(x.astype(np.int32) for x in (blocks, ends)), normal(rng, LANES, HALF), normal(rng, LANES, VALUE)


PROGRAMS = (
    Program("kernel: a computed number of steps", counted(), COUNTED, draw_counted),
    Program("kernel: blocks beyond the last lane", tiled(), TILED, draw_tiled),
    Program("kernel: rotated rows", rotated(), ROTATED, draw_rotated),
    Program("kernel: computed blocks", in_blocks(), BLOCKS, draw_blocks),
)
