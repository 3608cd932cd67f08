"""Races of kernels for shared memory; interpret mode runs steps in order."""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from mutants.mutant import Evidence, Kind, kernels_of
from zoo.kernels import shared_blocks as zoo
from zoo.program import LANES, VALUE, normal

from ir_passes import Lane, LaneContract

READ, PLACED = (program.name for program in zoo.PROGRAMS)
CROSS, OPEN, OPAQUE = Kind.CROSS_LANE, Kind.UNINITIALIZED, Kind.OPAQUE


def passed_on(x: Any, old: Any, out: Any, block: Any) -> None:
    block[...] = x[...]
    out[...] = block[...]
    block[...] = jnp.zeros_like(x)


def stored_by_the_first(x: Any, old: Any, out: Any, block: Any) -> None:
    out[...] = x[...]
    block[...] = jnp.zeros_like(block)

    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        block[...] = x[:1]


def read_before_the_last(x: Any, old: Any, out: Any, block: Any) -> None:
    out[...] = jnp.broadcast_to(block[...], x.shape)

    @pl.when(pl.program_id(0) == LANES // 2 - 1)
    def _() -> None:
        block[...] = x[:1]


def copied_on(x: Any, old: Any, out: Any, block: Any, semaphore: Any) -> None:
    for source, target in ((x, block), (block, out)):
        copy = pltpu.make_async_copy(source, target, semaphore)
        copy.start()
        copy.wait()


def turned(x: Any, old: Any, out: Any, block: Any) -> None:
    block[...] = x[...][::-1]
    out[...] = old[...]
    block[...] = jnp.zeros_like(x)


def read_back(x: Any, old: Any, out: Any, block: Any) -> None:
    """Threads read rows that others have not stored yet."""
    block[...] = jnp.zeros_like(x)
    out[...] = block[...][::-1]
    block[...] = x[...]


def loaded_before(x: Any, old: Any, out: Any, block: Any) -> None:
    """On a TPU the second step has the block from before the first store."""
    out[...] = jnp.zeros_like(x)

    @pl.when(pl.program_id(0) == 1)
    def _() -> None:
        out[...] = old[...]

    block[...] = jnp.zeros_like(block)


def first_lanes(x: Array, block: Array) -> Any:
    both = pl.BlockSpec((2, VALUE), lambda step: (step * 0, 0))
    out, _ = zoo.shared_block(loaded_before, zoo.TPU, rows=2, spec=both)(x, x[:2])
    return out, block


def of_the_inverted_number(flag: Any, x: Any, out: Any, memory: Any) -> None:
    """Written at 2 + (not flag), read at 2 + ~flag."""
    flag = flag[0] > 0
    written, read = (jnp.clip(n.astype(jnp.int32) + 2, 0, 3) for n in (~flag, ~flag.astype(jnp.int32)))
    memory[pl.ds(written, 1), :] = x[...]
    out[...] = memory[pl.ds(read, 1), :]


PARALLEL = pltpu.CompilerParams(dimension_semantics=("parallel",))
ANY = pl.BlockSpec(memory_space=pl.ANY)
ROWS = pl.BlockSpec((2, VALUE), lambda step: (step, 0))
DRAW_ROWS = lambda rng: (normal(rng, LANES, VALUE), normal(rng, LANES, VALUE))
OF_LANES = LaneContract((Lane(), Lane()), (Lane(), Lane()))
TILES = {"index": lambda step: (step // 2, 0), "draw": lambda rng: (normal(rng, LANES, VALUE), normal(rng, 2, VALUE))}
read, placed = map(kernels_of, (READ, PLACED))
TRACED = {"evidence": Evidence.TRACED}
MUTANTS = (
    read("passed-on", "values of a lane in a block that parallel steps share", zoo.shared_block(passed_on), CROSS,
         **TRACED),
    read("passed-on-by-pairs", "values of a lane in a block of two parallel steps",
         zoo.shared_block(passed_on, index=TILES["index"]), CROSS, draw=TILES["draw"], **TRACED),
    read("stored-by-one", "one of the parallel steps stores its lane", zoo.shared_block(stored_by_the_first, rows=2),
         CROSS, **TRACED),
    read("read-before", "a block that a later step stores to", zoo.shared_block(read_before_the_last, rows=2), CROSS,
         **TRACED),
    read("copied-on", "copies to device memory by parallel steps",
         zoo.shared_block(copied_on, PARALLEL, spec=ANY, scratch=(pltpu.SemaphoreType.DMA,)), CROSS, **TRACED),
    read("in-place-or-not", "an operand read after its memory may be written",
         zoo.shared_block(turned, None, rows=2, spec=ROWS), OPAQUE, draw=DRAW_ROWS, **TRACED),
    read("read-back", "memory read in another order after a store to it",
         zoo.shared_block(read_back, rows=2, spec=ROWS), CROSS, contract=OF_LANES, draw=DRAW_ROWS, **TRACED),
    read("loaded-before", "an operand's block from before a store", first_lanes, CROSS, **TRACED),
    placed("inverted-number", "scratch at another place than written", zoo.placed(of_the_inverted_number), OPEN,
           evidence=Evidence.FAULT),
)  # fmt: skip
