"""Bytes that kernels for GPUs read and write at known operands, and kernels that move more than they need."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from card_kernels import array
from jax import lax
from jax.experimental import pallas as pl

from ir_passes.kernels.blocks import Blocks
from ir_passes.kernels.reads import SEED, KernelReads, _block, _CountedMemory, _Instance, kernel_reads
from models.ops.gpu_call import gpu_call


def counted(fn: Callable[..., Any], types: tuple[Any, ...], values: tuple[Any, ...]) -> list[KernelReads]:
    """Trace a function and count the accesses of its kernels; `values` has None for each unknown operand."""
    return kernel_reads(jax.make_jaxpr(fn)(*types), values)


def counted_kernel(fn: Callable[..., Any], types: tuple[Any, ...], values: tuple[Any, ...]) -> KernelReads:
    """Count the accesses of a function's only kernel."""
    (result,) = counted(fn, types, values)
    return result


def instances(
    fn: Callable[..., Any], types: tuple[Any, ...], values: tuple[Any, ...]
) -> tuple[tuple[int, ...], Callable[[tuple[int, ...]], list[int]]]:
    """Return the grid of a function's first kernel, and the bytes that an instance loads of each operand."""
    kernel = next(eqn for eqn in jax.make_jaxpr(fn)(*types).eqns if eqn.primitive.name == "pallas_call")
    mapping, program = kernel.params["grid_mapping"], kernel.params["jaxpr"]
    blocks = [Blocks.of(block, mapping.grid) for block in mapping.block_mappings[: mapping.num_inputs]]

    def loads(ids: tuple[int, ...]) -> list[int]:
        contents = [_block(block, value, ids) for block, value in zip(blocks, values, strict=True)]
        instance = _Instance(ids, mapping.grid, True)
        results = [_CountedMemory(None, result=number) for number in range(mapping.num_outputs)]
        instance.run(program, (), [*map(_CountedMemory, range(len(blocks)), contents), *results])
        return [instance.moved.get(("load", number), 0) for number in range(len(blocks))]

    return mapping.grid, loads


EXPERTS, OUT, IN = 64, 32, 128
MATRIX = OUT * IN * 2
"""Bytes of the matrix of an expert."""


def experts(rows: int) -> tuple[Any, ...]:
    """Return types of rows, matrices and the expert of each row."""
    return array(rows, IN), array(EXPERTS, OUT, IN, dtype=jnp.bfloat16), array(rows, dtype=jnp.int32)


def assumed_choices(rows: int, choices: int) -> np.ndarray:
    """Return the experts [row, choice] that counting assumes where scores are unknown."""
    return np.argsort(np.random.default_rng(SEED).random((rows, EXPERTS)))[:, :choices]


def range_kernel(bounds: Any, expert: Any, x: Any, weight: Any, out: Any) -> None:
    """Multiply rows by every expert between the first and the last of them."""

    def meet(number: Any, total: Any) -> Any:
        product = lax.dot_general(x[...], weight[number], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        return jnp.where((expert[...] == number)[:, None], product, total)

    out[...] = lax.fori_loop(bounds[0], bounds[1] + 1, meet, jnp.zeros(out.shape, jnp.float32))


def over_a_range(x: Any, weight: Any, expert: Any) -> Any:
    """The expert product with a loop over a range, declaring the rows' experts only."""
    order = jnp.argsort(expert)
    run = gpu_call(
        range_kernel,
        (1,),
        [None] * 4,
        (None, array(x.shape[0], OUT)),
        interpret=False,
        reads={3: x.shape[0] * MATRIX},
    )
    ordered = expert[order]
    return run(jnp.stack([ordered[0], ordered[-1]]), ordered, x[order].astype(weight.dtype), weight)


def whole_context_kernel(limit: Any, key: Any, out: Any) -> None:
    """Sum a lane's keys up to its limit, in a loop over the whole context."""

    def add(block: Any, total: Any) -> Any:
        position = block * 64 + lax.broadcasted_iota(jnp.int32, (64,), 0)
        return total + jnp.where((position < limit[0])[:, None], key[pl.ds(block * 64, 64), :], 0.0)

    total = lax.fori_loop(0, key.shape[0] // 64, add, jnp.zeros((64, key.shape[1]), jnp.float32))
    out[...] = jnp.sum(total, axis=0)


def over_a_context(limit: Any, key: Any) -> Any:
    """Sum the keys [lane, position, size] of each lane up to its limit."""
    lanes, context, size = key.shape
    specs = [((1,), lambda lane: (lane,)), ((None, context, size), lambda lane: (lane, 0, 0))]
    out = (None, size), lambda lane: (lane, 0)
    return gpu_call(whole_context_kernel, (lanes,), specs, (out, array(lanes, size)), interpret=False)(limit, key)


LANES, ROWS, WIDTH = 3, 9, 64


def rows_kernel(slots: Any, state: Any, out: Any, new: Any, *, all_rows: bool) -> None:
    """Double the row of a lane in place, or all rows."""
    place = (slice(None) if all_rows else slots[pl.program_id(0)], slice(None))
    rows = state[place]
    out[...] = rows if rows.ndim == 1 else rows[0]
    new[place] = 2.0 * rows


def doubled(all_rows: bool) -> KernelReads:
    """A kernel over the rows of lanes in a pool, which declares the rows of the lanes only."""
    row = (None, WIDTH), lambda lane: (lane, 0)
    pool = array(ROWS, WIDTH)
    run = gpu_call(
        partial(rows_kernel, all_rows=all_rows),
        (LANES,),
        [None, None],
        [(row, array(LANES, WIDTH)), (None, 1)],
        interpret=False,
        reads={1: LANES * WIDTH * 4},
    )
    return counted_kernel(run, (array(LANES, dtype=jnp.int32), pool), (None, None))


def exchanged(exchange: Callable[..., Any]) -> KernelReads:
    """Count a kernel that doubles a state in place by `exchange(ref, index, value)`, which returns the old numbers."""

    def exchange_kernel(state: Any, out: Any, new: Any) -> None:
        out[...] = exchange(new, slice(None), 2.0 * state[...])

    run = gpu_call(exchange_kernel, (1,), [None], [(None, array(WIDTH)), (None, 0)], interpret=False)
    return counted_kernel(run, (array(WIDTH),), (None,))


def part_of_a_part(counts: np.ndarray) -> KernelReads:
    """Count a kernel that reads its operand as often as the second count, the first of the last ones, has it."""

    def kernel(numbers: Any, x: Any, out: Any) -> None:
        times = numbers.at[pl.ds(1, len(counts) - 1)][0]
        out[...] = lax.fori_loop(0, times, lambda _, total: total + x[...], jnp.zeros(out.shape))

    run = gpu_call(kernel, (1,), [None] * 2, [(None, array(WIDTH))], interpret=False)
    return counted_kernel(run, (array(len(counts), dtype=jnp.int32), array(WIDTH)), (counts, None))
