"""GPU kernel for the grouped product of experts: tiles of sorted rows times their experts.

`expert_dot.grouped_product` defines it. There is no capacity: a tile may have rows of several experts, and takes from
each product the rows of that expert. A tile of weights, plain or codes and scales, is read once per tile of rows with a
row of its expert. The experts of each tile are listed outside the kernel. Gate and up are one matrix.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32, Int32

from models.ops.gpu_call import gpu_call, shared_memory
from models.ops.kernel_products import MIN_ROWS, kernel_product
from models.ops.kernels import Kernel, result_like
from models.ops.weight_tiles import numbers_of, turn_span, turn_terms, unsupported_weight

MAX_ROWS, MAX_COLUMNS, MAX_TERMS = 64, 128, 64
"""Rows and columns of one program instance, and the terms of one iteration."""
STAGES = 3
"""Iterations with operands loaded ahead."""
MIN_INSTANCES = 128
"""Program instances, about as many as a GPU's processors."""


def unsupported(weight: Any) -> str | None:
    """Return the reason to reject weights `[expert, out, in]`, or None."""
    if any(size % MIN_ROWS for size in weight.shape[1:]):
        return f"matrices of {weight.shape[1:]}: expected multiples of {MIN_ROWS}"
    return unsupported_weight(weight)


KERNEL = Kernel("expert_rows_kernel", ("gpu",), unsupported)


def expert_rows_kernel(members: Any, count: Any, expert: Any, x: Any, *refs: Any, terms: int, weight: Any) -> None:
    """Multiply some rows by some columns of their experts.

    Args:
        members: distinct experts of the rows, in the first places, int32[row].
        count: number of these experts, int32[1].
        expert: of each row; the number of experts for none, int32[row].
        x: [row, in], in the dtype of the weights.
        refs: the arrays of the weight [expert, out, in], in full; the result [row, column], some of its columns.
        terms: multiplied at once.
        weight: tree of the arrays.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    *arrays, out = refs
    experts, last, inputs = expert[...], arrays[0].shape[0] - 1, x.shape[1]
    columns = pl.ds(pl.program_id(0) * out.shape[1], out.shape[1])

    def meet(index: Any, total: Any) -> Any:
        number = jnp.clip(members[index], 0, last)

        def add(turn: Any, total: Any) -> Any:
            spans = [pl.ds(*turn_span(array.shape[2], inputs, terms, turn)) for array in arrays]
            tiles = [array[number, columns, span] for array, span in zip(arrays, spans, strict=True)]
            matrix = numbers_of(jax.tree.unflatten(weight, tiles))
            return total + kernel_product(x[:, pl.ds(turn * terms, terms)], matrix, 1)

        product = lax.fori_loop(0, inputs // terms, add, jnp.zeros(out.shape, jnp.float32))
        return jnp.where((experts == number)[:, None], product, total)

    out[...] = lax.fori_loop(0, count[0], meet, jnp.zeros(out.shape, jnp.float32))


def tile_members(
    expert: Int32[Array, "tile row"], experts: int
) -> tuple[Int32[Array, "tile row"], Int32[Array, "tile"]]:
    """Return the distinct experts of each tile, and their number.

    Args:
        expert: of each row, in ascending order; the number of experts for none.
        experts: number of experts.

    Returns:
        Experts in the first places of each tile, the number of experts in the others; experts of each tile.
    """
    previous = jnp.pad(expert[:, :-1], [(0, 0), (1, 0)], constant_values=-1)
    members = jnp.where(expert != previous, expert, experts)
    return jnp.sort(members, axis=1), jnp.sum(members < experts, axis=1, dtype=jnp.int32)


def matrix_reads(rows: int, tile: int, experts: int) -> int:
    """Return the maximum number of matrix reads of all tiles together.

    Args:
        rows: of all experts, sorted by expert.
        tile: rows of a tile.
        experts: number of experts.
    """
    return min(rows, experts + -(-rows // tile) - 1)


def expert_rows(
    x: Float32[Array, "row in"], weight: Any, expert: Int32[Array, "row"], *, interpret: bool
) -> Float32[Array, "row out"]:
    """Multiply each row by its expert's matrix.

    Args:
        x: rows, in any order; they are rounded to the dtype of the weights.
        weight: one matrix `[out, in]` for each expert, plain or packed.
        expert: of each row; the number of experts for none, with result zero.
        interpret: run by Pallas' interpreter, on any platform.
    """
    from jax.experimental import pallas as pl

    (count, inputs), (experts, outputs, _) = x.shape, weight.shape
    order = jnp.argsort(expert, stable=True)
    rows = min(MAX_ROWS, max(MIN_ROWS, 1 << (-(-count // experts) - 1).bit_length()))
    padding = -count % rows
    tiles = (count + padding) // rows
    sorted_experts = jnp.pad(expert[order], (0, padding), constant_values=experts)
    members, member_counts = tile_members(sorted_experts.reshape((tiles, rows)), experts)
    sorted_rows = jnp.pad(x[order].astype(weight.dtype), [(0, padding), (0, 0)])
    columns = _columns(outputs, tiles)
    terms = turn_terms([weight], _terms(rows + columns, jnp.dtype(weight.dtype).itemsize))
    arrays, tree = jax.tree.flatten(weight)
    reads = matrix_reads(count, rows, experts)
    sizes = [array.size * array.dtype.itemsize // experts for array in arrays]
    by_row = pl.BlockSpec((rows,), lambda column, row: (row,))
    product = gpu_call(
        partial(expert_rows_kernel, terms=terms, weight=tree),
        pl.GridSpec(
            grid=(outputs // columns, tiles),
            in_specs=[
                by_row,
                pl.BlockSpec((1,), lambda column, row: (row,)),
                by_row,
                pl.BlockSpec((rows, inputs), lambda column, row: (row, 0)),
                *[pl.BlockSpec(memory_space=pl.ANY)] * len(arrays),
            ],
            out_specs=pl.BlockSpec((rows, columns), lambda column, row: (row, column)),
        ),
        result_like((count + padding, outputs), jnp.float32, sorted_rows),
        stages=STAGES,
        interpret=interpret,
        reads={4 + number: reads * size for number, size in enumerate(sizes)},
    )(members.reshape(-1), member_counts, sorted_experts, sorted_rows, *arrays)
    return product[jnp.argsort(order)]


def _terms(width: int, itemsize: int) -> int:
    """Return the most terms of an iteration with operands that fit into shared memory.

    Args:
        width: rows and columns of a program instance.
        itemsize: bytes of a number; a float32 takes three more numbers of bfloat16.
    """
    each = width * (STAGES * itemsize + (6 if itemsize == 4 else 0))
    return next((size for size in (MAX_TERMS, MAX_TERMS // 2) if each * size <= shared_memory()), MIN_ROWS)


def _columns(outputs: int, tiles: int) -> int:
    """Return the columns of a program instance: the most with `MIN_INSTANCES` instances, or the fewest."""
    sizes = [MAX_COLUMNS >> k for k in range((MAX_COLUMNS // MIN_ROWS).bit_length())]
    sizes = [size for size in sizes if outputs % size == 0]
    return next((size for size in sizes if outputs // size * tiles >= MIN_INSTANCES), sizes[-1])
