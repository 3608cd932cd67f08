"""The matrix product of every projection: a row-wise operation, in the form that is the fastest for its shape."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Float, Float32

FEW_ROWS = 32
"""Up to this many rows, XLA:CPU multiplies a narrow weight from the left 1.0 to 2.2 times as fast as from the right."""
ROW_MAJOR = Layout(major_to_minor=(0, 1))

Form = Literal["rows x weight", "weight x rows"]
"""The operand on the left of the product of a narrow weight; the result has its rows first either way."""


@dataclass(frozen=True, order=True)
class Product:
    """A product of a narrow weight.

    Attributes:
        rows: how many there are of the input, at least two.
        outputs, inputs: the dimensions of the weight.
        dtype: of the weight.
    """

    rows: int
    outputs: int
    inputs: int
    dtype: str

    @property
    def usual_form(self) -> Form:
        """Where nothing else is chosen."""
        return "weight x rows" if self.rows <= FEW_ROWS else "rows x weight"


_chosen: ContextVar[Mapping[Product, Form]] = ContextVar("_chosen")


@contextmanager
def product_forms(forms: Mapping[Product, Form]) -> Iterator[None]:
    """What is traced inside computes these products so, others in their usual form."""
    token = _chosen.set(forms)
    try:
        yield
    finally:
        _chosen.reset(token)


def linear(x: Float32[Array, "*rows in"], weight: Float[Array, "out in"]) -> Float32[Array, "*rows out"]:
    """`x @ weight.T`, each row by itself, accumulated in float32.

    The weight keeps the dtype and the orientation `[out, in]` of the checkpoint; a narrower weight meets an input
    rounded to its dtype. A single row of a narrow dtype is computed as two: XLA:CPU has no fast form for one. A single
    output is computed as two: the product of a matrix and a vector rounds a row differently at different places.
    """
    rows = x.reshape((-1, x.shape[-1])).astype(weight.dtype)
    count, outputs = rows.shape[0], weight.shape[0]
    narrow = weight.dtype != jnp.float32
    if count == 1 and narrow:
        rows = jnp.concatenate([rows, jnp.zeros_like(rows)])
    if outputs == 1:
        weight = jnp.concatenate([weight, jnp.zeros_like(weight)])
    if narrow:
        product = Product(rows.shape[0], weight.shape[0], weight.shape[1], str(weight.dtype))
        y = multiply(rows, weight, _chosen.get({}).get(product, product.usual_form))
    else:
        y = lax.dot_general(
            rows,
            weight,
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
    return y[:count, :outputs].reshape((*x.shape[:-1], outputs))


def multiply(rows: Float[Array, "row in"], weight: Float[Array, "out in"], form: Form) -> Float32[Array, "row out"]:
    """`rows @ weight.T` of one narrow dtype, accumulated in float32."""
    left, right = (rows, weight) if form == "rows x weight" else (weight, rows)
    y = lax.dot_general(left, right, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    if form == "rows x weight":
        return y
    # XLA would turn the product round again. The first constraint keeps its result row after row (the transpose would
    # become its layout, for which there is no kernel: the weight would be converted to float32 in every step), the
    # second that of the transpose.
    return with_layout_constraint(with_layout_constraint(y, ROW_MAJOR).T, ROW_MAJOR)
