"""GPU kernel for the grouped product of experts: tiles of sorted rows times their experts.

`expert_dot.grouped_product` defines it. There is no capacity: a tile may have rows of several experts, and takes from
each product the rows of that expert. A tile of weights, plain or codes and scales, is read once per tile of rows with a
row of its expert. Rows are read and results written at their own places. Gate and up are one matrix.
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


def expert_rows_kernel(expert: Any, order: Any, x: Any, *refs: Any, terms: int, columns: int, weight: Any) -> None:
    """Multiply some rows by some columns of their experts.

    Args:
        expert: of each row, in ascending order; the number of experts for none, int32[row].
        order: place of each row in `x` and in the result, int32[row].
        x: [place, in], in full, in the dtype of the weights.
        refs: the arrays of the weight [expert, out, in], in full; the result [place, out], in full.
        terms: multiplied at once.
        columns: of the program instance.
        weight: tree of the arrays.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    *arrays, out = refs
    experts, places, none, inputs = expert[...], order[...][:, None], arrays[0].shape[0], x.shape[1]
    first = pl.program_id(0) * columns

    def meet(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        number, total = carry

        def add(turn: Any, total: Any) -> Any:
            spans = [pl.ds(*turn_span(array.shape[2], inputs, terms, turn)) for array in arrays]
            tiles = [array[number, pl.ds(first, columns), span] for array, span in zip(arrays, spans, strict=True)]
            matrix = numbers_of(jax.tree.unflatten(weight, tiles))
            term = turn * terms + lax.broadcasted_iota(jnp.int32, (1, terms), 1)
            return total + kernel_product(x[places, term], matrix, 1)

        product = lax.fori_loop(0, inputs // terms, add, jnp.zeros(total.shape, jnp.float32))
        following = jnp.min(jnp.where(experts > number, experts, none))
        return following, jnp.where((experts == number)[:, None], product, total)

    start = jnp.min(experts), jnp.zeros((len(experts), columns), jnp.float32)
    _, total = lax.while_loop(lambda carry: carry[0] < none, meet, start)
    out[places, first + lax.broadcasted_iota(jnp.int32, (1, columns), 1)] = total


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

    count, (experts, outputs, _) = len(x), weight.shape
    rows = min(MAX_ROWS, max(MIN_ROWS, 1 << (-(-count // experts) - 1).bit_length()))
    padding = -count % rows
    tiles = (count + padding) // rows
    # The last row fills the last tile: its repetitions write the same bits to the same place.
    pairs = lax.sort((expert, jnp.arange(count, dtype=jnp.int32)), num_keys=1, is_stable=True)
    sorted_experts, order = (jnp.pad(part, (0, padding), mode="edge") for part in pairs)
    columns = _columns(outputs, tiles)
    terms = turn_terms([weight], _terms(rows + columns, jnp.dtype(weight.dtype).itemsize))
    arrays, tree = jax.tree.flatten(weight)
    reads = matrix_reads(count, rows, experts)
    sizes = [array.size * array.dtype.itemsize // experts for array in arrays]
    by_row, full_spec = pl.BlockSpec((rows,), lambda column, row: (row,)), pl.BlockSpec(memory_space=pl.ANY)
    rounded = x.astype(weight.dtype)
    return gpu_call(
        partial(expert_rows_kernel, terms=terms, columns=columns, weight=tree),
        pl.GridSpec(
            grid=(outputs // columns, tiles),
            in_specs=[by_row, by_row, full_spec, *[full_spec] * len(arrays)],
            out_specs=full_spec,
        ),
        result_like((count, outputs), jnp.float32, rounded),
        stages=STAGES,
        interpret=interpret,
        reads={3 + number: reads * size for number, size in enumerate(sizes)},
    )(sorted_experts, order, rounded, *arrays)


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
