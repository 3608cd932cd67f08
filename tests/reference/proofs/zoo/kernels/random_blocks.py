"""Random kernels whose steps, and blocks of rows, are numbers that the host computes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from zoo.kernels.grid_kernels import BLOCKS, HALF, ROWS, STEPS, draw_blocks
from zoo.program import LANES, Program

from ir_passes import LaneContract

Choices = dict[str, tuple[Any, ...]]
AS_LOADED = " as loaded"
"""End of the name of a kernel that reads an operand's block as it was before the block's first step.

The plain form may have its last content instead, of the same lanes.
"""
BLOCK = LANES // ROWS - 1
"""The last block."""


class Step:
    """A step's memory and numbers."""

    def __init__(self, refs: tuple[Any, ...], first: bool):
        self.blocks, self.ends, self.x, self.old, self.out, self.total = refs
        self.step, self.half = pl.program_id(1 - first), pl.program_id(int(first))
        self.steps = pl.num_programs(1 - first)

    def previous(self) -> Any:
        return self.blocks[jnp.where(self.step > 0, self.step - 1, 0)]

    def rows(self) -> Any:
        return lax.broadcasted_iota(jnp.int32, (ROWS, HALF), 0) + self.blocks[self.step] * ROWS


AGAIN: tuple[Callable[[Step], Any], ...] = (
    lambda s: s.half == 0,
    lambda s: s.step >= 0,
    lambda s: (s.step == 0) | (s.ends[s.step] != s.ends[jnp.maximum(s.step - 1, 0)]),
)
"""Conditions under which a block is read that stays in place."""
WHEN: Choices = {
    "begins": (
        *[lambda s: (s.step == 0) | (s.blocks[s.step] != s.previous())] * 8,
        lambda s: (s.step == 0) | ~(s.previous() == s.blocks[s.step]),
        lambda s: s.blocks[s.step] != s.previous(),
        lambda s: s.step == 0,
        *AGAIN,
        lambda s: (s.step == 0) & (s.blocks[s.step] != s.previous()),
    ),
    "resets": (
        *[lambda s: s.half == 0] * 8,
        lambda s: s.half >= 0,
        lambda s: s.half == 1,
        lambda s: s.step + s.half == 0,
        lambda s: (s.half == 0) & ((s.step == 0) | (s.blocks[s.step] != s.previous())),
    ),
    "stores": (*[lambda s: s.half == 1] * 8, lambda s: s.half == 0, lambda s: s.half >= 0, lambda s: s.step > 0),
}
CHANGES: tuple[Callable[[Any], Any], ...] = (
    *[lambda x: x * 2.0] * 8, jnp.tanh, lambda x: pltpu.roll(x, 1, 0), lambda x: x - jnp.mean(x, 0, keepdims=True)
)  # fmt: skip
MASKS: tuple[Callable[[Step], Any], ...] = (
    *[lambda s: (s.rows() >= s.ends[s.step]) & (s.rows() < s.ends[s.step + 1])] * 5,
    lambda s: s.rows() >= 0,
    lambda s: s.x[...] > 0,
    lambda s: s.rows() % 2 == 0,
    lambda s: s.x[...] > jnp.max(s.x[...]) - 1.0,
)
READS: tuple[Callable[..., Any], ...] = (
    *[lambda step, blocks, ends: blocks[step]] * 10,
    lambda step, blocks, ends: blocks[step] * 1,
    lambda step, blocks, ends: step % (BLOCK + 1),
    lambda step, blocks, ends: blocks[jnp.maximum(step - 1, 0)],
    lambda step, blocks, ends: BLOCK - blocks[step],
    lambda step, blocks, ends: jnp.minimum(blocks[step], 0),
)
COUNTS: tuple[Callable[[Array, Array], Array], ...] = (
    *[lambda count, x: jnp.clip(count, 0, STEPS)] * 10,
    lambda count, x: jnp.clip(count + 1, 1, STEPS),
    lambda count, x: count,
    lambda count, x: jnp.sum(x[:, 0] > 0).astype(jnp.int32),
)
NUMBERS: tuple[Callable[[Array, Array], Array], ...] = (
    *[lambda blocks, x: jnp.clip(blocks, 0, BLOCK)] * 10,
    lambda blocks, x: jnp.clip(blocks[::-1], 0, BLOCK),
    lambda blocks, x: blocks % (BLOCK + 1),
    lambda blocks, x: blocks,
    lambda blocks, x: jnp.clip(blocks + (x[0, 0] > 0).astype(jnp.int32), 0, BLOCK),
)
ORDERS = *[("arbitrary", "arbitrary")] * 8, ("parallel", "arbitrary"), ("arbitrary", "parallel")


def random_block_kernel(seed: int, interpret: Any = True) -> Program:
    """A step of one random kernel."""
    rng = np.random.default_rng(seed)
    one_of = lambda choices: choices[rng.integers(len(choices))]
    begins, resets, stores = (one_of(choices) for choices in WHEN.values())
    change, mask, read, count_of, numbers_of, order = map(one_of, (CHANGES, MASKS, READS, COUNTS, NUMBERS, ORDERS))
    written = read if rng.random() < 0.8 else one_of(READS)
    first, alias, adds = rng.random() < 0.9, rng.random() < 0.85, rng.random() < 0.2
    by_step = lambda of: lambda *ids: of(ids[1 - first], *ids[2:])

    def body(*refs: Any) -> None:
        s = Step(refs, first)

        @pl.when(resets(s))
        def _() -> None:
            s.total[...] = jnp.zeros_like(s.total)

        @pl.when(begins(s))
        def _() -> None:
            s.out[...] = s.old[...]

        s.total[...] += change(s.x[...])

        @pl.when(stores(s))
        def _() -> None:
            s.out[...] = jnp.where(mask(s), s.total[...] + (s.out[...] if adds else 0.0), s.out[...])

    def step(count: Array, blocks: Array, ends: Array, old: Array, x: Array) -> Any:
        count, blocks = count_of(count, x), numbers_of(blocks, x)
        spec = pl.BlockSpec((ROWS, HALF), lambda *ids: (by_step(written)(*ids), 0))
        rows = pl.BlockSpec((ROWS, HALF), lambda *ids: (by_step(read)(*ids), ids[int(first)]))
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2, grid=(count, 2) if first else (2, count), in_specs=[rows, spec], out_specs=spec,
            scratch_shapes=[pltpu.VMEM((ROWS, HALF), jnp.float32)],
        )  # fmt: skip
        call = pl.pallas_call(
            body, grid_spec=grid, out_shape=jax.ShapeDtypeStruct(old.shape, old.dtype), interpret=interpret,
            input_output_aliases={3: 0} if alias else {},
            compiler_params=pltpu.CompilerParams(dimension_semantics=order),
        )  # fmt: skip
        return (call(blocks, ends, x, old),)

    contract = LaneContract(BLOCKS.inputs, BLOCKS.outputs)
    name = f"random kernel of blocks {seed}" + AS_LOADED * (alias and begins in AGAIN)
    return Program(name, step, contract, draw_blocks)
