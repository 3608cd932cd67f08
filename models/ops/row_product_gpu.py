"""A kernel for GPUs for the product of the few rows of a decode step with a weight, which is read once.

`dot` in `linear` defines it, of a packed weight that of its numbers, which are made in registers, tile by tile. Where
XLA cannot measure, it sums such a product in parts, which it writes in float32 and reads again, and it writes the
numbers of a packed weight to memory; here one program instance has some outputs of all rows. The bits of a row are the
same whatever the other rows are.
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

from models.ops.gpu_call import gpu_call
from models.ops.kernel_products import MIN_ROWS
from models.ops.kernels import Kernel, result_like
from models.ops.recurrences.chunk_decay import power_of_two
from models.ops.weight_tiles import numbers_of, turn_span, turn_terms, unsupported_weight
from models.sharding.varying import varying_like

MAX_PLAIN_ROWS = 128
"""Rows of a product with plain weights; of more, as of prompts, XLA computes the product."""


@dataclass(frozen=True)
class TileSizes:
    """Sizes of a program instance.

    Attributes:
        rows: the most; fewer are filled up to a power of two.
        columns: outputs, of which the first is taken of which there are `MIN_INSTANCES`, or the last.
        terms: the most numbers of a row that are multiplied at once.
        warps, stages: as of `gpu_call`.
    """

    rows: int
    columns: tuple[int, ...]
    terms: int
    warps: int
    stages: int


FEW = TileSizes(64, (64, 32, 16), 128, 4, 4)
"""Tiles for up to MAX_PLAIN_ROWS rows, where the time is that of reading the weight."""
MANY = TileSizes(128, (128, 64), 64, 8, 3)
"""Tiles for more rows with packed weights, which are unpacked once for each tile of rows."""
MIN_INSTANCES = 128
"""Program instances that are about as many as a GPU's processors."""


def unsupported(x: Any, weight: Any) -> str | None:
    """Say why the kernel does not take these operands, `[*rows, in]` and `[out, in]`; None if it does."""
    rows, plain = math.prod(x.shape[:-1]), isinstance(weight, jax.Array | jax.ShapeDtypeStruct)
    if plain and (rows % MIN_ROWS or rows > MAX_PLAIN_ROWS):
        return f"{rows} rows: expected multiples of {MIN_ROWS}, and at most {MAX_PLAIN_ROWS} rows, or a packed weight"
    if (why := unsupported_weight(weight)) is not None:
        return why
    return None if jnp.dtype(weight.dtype) == jnp.bfloat16 else f"a weight of {weight.dtype}: expected bfloat16"


KERNEL = Kernel("row_product_kernel", ("gpu",), unsupported)


def row_product_kernel(x: Any, *refs: Any, terms: int, weights: Any, joined: Callable[..., Array]) -> None:
    """Multiply some rows by the same rows of each weight.

    Args:
        x: [row, in].
        refs: the arrays of the weights, in full; the result [row, column], some outputs.
        terms: that are multiplied at once.
        weights: tree of the arrays, of one weight [out, in] or more.
        joined: of the products by each weight.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    *arrays, out = refs
    (count, inputs), columns = x.shape, out.shape[1]
    # outputs behind the last one are computed like the last one, and cut off
    own = pl.program_id(2) * columns + lax.broadcasted_iota(jnp.int32, (columns,), 0)
    own = jnp.minimum(own, arrays[0].shape[0] - 1)

    def add(turn: Any, totals: Any) -> Any:
        def part(array: Any) -> Array:
            first, size = turn_span(array.shape[1], inputs, terms, turn)
            return array[own[:, None], (first + lax.broadcasted_iota(jnp.int32, (size,), 0))[None]]

        rows, dims = x[:, pl.ds(turn * terms, terms)], (((1,), (1,)), ((), ()))
        matrices = map(numbers_of, jax.tree.unflatten(weights, map(part, arrays)))
        products = [lax.dot_general(rows, one, dims, preferred_element_type=jnp.float32) for one in matrices]
        return tuple(total + one for total, one in zip(totals, products, strict=True))

    none = jnp.zeros((count, columns), jnp.float32)
    totals = lax.fori_loop(0, inputs // terms, add, (none,) * len(weights.children()))
    out[...] = joined(*totals).astype(out.dtype)


def row_product(
    x: Float32[Array, "*rows in"],
    weights: Sequence[Any],
    *,
    joined: Callable[..., Array] = lambda one: one,
    dtype: Any = jnp.float32,
    interpret: bool,
) -> Float[Array, "*rows out"]:
    """Return `joined(x @ weight.T, ..)` of one weight or more, each row by itself, accumulated in float32.

    Args:
        x: rows, which are rounded to the weights' dtype. Those of the last dimension but one, as the tokens of a lane,
            are multiplied by program instances of their own, or with others that are whole, as the proof can read.
        weights: of equal shapes, bfloat16, or packed ones with such numbers.
        joined: of the products by each weight, number by number.
        dtype: that the result is rounded to.
        interpret: run by Pallas' interpreter, on any platform.
    """
    from jax.experimental import pallas as pl

    (inputs, outputs), rows = (x.shape[-1], weights[0].shape[0]), math.prod(x.shape[:-1])
    arrays, tree = jax.tree.flatten(list(weights))
    sizes = FEW if rows <= MAX_PLAIN_ROWS else MANY
    tile, terms = min(max(power_of_two(rows), MIN_ROWS), sizes.rows), turn_terms(weights, sizes.terms)
    tokens = x.shape[-2] if x.ndim > 2 and rows > tile else 1
    lanes = rows // tokens
    wide = -(-tokens // tile) * tile if tokens > tile else power_of_two(tokens)
    apart = lanes if wide > tile else 1
    more = (-lanes % max(1, tile // wide), wide - tokens)
    given = varying_like(x, arrays).astype(jnp.bfloat16).reshape((lanes, tokens, inputs))
    given = jnp.pad(given, [(0, more[0]), (0, more[1]), (0, 0)])
    lead = (apart,) if apart > 1 else ()
    given = given.reshape((*lead, -1, inputs))
    parts = given.shape[-2] // tile
    enough = (one for one in sizes.columns if apart * parts * outputs >= MIN_INSTANCES * one)
    columns = next(enough, sizes.columns[-1])
    instances = pl.cdiv(outputs, columns)

    def block(width: int, place: Callable[[Any], Any]) -> pl.BlockSpec:
        return pl.BlockSpec(
            (*(None for _ in lead), tile, width),
            lambda lane, part, column: (*(lane for _ in lead), part, place(column)),
        )

    found = gpu_call(
        partial(row_product_kernel, terms=terms, weights=tree, joined=joined),
        grid=(apart, parts, instances),
        in_specs=[block(inputs, lambda _: 0), *[pl.BlockSpec(memory_space=pl.ANY)] * len(arrays)],
        out_specs=block(columns, lambda column: column),
        out_shape=result_like((*given.shape[:-1], instances * columns), dtype, given),
        warps=sizes.warps,
        stages=sizes.stages,
        interpret=interpret,
        name=KERNEL.name,
    )(given, *arrays)
    found = found.reshape((-1, wide, instances * columns))[:lanes, :tokens, :outputs]
    return found.reshape((*x.shape[:-1], outputs))
