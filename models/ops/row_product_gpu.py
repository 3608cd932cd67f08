"""A kernel for GPUs for the product of the few rows of a decode step with a plain weight, which is read once.

`dot` in `linear` defines it. Where XLA cannot measure, it sums such a product in parts, which it writes in float32 and
reads again; here one program instance has some outputs of all rows. The bits of a row are the same whatever the other
rows are.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Float32

from models.ops.kernel_products import MIN_ROWS
from models.ops.kernels import Kernel, result_like
from models.sharding.varying import varying_like

MAX_ROWS = 128
MAX_TILE = 64
"""Rows of one program instance."""
COLUMNS = (64, 32, 16)
"""Outputs of one program instance: the first of which there are `MIN_INSTANCES`, or the last."""
MIN_INSTANCES = 128
"""Program instances that are about as many as a GPU's processors."""
MAX_TERMS = 128
"""Numbers of a row that are multiplied at once."""


def unsupported(x: Any, weight: Any) -> str | None:
    """Say why the kernel does not take these operands, `[row, in]` and `[out, in]`; None if it does."""
    rows, inputs = x.shape
    if weight.dtype != jnp.bfloat16:
        return f"a weight of {weight.dtype}: expected bfloat16"
    if rows % MIN_ROWS or rows > MAX_ROWS or inputs % MIN_ROWS:
        return f"{rows} rows of {inputs}: expected multiples of {MIN_ROWS}, and at most {MAX_ROWS} rows"
    return None


KERNEL = Kernel("row_product_kernel", ("gpu",), unsupported)


def row_product_kernel(x: Any, *refs: Any, terms: int, joined: Callable[..., Array]) -> None:
    """Multiply some rows by the same rows of each weight.

    Args:
        x: [row, in].
        refs: weights [out, in], in full; the result [row, column], some outputs.
        terms: that are multiplied at once.
        joined: of the products by each weight.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    *weights, out = refs
    count, columns = out.shape
    # outputs behind the last one are computed like the last one, and cut off
    own = pl.program_id(1) * columns + lax.broadcasted_iota(jnp.int32, (columns,), 0)
    own = jnp.minimum(own, weights[0].shape[0] - 1)

    def add(turn: Any, totals: Any) -> Any:
        at = turn * terms + lax.broadcasted_iota(jnp.int32, (terms,), 0)
        rows, dims = x[:, pl.ds(turn * terms, terms)], (((1,), (1,)), ((), ()))
        matrices = [weight[own[:, None], at[None]] for weight in weights]
        products = [lax.dot_general(rows, one, dims, preferred_element_type=jnp.float32) for one in matrices]
        return tuple(total + one for total, one in zip(totals, products, strict=True))

    none = jnp.zeros((count, columns), jnp.float32)
    totals = lax.fori_loop(0, x.shape[1] // terms, add, (none,) * len(weights))
    out[...] = joined(*totals).astype(out.dtype)


def row_product(
    x: Float32[Array, "row in"],
    weights: Sequence[Float[Array, "out in"]],
    *,
    joined: Callable[..., Array] = lambda one: one,
    dtype: Any = jnp.float32,
    interpret: bool,
) -> Float[Array, "row out"]:
    """Return `joined(x @ weight.T, ..)` of one weight or more, each row by itself, accumulated in float32.

    Args:
        x: rows, which are rounded to the weights' dtype.
        weights: bfloat16, of equal shapes.
        joined: of the products by each weight, number by number.
        dtype: that the result is rounded to.
        interpret: run by Pallas' interpreter, on any platform.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    (rows, inputs), outputs = x.shape, weights[0].shape[0]
    tile, terms = min(rows & -rows, MAX_TILE), min(inputs & -inputs, MAX_TERMS)
    columns = next((one for one in COLUMNS if outputs >= MIN_INSTANCES * one), COLUMNS[-1])
    instances = pl.cdiv(outputs, columns)
    given = varying_like(x, weights[0]).astype(weights[0].dtype)
    found = pl.pallas_call(
        partial(row_product_kernel, terms=terms, joined=joined),
        grid=(rows // tile, instances),
        in_specs=[
            pl.BlockSpec((tile, inputs), lambda row, column: (row, 0)),
            *[pl.BlockSpec(memory_space=pl.ANY)] * len(weights),
        ],
        out_specs=pl.BlockSpec((tile, columns), lambda row, column: (row, column)),
        out_shape=result_like((rows, instances * columns), dtype, given),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=4),
        interpret=interpret,
        name=KERNEL.name,
    )(given, *weights)
    return found[:, :outputs]
