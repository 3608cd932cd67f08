"""GPU kernel: product of few rows with a weight, read once.

`dot` in `linear` defines it; packed weights are unpacked in registers; XLA writes them to memory. A program instance
has some outputs of all rows. A row's bits do not depend on other rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Float32

from models.ops.gpu_call import gpu_call, has_group_products, shared_memory
from models.ops.kernel_products import MIN_ROWS
from models.ops.kernels import Kernel
from models.ops.recurrences.chunk_decay import power_of_two
from models.ops.weight_tiles import numbers_of, supports_weight, turn_span, turn_terms
from models.sharding.devices import result_like, varying_like

MAX_PLAIN_ROWS = 128
"""Maximum rows with plain weights; XLA computes more."""


@dataclass(frozen=True)
class TileSizes:
    """Sizes of a program instance.

    Attributes:
        rows: maximum; fewer are padded to a power of two.
        columns: candidates for the outputs: the first with `MIN_INSTANCES` instances, else the last.
        terms: maximum numbers of a row in one iteration.
    """

    rows: int
    columns: tuple[int, ...]
    terms: int
    warps: int
    stages: int


FEW = TileSizes(64, (64, 32, 16), 128, 4, 4)
"""Tiles for up to MAX_PLAIN_ROWS rows, bound by the read of the weight."""
MANY = TileSizes(128, (128, 64), 64, 8, 3)
"""Tiles for more rows with packed weights, unpacked once for each tile of rows."""
MIN_INSTANCES = 128
"""Program instances, about a GPU's processors."""
SHARED_SPARE = 2048
"""Bytes of shared memory for exchanges between threads."""
MAX_SUMS, MAX_WARP_SUMS = 1 << 13, 1 << 10
"""Sums of an instance without `has_group_products`, and of a warp with unpacked weights: more spill up to 940 bytes."""


def supports(x: Any, weight: Any) -> bool:
    is_plain = isinstance(weight, jax.Array | jax.ShapeDtypeStruct)
    if is_plain and math.prod(x.shape[:-1]) > MAX_PLAIN_ROWS:
        return False
    return supports_weight(weight) and jnp.dtype(weight.dtype) == jnp.bfloat16


KERNEL = Kernel("row_product_kernel", "gpu", supports)


def load_stages(sizes: TileSizes, iteration: int) -> int:
    """Return the stages that the card's shared memory holds, with all loads but one ahead.

    Args:
        iteration: bytes that one iteration loads.
    """
    fitting = (
        stages for stages in range(sizes.stages, 1, -1) if (stages - 1) * iteration + SHARED_SPARE <= shared_memory()
    )
    return next(fitting, 1)


def row_product_kernel(x: Any, *refs: Any, terms: int, weights: Any, vectors: int, joined: Callable[..., Any]) -> None:
    """Multiply some rows by the same rows of each weight.

    Args:
        x: [row, in].
        refs: the arrays of the weights and the vectors [out], in full; the results [row, column], some outputs.
        joined: as for `joined_linear`.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    count = weights.num_leaves
    arrays, of_outputs, outs = refs[:count], refs[count : count + vectors], refs[count + vectors :]
    (count, inputs), columns = x.shape, outs[0].shape[1]
    # Padding outputs repeat the last output and are cut off.
    output = pl.program_id(2) * columns + lax.broadcasted_iota(jnp.int32, (columns,), 0)
    output = jnp.minimum(output, arrays[0].shape[0] - 1)

    def repeated(rows: Array) -> Array:
        if count >= MIN_ROWS:
            return rows
        repeats = (count, MIN_ROWS // count, rows.shape[1])
        return jnp.broadcast_to(rows[:, None], repeats).reshape((MIN_ROWS, rows.shape[1]))

    def add(turn: Any, totals: Any) -> Any:
        def part(array: Any) -> Array:
            first, size = turn_span(array.shape[1], inputs, terms, turn)
            return array[output[:, None], (first + lax.broadcasted_iota(jnp.int32, (size,), 0))[None]]

        rows, dims = repeated(x[:, pl.ds(turn * terms, terms)].astype(jnp.bfloat16)), (((1,), (1,)), ((), ()))
        matrices = map(numbers_of, jax.tree.unflatten(weights, map(part, arrays)))
        products = [lax.dot_general(rows, matrix, dims, preferred_element_type=jnp.float32) for matrix in matrices]
        return tuple(total + product for total, product in zip(totals, products, strict=True))

    zeros = jnp.zeros((max(count, MIN_ROWS), columns), jnp.float32)
    totals = lax.fori_loop(0, inputs // terms, add, (zeros,) * len(weights.children()))
    results = joined(*totals, *(vector[output][None] for vector in of_outputs))
    for out, result in zip(outs, jax.tree.leaves(results), strict=True):
        rows = result.astype(out.dtype)
        # The maximum of equal results is one of them.
        out[...] = rows if count >= MIN_ROWS else jnp.max(rows.reshape((count, -1, columns)), axis=1)


def row_product(
    x: Float[Array, "*rows in"],
    weights: Sequence[Any],
    vectors: Sequence[Float32[Array, "out"]] = (),
    *,
    joined: Callable[..., Any] = lambda product: product,
    dtype: Any = jnp.float32,
    interpret: bool,
) -> Any:
    """Return `joined(x @ weight.T, .., vector, ..)`, each row by itself, accumulated in float32.

    Args:
        x: rounded to the weights' dtype. A lane's rows (the last dimension but one) share an instance only with whole
            lanes, for the proof.
        joined: as for `joined_linear`.
    """
    (inputs, outputs), rows = (x.shape[-1], weights[0].shape[0]), math.prod(x.shape[:-1])
    arrays, tree = jax.tree.flatten(list(weights))
    sizes = FEW if rows <= MAX_PLAIN_ROWS else MANY
    tile, terms = min(power_of_two(rows), sizes.rows), turn_terms(weights, sizes.terms)
    tokens = x.shape[-2] if x.ndim > 2 and rows > tile else 1
    lanes = rows // tokens
    wide = -(-tokens // tile) * tile if tokens > tile else power_of_two(tokens)
    groups = lanes if wide > tile else 1
    # Few rows are rounded in the kernel, without an operation; many rows are read by many instances.
    rounded = x if rows <= MAX_PLAIN_ROWS else x.astype(jnp.bfloat16)
    padded = varying_like(rounded, arrays).reshape((lanes, tokens, inputs))
    padded = jnp.pad(padded, [(0, -lanes % max(1, tile // wide)), (0, wide - tokens), (0, 0)])
    lead = (groups,) if groups > 1 else ()
    padded = padded.reshape((*lead, -1, inputs))
    parts = padded.shape[-2] // tile
    widths = sizes.columns
    if not has_group_products():
        sums = MAX_SUMS if len(arrays) == len(weights) else MAX_WARP_SUMS * sizes.warps
        limit = sums // (tile * power_of_two(len(weights)))
        widths = tuple(width for width in widths if width <= limit) or (limit,)
    candidates = (width for width in widths if groups * parts * outputs >= MIN_INSTANCES * width)
    columns = next(candidates, widths[-1])
    instances = -(-outputs // columns)
    loaded = [columns * turn_span(array.shape[1], inputs, terms, 0)[1] * array.dtype.itemsize for array in arrays]
    iteration = tile * terms * padded.dtype.itemsize + sum(loaded)

    def block(width: int, place: Callable[[Any], Any]) -> Any:
        shape = *(None for _ in lead), tile, width
        return shape, lambda lane, part, column: (*(lane for _ in lead), part, place(column))

    types = [jax.ShapeDtypeStruct((1, 1), jnp.float32)] * (len(weights) + len(vectors))
    results = jax.tree.structure(jax.eval_shape(joined, *types))
    products = gpu_call(
        partial(row_product_kernel, terms=terms, weights=tree, vectors=len(vectors), joined=joined),
        (groups, parts, instances),
        [block(inputs, lambda _: 0), *[None] * (len(arrays) + len(vectors))],
        [(block(columns, lambda column: column), result_like((*padded.shape[:-1], instances * columns), dtype, padded))]
        * results.num_leaves,
        warps=sizes.warps,
        stages=load_stages(sizes, iteration),
        interpret=interpret,
    )(padded, *arrays, *vectors)

    def of_rows(y: Array) -> Array:
        y = y.reshape((-1, wide, instances * columns))[:lanes, :tokens, :outputs]
        return y.reshape((*x.shape[:-1], outputs))

    return jax.tree.unflatten(results, map(of_rows, products))
