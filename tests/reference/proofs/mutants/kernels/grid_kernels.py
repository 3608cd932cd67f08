"""Faults in Pallas kernels: computed grids, blocks beyond lanes, rotated rows."""

from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from mutants.mutant import Evidence, Kind, kernels_of
from zoo.kernels import grid_kernels as zoo
from zoo.program import LANES

COUNTED, TILED, ROTATED = (program.name for program in zoo.PROGRAMS)
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


counted, tiled, rotated = map(kernels_of, (COUNTED, TILED, ROTATED))
FAULT = Evidence.FAULT
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
)  # fmt: skip
