"""Pallas kernels with memory that several steps of the grid have."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu
from zoo.kernels.read_kernels import Kernel, like
from zoo.program import LANES, VALUE, Program, normal

from ir_passes import Lane, LaneContract, Shared

TRITON, TPU = plgpu.CompilerParams(), pltpu.CompilerParams()
SHARED = LaneContract((Lane(), Shared()), (Lane(), Shared()))
PLACED = LaneContract((Lane(), Shared()), (Lane(),))


def added_body(x: Any, old: Any, out: Any, block: Any) -> None:
    out[...] = x[...] + block[...]


def shared_block(
    body: Kernel = added_body, params: Any = TRITON, rows: int = 1, index: Callable[..., Any] = lambda step: (0, 0),
    spec: Any = None, scratch: tuple[Any, ...] = (),
) -> Callable[..., Any]:  # fmt: skip
    def step(x: Array, block: Array) -> Any:
        tile = pl.BlockSpec((rows, VALUE), lambda step: (step, 0))
        shared = spec or pl.BlockSpec((1, VALUE), index)
        call = pl.pallas_call(
            body, grid=(LANES // rows,), in_specs=[tile, shared], out_specs=[tile, shared], out_shape=like(x, block),
            input_output_aliases={1: 1}, scratch_shapes=scratch, compiler_params=params, interpret=True,
        )  # fmt: skip
        return call(x, block)

    return step


def draw_block(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, LANES, VALUE), normal(rng, 1, VALUE)


def placed_body(flag: Any, x: Any, out: Any, memory: Any) -> None:
    place = jnp.clip(jnp.invert(flag[0] > 0).astype(jnp.int32) + 2, 0, 3)
    memory[pl.ds(place, 1), :] = x[...]
    out[...] = memory[pl.ds(place, 1), :]


def placed(body: Kernel = placed_body) -> Callable[..., Any]:
    def step(x: Array, flag: Array) -> Any:
        row = pl.BlockSpec((1, VALUE), lambda lane: (lane, 0))
        call = pl.pallas_call(
            body, grid=(LANES,), in_specs=[pl.BlockSpec((1,), lambda lane: (0,)), row], out_specs=[row],
            out_shape=like(x), scratch_shapes=[pltpu.VMEM((4, VALUE), jnp.float32)], compiler_params=TPU,
            interpret=True,
        )  # fmt: skip
        return tuple(call(flag, x))

    return step


def draw_placed(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, LANES, VALUE), rng.integers(0, 2, 1).astype(np.int32)


PROGRAMS = (
    Program("kernel: a block that all steps read", shared_block(), SHARED, draw_block),
    Program("kernel: scratch at a computed place", placed(), PLACED, draw_placed),
)
