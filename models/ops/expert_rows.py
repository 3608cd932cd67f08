"""A kernel for the grouped product of experts: rows sorted by expert, each tile of rows times the experts it has.

`expert_dot.grouped_product` defines it. There is no capacity: the rows of an expert may begin and end inside of a tile,
which then meets two experts or more, and takes of each product the rows that are the expert's. A tile of weights is
read once for each tile of rows that has its expert, of packed weights as codes and scales. Gate and up are one matrix,
multiplied in one pass.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32, Int32

from models.ops.kernel_products import MIN_ROWS, kernel_product
from models.ops.kernels import Kernel, result_like
from models.ops.weight_tiles import numbers_of, turn_span, turn_terms, unsupported_weight

MAX_ROWS, MAX_COLUMNS, MAX_TERMS = 64, 128, 64
"""Rows and columns of one program instance, and what it multiplies at once."""


def unsupported(weight: Any) -> str | None:
    """Say why the kernel does not take these weights, `[expert, out, in]`; None if it does."""
    if any(size % MIN_ROWS for size in weight.shape[1:]):
        return f"matrices of {weight.shape[1:]}: expected multiples of {MIN_ROWS}"
    return unsupported_weight(weight)


KERNEL = Kernel("expert_rows_kernel", ("gpu",), unsupported)


def expert_rows_kernel(expert: Any, x: Any, *refs: Any, terms: int, weight: Any) -> None:
    """Multiply some rows by some columns of their experts.

    Args:
        expert: of each row, in order; the number of experts for none, int32[row].
        x: [row, in], in the dtype of the weights.
        refs: the arrays of the weight [expert, out, in], in full; the result [row, column], some of its columns.
        terms: that are multiplied at once.
        weight: tree of the arrays.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    *arrays, out = refs
    own, last, inputs = expert[...], arrays[0].shape[0] - 1, x.shape[1]
    columns = pl.ds(pl.program_id(0) * out.shape[1], out.shape[1])

    def meet(index: Any, found: Any) -> Any:
        # the bounds say nothing that the loop does not: they are what the proof could read
        number = jnp.clip(index, 0, last)

        def add(turn: Any, total: Any) -> Any:
            spans = [pl.ds(*turn_span(array.shape[2], inputs, terms, turn)) for array in arrays]
            tiles = [array[number, columns, span] for array, span in zip(arrays, spans, strict=True)]
            matrix = numbers_of(jax.tree.unflatten(weight, tiles))
            return total + kernel_product(x[:, pl.ds(turn * terms, terms)], matrix, 1)

        product = lax.fori_loop(0, inputs // terms, add, jnp.zeros(out.shape, jnp.float32))
        return jnp.where((own == number)[:, None], product, found)

    first, end = jnp.min(own), jnp.minimum(jnp.max(own), last) + 1
    out[...] = lax.fori_loop(first, end, meet, jnp.zeros(out.shape, jnp.float32))


def expert_rows(
    x: Float32[Array, "row in"], weight: Any, expert: Int32[Array, "row"], *, interpret: bool
) -> Float32[Array, "row out"]:
    """Multiply each row by the matrix of its expert; rows are rounded to the dtype of the weights.

    Args:
        x: rows, in any order.
        weight: one matrix `[out, in]` for each expert, plain or packed.
        expert: of each row; the number of experts for none, whose result is zero.
        interpret: run by Pallas' interpreter, on any platform.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    (count, inputs), (experts, outputs, _) = x.shape, weight.shape
    order = jnp.argsort(expert, stable=True)
    rows = min(MAX_ROWS, max(MIN_ROWS, 1 << (-(-count // experts) - 1).bit_length()))
    more = -count % rows
    own = jnp.pad(expert[order], (0, more), constant_values=experts)
    sorted_rows = jnp.pad(x[order].astype(weight.dtype), [(0, more), (0, 0)])
    columns, terms = _divisor(outputs, MAX_COLUMNS), turn_terms([weight], MAX_TERMS)
    arrays, tree = jax.tree.flatten(weight)
    found = pl.pallas_call(
        partial(expert_rows_kernel, terms=terms, weight=tree),
        grid=(outputs // columns, (count + more) // rows),
        in_specs=[
            pl.BlockSpec((rows,), lambda column, row: (row,)),
            pl.BlockSpec((rows, inputs), lambda column, row: (row, 0)),
            *[pl.BlockSpec(memory_space=pl.ANY)] * len(arrays),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda column, row: (row, column)),
        out_shape=result_like((count + more, outputs), jnp.float32, sorted_rows),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
        name=KERNEL.name,
    )(own, sorted_rows, *arrays)
    return found[jnp.argsort(order)]


def _divisor(size: int, most: int) -> int:
    """Return the largest power of two that divides a size, up to `most`."""
    return min(size & -size, most)
