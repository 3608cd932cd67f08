"""GPU kernel for the grouped product of experts: rows of one expert times its matrix.

`expert_dot.grouped_product` defines it. Rows are sorted by expert; a program instance has the experts that begin in its
segment, and multiplies tiles of twice the mean number of rows. A matrix is read once per tile. Gate and up are one
matrix: the kernel also applies SwiGLU.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32, Int32

from models.ops.float32 import silu_gated
from models.ops.gpu_call import gpu_call, has_group_products, load_if, shared_memory, store_if
from models.ops.kernel_products import MIN_ROWS, kernel_product
from models.ops.kernels import Kernel
from models.ops.weight_tiles import numbers_of, supports_weight, turn_span, turn_terms
from models.sharding.devices import result_like

MAX_ROWS, MAX_COLUMNS, MAX_TERMS = 128, 128, 64
"""Rows and columns of one product, and the terms of one iteration."""
STAGES = 3
"""Iterations with operands loaded ahead."""
MAX_ROUNDED_ROWS = 1024
"""Maximum rows rounded in the kernel; more are read by many instances."""
MIN_INSTANCES = 128
"""Program instances, about a GPU's processors."""
SEGMENTS = 2
"""Segments of sorted rows per expert, for equal work."""
MAX_WARP_NUMBERS = 1 << 13
"""Results of one product that four warps hold in registers."""


def supports(weight: Any, gated: bool = False) -> bool:
    _, outputs, inputs = weight.shape
    return not outputs % (MIN_ROWS * (1 + gated)) and not inputs % MIN_ROWS and supports_weight(weight)


KERNEL = Kernel("expert_rows_kernel", "gpu", supports)


def expert_rows_kernel(*refs: Any, segment: int, rows: int, columns: int, terms: int, weight: Any) -> None:
    """Multiply the rows of a segment's experts by some columns of their matrices.

    Args:
        refs: in full: ascending experts, int32[row], the number of experts for no expert; place of each row in the
            result, int32[row]; x [place // choices, in], in the dtype of the weights, or float32; the weight's arrays
            [expert, out, in], or [expert, gate and out, in]; the result [place, out], zero for rows without an expert;
            perhaps with further places.
        segment: sorted rows of experts that begin in it.
        rows, columns: size of one product.
        terms: terms that one iteration sums.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    expert, order, x, *arrays, out = refs
    count, none, inputs = order.shape[0], arrays[0].shape[0], x.shape[1]
    choices, gated = count // x.shape[0], arrays[0].shape[1] > out.shape[1]
    first = pl.program_id(1) * columns
    column = first + lax.broadcasted_iota(jnp.int32, (1, columns), 1)
    starts = (first, first + out.shape[1]) if gated else (first,)
    start = pl.program_id(0) * segment
    # The last segment begins earlier and skips rows of the previous one.
    position = jnp.minimum(start, count - segment) + lax.broadcasted_iota(jnp.int32, (segment,), 0)
    experts, previous = expert[position], expert[jnp.maximum(position - 1, 0)]
    leaders = jnp.where(((experts != previous) | (position == 0)) & (position >= start), experts, none)
    without = ((experts == none) & (position >= start))[:, None]
    store_if(without, out.at[order[position][:, None], column], jnp.zeros((segment, columns), jnp.float32))

    def meet(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        number, start = carry
        # The last tile begins earlier and skips rows of other tiles: places of a tile differ.
        place = jnp.minimum(start, max(0, count - rows)) + lax.broadcasted_iota(jnp.int32, (rows,), 0)
        row = jnp.minimum(place, count - 1)
        of_expert = ((expert[row] == number) & (place >= start) & (place < count))[:, None]
        target = jnp.where(place < count, order[row], place)[:, None]
        source = target if choices == 1 else lax.div(target, jnp.full(target.shape, choices, jnp.int32))

        def add(turn: Any, totals: Any) -> Any:
            spans = [pl.ds(*turn_span(array.shape[2], inputs, terms, turn)) for array in arrays]
            term = turn * terms + lax.broadcasted_iota(jnp.int32, (1, terms), 1)
            terms_of_rows, products = load_if(of_expert, x.at[source, term]), []
            for begin in starts:
                tiles = [array[number, pl.ds(begin, columns), span] for array, span in zip(arrays, spans, strict=True)]
                matrix = numbers_of(jax.tree.unflatten(weight, tiles))
                products.append(kernel_product(terms_of_rows.astype(matrix.dtype), matrix, 1))
            return tuple(total + product for total, product in zip(totals, products, strict=True))

        zeros = tuple(jnp.zeros((rows, columns), jnp.float32) for _ in starts)
        totals = lax.fori_loop(0, inputs // terms, add, zeros)
        store_if(of_expert, out.at[target, column], silu_gated(*totals) if gated else totals[0])
        end = start + rows
        continues = (expert[jnp.minimum(end, count - 1)] == number) & (end < count)
        following = jnp.min(jnp.where(leaders > number, leaders, none))
        leader = jnp.min(jnp.where(leaders == following, position, count))
        return jnp.where(continues, number, following), jnp.where(continues, end, leader)

    number = jnp.min(leaders)
    leader = jnp.min(jnp.where(leaders == number, position, count))
    lax.while_loop(lambda carry: carry[0] < none, meet, (number, leader))


def tile_rows(count: int, experts: int) -> int:
    """Return a tile's rows: twice an expert's mean rows, as a power of two."""
    return min(MAX_ROWS, max(MIN_ROWS, 1 << (-(-2 * count // experts) - 1).bit_length()))


def matrix_reads(count: int, rows: int, experts: int) -> int:
    """Return the maximum of matrix reads by all tiles of `rows` rows."""
    chosen = min(count, experts)
    return chosen + (count - chosen) // rows


def expert_rows(
    x: Float32[Array, "row in"],
    weight: Any,
    expert: Int32[Array, "row *choice"],
    gated: bool,
    *,
    interpret: bool,
) -> Float32[Array, "row *choice result"]:
    """Multiply rows by their experts' matrices; arguments as for `expert_dot`."""
    count, experts = expert.size, weight.shape[0]
    outputs = weight.shape[1] // (1 + gated)
    rows = tile_rows(count, experts)
    segment = 1 << max(0, (count // (SEGMENTS * experts)).bit_length() - 1)
    pairs = lax.sort((expert.reshape(-1), jnp.arange(count, dtype=jnp.int32)), num_keys=1, is_stable=True)
    # The interpreter stores the old numbers at masked places: places of a tile have to differ.
    places = max(count, rows) if interpret else count
    widest = MAX_COLUMNS // (1 + gated)
    arrays, tree = jax.tree.flatten(weight)
    plain = len(arrays) == 1 and weight.dtype != jnp.float32
    if rows == MAX_ROWS and not has_group_products() and (gated or not plain):
        widest //= 2  # otherwise packed or float32 weights spill up to 1,032 bytes of a thread
    columns = _columns(outputs, min(count, experts), widest)
    terms = turn_terms([weight], _terms(rows + (1 + gated) * columns, jnp.dtype(weight.dtype).itemsize))
    reads = matrix_reads(count, rows, experts)
    sizes = [array.size * array.dtype.itemsize // experts for array in arrays]
    rounded = x if count <= MAX_ROUNDED_ROWS else x.astype(weight.dtype)
    product = gpu_call(
        partial(expert_rows_kernel, segment=segment, rows=rows, columns=columns, terms=terms, weight=tree),
        (-(-count // segment), outputs // columns),
        [None] * (3 + len(arrays)),
        (None, result_like((places, outputs), jnp.float32, rounded)),
        warps=8 if rows * columns * (1 + gated) > MAX_WARP_NUMBERS // (1 if has_group_products() else 2) else 4,
        stages=STAGES,
        interpret=interpret,
        reads={3 + number: reads * size for number, size in enumerate(sizes)},
    )(*pairs, rounded, *arrays)
    return product[:count].reshape((*expert.shape, outputs))


def _terms(width: int, itemsize: int) -> int:
    """Return the most terms of an iteration within shared memory.

    A float32 takes three more numbers of bfloat16; `width` counts rows and columns.
    """
    each = width * (STAGES * itemsize + (6 if itemsize == 4 else 0))
    return next((size for size in (MAX_TERMS, MAX_TERMS // 2) if each * size <= shared_memory()), MIN_ROWS)


def _columns(outputs: int, chosen: int, limit: int) -> int:
    """Return an instance's columns for `chosen` experts: the most with `MIN_INSTANCES` instances, or the fewest."""
    sizes = [limit >> k for k in range((limit // MIN_ROWS).bit_length())]
    sizes = [size for size in sizes if outputs % size == 0]
    return next((size for size in sizes if outputs // size * chosen >= MIN_INSTANCES), sizes[-1])
