"""GPU kernel for the grouped product of experts: tiles of sorted rows times their experts.

`expert_dot.grouped_product` defines it. There is no capacity: a tile may have rows of several experts, and takes from
each product the rows of that expert. A tile of weights, plain or codes and scales, is read once per tile of rows with a
row of its expert. Rows are read and results written at their own places, and a row with several experts is read at one
place. Gate and up are one matrix, and one kernel multiplies both and applies SwiGLU.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32, Int32

from models.ops.float32 import silu_gated
from models.ops.gpu_call import gpu_call, shared_memory
from models.ops.kernel_products import MIN_ROWS, kernel_product
from models.ops.kernels import Kernel, result_like
from models.ops.weight_tiles import numbers_of, turn_span, turn_terms, unsupported_weight

MAX_ROWS, MAX_COLUMNS, MAX_TERMS = 64, 128, 64
"""Rows and columns of one program instance, and the terms of one iteration."""
STAGES = 3
"""Iterations with operands loaded ahead."""
MAX_ROUNDED_ROWS = 1024
"""Maximum rows that are rounded in the kernel, without an operation for it; more are read by many instances."""
MIN_INSTANCES = 128
"""Program instances, about as many as a GPU's processors."""


def unsupported(weight: Any, gated: bool = False) -> str | None:
    """Return the reason to reject weights `[expert, out, in]`, or None."""
    if any(size % MIN_ROWS for size in weight.shape[1:]) or (gated and weight.shape[1] % (2 * MIN_ROWS)):
        return f"matrices of {weight.shape[1:]}: expected multiples of {MIN_ROWS}, for gate and up each"
    return unsupported_weight(weight)


KERNEL = Kernel("expert_rows_kernel", ("gpu",), unsupported)


def expert_rows_kernel(
    expert: Any, order: Any, x: Any, *refs: Any, terms: int, columns: int, choices: int, gated: bool, weight: Any
) -> None:
    """Multiply some rows by some columns of their experts.

    Args:
        expert: of each row, in ascending order; the number of experts for none, int32[row].
        order: place of each row in the result, int32[row].
        x: [place // choices, in], in full, in the dtype of the weights, or float32.
        refs: the arrays of the weight [expert, out, in], in full; the result [place, out], in full.
        terms: multiplied at once.
        columns: of the program instance.
        choices: adjacent places with one row of x.
        gated: the outputs of a weight are gates, then as many up projections; the result is SwiGLU of both.
        weight: tree of the arrays.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    *arrays, out = refs
    experts, places, none, inputs = expert[...], order[...][:, None], arrays[0].shape[0], x.shape[1]
    sources = places if choices == 1 else lax.div(places, jnp.full(places.shape, choices, jnp.int32))
    first = pl.program_id(0) * columns
    starts = (first, first + out.shape[1]) if gated else (first,)

    def meet(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        number, totals = carry

        def add(turn: Any, totals: Any) -> Any:
            spans = [pl.ds(*turn_span(array.shape[2], inputs, terms, turn)) for array in arrays]
            term = turn * terms + lax.broadcasted_iota(jnp.int32, (1, terms), 1)
            rows, products = x[sources, term], []
            for start in starts:
                tiles = [array[number, pl.ds(start, columns), span] for array, span in zip(arrays, spans, strict=True)]
                matrix = numbers_of(jax.tree.unflatten(weight, tiles))
                products.append(kernel_product(rows.astype(matrix.dtype), matrix, 1))
            return tuple(total + product for total, product in zip(totals, products, strict=True))

        zeros = tuple(jnp.zeros(total.shape, jnp.float32) for total in totals)
        sums = lax.fori_loop(0, inputs // terms, add, zeros)
        following = jnp.min(jnp.where(experts > number, experts, none))
        of_expert = (experts == number)[:, None]
        return following, tuple(jnp.where(of_expert, *pair) for pair in zip(sums, totals, strict=True))

    start = jnp.min(experts), tuple(jnp.zeros((len(experts), columns), jnp.float32) for _ in starts)
    _, totals = lax.while_loop(lambda carry: carry[0] < none, meet, start)
    result = silu_gated(*totals) if gated else totals[0]
    out[places, first + lax.broadcasted_iota(jnp.int32, (1, columns), 1)] = result


def matrix_reads(rows: int, tile: int, experts: int) -> int:
    """Return the maximum number of matrix reads of all tiles together.

    Args:
        rows: of all experts, sorted by expert.
        tile: rows of a tile.
        experts: number of experts.
    """
    return min(rows, experts + -(-rows // tile) - 1)


def expert_rows(
    x: Float32[Array, "row in"], weight: Any, expert: Int32[Array, "row *choice"], gated: bool, *, interpret: bool
) -> Float32[Array, "row *choice result"]:
    """Multiply each row by the matrix of its expert, or of each of its experts.

    Args:
        x: rows, in any order; they are rounded to the dtype of the weights.
        weight: one matrix `[out, in]` for each expert, plain or packed.
        expert: of each row; the number of experts for none, with result zero.
        gated: the first half of the outputs are gates of the second half; return SwiGLU of both.
        interpret: run by Pallas' interpreter, on any platform.
    """
    from jax.experimental import pallas as pl

    count, experts = expert.size, weight.shape[0]
    choices, outputs = count // len(x), weight.shape[1] // (1 + gated)
    rows = min(MAX_ROWS, max(MIN_ROWS, 1 << (-(-count // experts) - 1).bit_length()))
    padding = -count % rows
    tiles = (count + padding) // rows
    # The last row fills the last tile: its repetitions write the same bits to the same place.
    pairs = lax.sort((expert.reshape(-1), jnp.arange(count, dtype=jnp.int32)), num_keys=1, is_stable=True)
    sorted_experts, order = (jnp.pad(part, (0, padding), mode="edge") for part in pairs)
    columns = _columns(outputs, tiles, MAX_COLUMNS // (1 + gated))
    terms = turn_terms([weight], _terms(rows + (1 + gated) * columns, jnp.dtype(weight.dtype).itemsize))
    arrays, tree = jax.tree.flatten(weight)
    reads = matrix_reads(count, rows, experts)
    sizes = [array.size * array.dtype.itemsize // experts for array in arrays]
    by_row, full_spec = pl.BlockSpec((rows,), lambda column, row: (row,)), pl.BlockSpec(memory_space=pl.ANY)
    rounded = x if count <= MAX_ROUNDED_ROWS else x.astype(weight.dtype)
    product = gpu_call(
        partial(expert_rows_kernel, terms=terms, columns=columns, choices=choices, gated=gated, weight=tree),
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
    return product.reshape((*expert.shape, outputs))


def _terms(width: int, itemsize: int) -> int:
    """Return the most terms of an iteration with operands that fit into shared memory.

    Args:
        width: rows and columns of a program instance.
        itemsize: bytes of a number; a float32 takes three more numbers of bfloat16.
    """
    each = width * (STAGES * itemsize + (6 if itemsize == 4 else 0))
    return next((size for size in (MAX_TERMS, MAX_TERMS // 2) if each * size <= shared_memory()), MIN_ROWS)


def _columns(outputs: int, tiles: int, limit: int) -> int:
    """Return the columns of a program instance: the most with `MIN_INSTANCES` instances, or the fewest."""
    sizes = [limit >> k for k in range((limit // MIN_ROWS).bit_length())]
    sizes = [size for size in sizes if outputs % size == 0]
    return next((size for size in sizes if outputs // size * tiles >= MIN_INSTANCES), sizes[-1])
