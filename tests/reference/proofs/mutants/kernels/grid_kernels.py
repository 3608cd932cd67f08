"""Faults in Pallas kernels: computed grids, blocks beyond lanes, rotated rows."""

from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from mutants.mutant import Evidence, Kind, kernels_of
from zoo.kernels import grid_kernels as zoo
from zoo.program import LANES

COUNTED, TILED, ROTATED, BLOCKS = (program.name for program in zoo.PROGRAMS)
CROSS, ROW, OPEN, BOUNDS = Kind.CROSS_LANE, Kind.WRONG_ROW, Kind.UNINITIALIZED, Kind.BOUNDS


def positive(count: Any, x: Any) -> Any:
    return jnp.sum(x[:, 0] > 0).astype(jnp.int32)


def mean_of_a_block(x: Any, out: Any) -> None:
    out[...] = x[...] - jnp.mean(x[...], axis=0, keepdims=True)


def rolled_block(x: Any, out: Any) -> None:
    out[...] = pltpu.roll(x[...], 1, 0)


def sum_of_channels(x: Any, out: Any) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        out[...] = jnp.zeros_like(out)

    out[...] += jnp.sum(x[...], axis=1, keepdims=True)


def by_next(shifts: Any, x: Any, out: Any) -> None:
    out[...] = pltpu.roll(x[...], shifts[(pl.program_id(0) + 1) % LANES], 1)


def across(shifts: Any, x: Any, out: Any) -> None:
    out[...] = pltpu.roll(x[...], 1, 0)


def by_stride(shifts: Any, x: Any, out: Any) -> None:
    out[...] = pltpu.roll(x[...], 1, 0, stride=1, stride_axis=1)


def is_other_than_next(blocks: Any) -> Any:
    step = pl.program_id(0)
    return (step == 0) | (blocks[step] != blocks[jnp.minimum(step + 1, zoo.STEPS - 1)])


def by_lanes(count: Any, blocks: Any, x: Any) -> Any:
    return jnp.clip(count, 0, zoo.STEPS), jnp.sort((x[0, : zoo.STEPS] > 0).astype(jnp.int32))


def as_many_as_lanes(count: Any, blocks: Any, x: Any) -> Any:
    return positive(count, x), jnp.clip(blocks, 0, 1)


def any_count(count: Any, blocks: Any, x: Any) -> Any:
    return count, jnp.clip(blocks, 0, 1)


def any_block(count: Any, blocks: Any, x: Any) -> Any:
    return jnp.clip(count, 0, zoo.STEPS), blocks


counted, tiled, rotated, in_blocks = map(kernels_of, (COUNTED, TILED, ROTATED, BLOCKS))
FAULT = Evidence.FAULT
ON_TPU = pltpu.InterpretParams()
"""A new block begins with the rows of the block before, as on the device."""
NEXT_ROW = zoo.counted(row=lambda lane, slots: (slots[(lane + 1) % LANES], 0))
UNBOUNDED = zoo.counted(lambda count, x: count)
MUTANTS = (
    counted("grid-of-values", "as many steps as lanes have a positive value", zoo.counted(positive), CROSS, BOUNDS),
    counted("grid-next-row", "the row of the next lane", NEXT_ROW, CROSS, ROW),
    counted("grid-unbounded", "more steps than there are lanes", UNBOUNDED, BOUNDS, evidence=FAULT),
    counted("grid-not-aliased", "rows of other lanes are not written", zoo.counted(alias=False), OPEN, Kind.FRAME,
            evidence=FAULT),
    tiled("ragged-mean", "a mean over a block of lanes", zoo.tiled(mean_of_a_block), CROSS),
    tiled("ragged-rolled", "lanes of a block in another order", zoo.tiled(rolled_block), CROSS),
    tiled("ragged-sum", "a sum of channels and of the memory behind them",
          zoo.tiled(sum_of_channels, (1, 4), width=1), OPEN, evidence=FAULT),
    rotated("roll-by-next", "the number of the next lane", zoo.rotated(by_next), CROSS),
    rotated("roll-lanes", "rotated lanes", zoo.rotated(across, rows=2), CROSS),
    rotated("roll-lanes-by-stride", "each channel of the lanes rotated by another number",
            zoo.rotated(by_stride, rows=2), CROSS),
    in_blocks("blocks-by-step", "rows by the number of the step",
              zoo.in_blocks(read=lambda step, half, blocks, ends: (step % 2, half)), CROSS),
    in_blocks("blocks-of-next", "rows of the block of the next step",
              zoo.in_blocks(read=lambda step, half, blocks, ends: (blocks[(step + 1) % zoo.STEPS], half)), CROSS),
    in_blocks("blocks-to-other", "rows stored to the other block",
              zoo.in_blocks(written=lambda step, half, blocks, ends: (1 - blocks[step], 0)), CROSS),
    in_blocks("blocks-total-kept", "the total of the step before",
              zoo.in_blocks(zoo.blocks_body(resets=lambda: pl.program_id(0) + pl.program_id(1) == 0)), OPEN),
    in_blocks("blocks-rolled", "rows of a block in another order",
              zoo.in_blocks(zoo.blocks_body(change=lambda x: pltpu.roll(x, 1, 0))), CROSS),
    in_blocks("blocks-by-values", "blocks that depend on a lane", zoo.in_blocks(numbers=by_lanes), CROSS),
    in_blocks("blocks-of-values", "as many steps as lanes have a positive value",
              zoo.in_blocks(numbers=as_many_as_lanes), CROSS, BOUNDS),
    in_blocks("blocks-begun-once", "old rows for the first block alone",
              zoo.in_blocks(zoo.blocks_body(zoo.only_first), interpret=ON_TPU), OPEN),
    in_blocks("blocks-begun-late", "old rows for a block that the next step leaves",
              zoo.in_blocks(zoo.blocks_body(is_other_than_next), interpret=ON_TPU), OPEN),
    in_blocks("blocks-in-parallel", "steps that share a block in any order", zoo.in_blocks(order="parallel"),
              OPEN, evidence=FAULT),
    in_blocks("blocks-not-aliased", "blocks that no step names are not written", zoo.in_blocks(alias=False),
              OPEN, evidence=FAULT),
    in_blocks("blocks-uncounted", "more steps than numbers of blocks", zoo.in_blocks(numbers=any_count), BOUNDS,
              evidence=FAULT),
    in_blocks("blocks-anywhere", "blocks beyond the array", zoo.in_blocks(numbers=any_block), BOUNDS, evidence=FAULT),
)  # fmt: skip
