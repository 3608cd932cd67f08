"""GPU kernel: RMS norm of a residual stream, or of a sum.

`models.layers.norms` defines it. XLA has two operations for the norm of one row. One program instance has one row.
"""

import operator
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32

from models.ops.gpu_call import gpu_call
from models.ops.kernel_products import MIN_ROWS
from models.ops.kernels import Kernel
from models.sharding.devices import result_like, varying_like

MAX_ROWS = 128
"""Rows of a decode step; XLA fuses the norms of prompts with other operations."""
MAX_TURN = 4096
"""Maximum numbers of a row in one iteration."""


def supports(x: Any) -> bool:
    size = x.shape[-1]
    return x.size // size <= MAX_ROWS and not size % MIN_ROWS


KERNEL = Kernel("rms_norm_kernel", "gpu", supports)


def rms_norm_kernel(*refs: Any, turn: int, eps: float, offset: float) -> None:
    """Norm the sum of some rows.

    Args:
        refs: the terms of the sum, the weight and the result, [size] each.
        turn: numbers of an iteration.
        offset: added to the weight.
    """
    from jax.experimental import pallas as pl  # takes a while to import

    *terms, weight, out = refs
    (size,) = out.shape

    def total(part: Any) -> Array:
        return reduce(operator.add, (term[part] for term in terms))

    def add(number: Any, squares: Array) -> Array:
        row = total(pl.ds(number * turn, turn))
        return squares + row * row

    squares = lax.fori_loop(0, size // turn, add, jnp.zeros((turn,), jnp.float32))
    factor = lax.rsqrt(jnp.sum(squares) / size + eps)

    def write(number: Any, carry: None) -> None:
        part = pl.ds(number * turn, turn)
        out[part] = total(part) * factor * (weight[part] + offset)

    lax.fori_loop(0, size // turn, write, None)


def rms_norm(
    terms: Sequence[Float32[Array, "*rows size"]],
    weight: Float32[Array, "size"],
    eps: float,
    offset: float,
    *,
    interpret: bool,
) -> Float32[Array, "*rows size"]:
    """Return the norm of a sum's rows; the weight is stored minus `offset`."""
    size, shape = len(weight), terms[0].shape
    marked = varying_like([*terms, weight], *terms, weight)
    rows, weight = [term.reshape((-1, size)) for term in marked[:-1]], marked[-1]
    row = (None, size), lambda row: (row, 0)
    # Shared operands get a leading axis like operands of lanes, for the proof.
    shared = (None, size), lambda row: (0, 0)
    kernel = partial(rms_norm_kernel, turn=min(size & -size, MAX_TURN), eps=eps, offset=offset)
    return gpu_call(
        kernel,
        (len(rows[0]),),
        [*[row] * len(rows), shared],
        (row, result_like(rows[0].shape, jnp.float32, rows[0])),
        interpret=interpret,
    )(*rows, weight[None]).reshape(shape)
