"""The matrix product of every projection: a row-wise operation, in the form that is the fastest for its shape."""

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Float, Float32, UInt32

from models.own_array import own_array, turned
from models.varying import varying_like

FEW_ROWS = 32
"""Up to this many rows, XLA:CPU multiplies a narrow weight from the left 1.0 to 2.2 times as fast as from the right."""
PROJECTION = "projection"
"""The scope that the products have in profiles, inside that of their layer."""
VECTOR = 8
"""Partial sums of even inputs, and as many of odd ones, in each group of terms in the form that reads words."""
MOST_TERMS = 72
"""Of a partial sum: LLVM takes seconds over more, and its code for them is slow."""
SHARED_TERMS = 16
"""Of a partial sum whose words are converted for all rows: as many as the registers of AVX-512 hold. Of fewer, XLA
computes the inputs again in each."""
MOST_PARTIAL = 8 << 20
"""Bytes of partial sums at a time: more would go to memory and back, and into pages that every step is given anew."""

MOST_ROWS, MANY_ROWS = 64, 128
"""Of up to this many rows each number counts for itself; all larger numbers of rows count as the second."""

Form = Literal[
    "rows x weight",
    "weight x rows",
    "weight in pairs x rows",
    "rows x converted weight",
    "converted weight x rows",
    "words of weight",
    "words for all rows",
    "highest by narrow copy",
]
"""How the product of a narrow weight is computed: with which operand on the left, of narrow numbers or of float32
(fast where XLA fuses the conversion with the product, else the worst), with the weights of two outputs as one row, or
as sums over 32-bit words, which are converted for each row or once for all of them. The last computes no product: it
finds the highest output of each row by a copy of the weight in int8, which is the dtype that it is known by."""
PAIRS: Form = "weight in pairs x rows"
"""Of an even number of outputs."""
WORDS: tuple[Form, ...] = ("words of weight", "words for all rows")
SCREENED: Form = "highest by narrow copy"


def counted_as(rows: int) -> int:
    """The number of rows by which a product of so many rows is known."""
    return rows if rows <= MOST_ROWS else MANY_ROWS


@dataclass(frozen=True, order=True)
class Product:
    """A product of a narrow weight.

    Attributes:
        rows: how many there are of the input; MANY_ROWS for more than MOST_ROWS.
        outputs, inputs: the dimensions of the weight.
        dtype: of the weight.
    """

    rows: int
    outputs: int
    inputs: int
    dtype: str

    @classmethod
    def of(cls, rows: int, weight: Array) -> "Product":
        """The product of so many rows with a weight."""
        return cls(counted_as(rows), weight.shape[0], weight.shape[1], str(weight.dtype))

    @property
    def usual_form(self) -> Form:
        """Where nothing else is chosen."""
        return "weight x rows" if self.rows <= FEW_ROWS else "rows x weight"


class _Chosen(NamedTuple):
    forms: Mapping[Product, Form]
    words: Sequence[tuple[Array, Array]]


_chosen: ContextVar[_Chosen] = ContextVar("_chosen")


@contextmanager
def product_forms(forms: Mapping[Product, Form], words: Sequence[tuple[Array, Array]] = ()) -> Iterator[None]:
    """What is traced inside computes these products so, others in their usual form.

    Args:
        forms: of products.
        words: weights with the words of each (see `multiply_words`). A product whose form reads them has its usual form
            where its weight is none of these.
    """
    token = _chosen.set(_Chosen(forms, words))
    try:
        yield
    finally:
        _chosen.reset(token)


def linear(x: Float32[Array, "*rows in"], weight: Float[Array, "out in"]) -> Float32[Array, "*rows out"]:
    """`x @ weight.T`, each row by itself, accumulated in float32.

    The weight keeps the dtype and the orientation `[out, in]` of the checkpoint; a narrower weight meets an input
    rounded to its dtype. A single row of a narrow dtype is multiplied as two: XLA:CPU has no fast product of one. A
    single output is computed as two: the product of a matrix and a vector rounds a row differently at different places.
    """
    with jax.named_scope(PROJECTION):
        return _product(x.reshape((-1, x.shape[-1])), weight).reshape((*x.shape[:-1], weight.shape[0]))


def _product(x: Float32[Array, "row in"], weight: Float[Array, "out in"]) -> Float32[Array, "row out"]:
    outputs = weight.shape[0]
    if weight.dtype == jnp.float32:
        return lax.dot_general(
            x,
            _at_least_two(weight),
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )[:, :outputs]
    product = Product.of(len(x), weight)
    forms, known = _chosen.get(_Chosen({}, ()))
    form = forms.get(product, product.usual_form)
    if form in WORDS:
        for one, words in known:
            if one is weight:
                return multiply_words(x, words, form)
        form = product.usual_form
    return multiply(x, _at_least_two(weight), form)[:, :outputs]


def multiply(x: Float32[Array, "row in"], weight: Float[Array, "out in"], form: Form) -> Float32[Array, "row out"]:
    """`x @ weight.T` with the rows rounded to the weight's narrow dtype, accumulated in float32; no form of words."""
    if form == PAIRS:
        return _multiply_pairs(x.astype(weight.dtype), weight)
    if "converted" in form:
        rows, weight = _rounded(x, weight.dtype), weight.astype(jnp.float32)
    else:
        rows = x.astype(weight.dtype)
    rows, weight_first = _at_least_two(rows), form in ("weight x rows", "converted weight x rows")
    left, right = (weight, rows) if weight_first else (rows, weight)
    exact = lax.Precision.HIGHEST if rows.dtype == jnp.float32 else None
    y = lax.dot_general(left, right, (((1,), (1,)), ((), ())), precision=exact, preferred_element_type=jnp.float32)
    return (turned(y) if weight_first else y)[: len(x)]


def _multiply_pairs(x: Float[Array, "row in"], weight: Float[Array, "out in"]) -> Float32[Array, "row out"]:
    """The product with the weights of two outputs as one row, which each input meets twice: before zeros and behind.

    XLA:CPU's library computes 16 columns where there are few, and takes a few bytes at a time of as many rows of the
    weight. Of rows that are twice as long it reads twice as much in order. An infinite weight makes both outputs of its
    pair no numbers.
    """
    count, inputs = x.shape
    x = own_array(x)
    zeros = jnp.zeros_like(x)
    # An array of its own: XLA would look for each of its numbers by a division.
    rows = own_array(jnp.stack([jnp.stack([x, zeros], axis=1), jnp.stack([zeros, x], axis=1)], axis=1))
    y = lax.dot_general(
        weight.reshape((-1, 2 * inputs)),
        rows.reshape((2 * count, 2 * inputs)),
        (((1,), (1,)), ((), ())),
        preferred_element_type=jnp.float32,
    )
    return jnp.moveaxis(own_array(y).reshape((-1, count, 2)), 1, 0).reshape((count, len(weight)))


def _rounded(x: Float32[Array, "row in"], dtype: DTypeLike) -> Float32[Array, "row in"]:
    """The numbers as the dtype would have them."""
    if dtype == jnp.bfloat16:
        # XLA fuses two conversions, and what is before them, with the product, and computes it for each of its pieces.
        return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return x.astype(dtype).astype(jnp.float32)


@functools.partial(jax.jit, static_argnames="form", inline=True)
def multiply_words(
    rows: Float32[Array, "row in"], words: UInt32[Array, "out half"], form: Form = "words of weight"
) -> Float32[Array, "row out"]:
    """`rows @ weight.T` with the rows rounded to the weight's bfloat16, accumulated in float32; one to four rows.

    A product packs the weight in every call, which takes two to three times as long as reading it. Sums of elementwise
    products do not: `VECTOR` partial sums of each output in each group of terms, and their sum. Measured beside other
    forms: docs/performance-without-amx.md.

    Args:
        rows: the inputs.
        words: the bytes of the weight: each holds an even input's number in its low half, the next one's in its high
            half. XLA converts a bfloat16 array to float32 and back before it takes slices of it, all of it.
        form: one of WORDS. "words for all rows": the rows are the inner loop, and LLVM converts a group's words before
            it; needs two groups of SHARED_TERMS or more.
    """
    shared = form == "words for all rows"
    terms = words.shape[1] // VECTOR
    groups = terms // SHARED_TERMS if shared else groups_of_terms(terms)
    inputs = _rounded(rows, jnp.bfloat16).reshape(len(rows), groups, terms // groups, VECTOR, 2)
    inner = 1 if shared else 0
    inputs = jnp.moveaxis(inputs, 0, inner)
    even, odd = inputs[..., 0], inputs[..., 1]
    words = words.reshape(len(words), groups, terms // groups, VECTOR)
    outputs = len(words)
    pieces = -(-len(rows) * outputs * groups * VECTOR * 4 // MOST_PARTIAL)
    size = -(-outputs // pieces)
    if pieces == 1:
        return turned(_sums_of_words(even, odd, words, inner, 0, size))

    def piece(index: Array, y: Array) -> Array:
        start = jnp.minimum(index * size, outputs - size)  # the last piece has some of the one before it, too
        return lax.dynamic_update_slice_in_dim(y, _sums_of_words(even, odd, words, inner, start, size), start, axis=0)

    empty = varying_like(jnp.zeros((outputs, len(rows)), jnp.float32), even, odd, words)
    return turned(lax.fori_loop(0, pieces, piece, empty))


def _sums_of_words(
    even: Float32[Array, "outer inner term vector"],
    odd: Float32[Array, "outer inner term vector"],
    words: UInt32[Array, "out group term vector"],
    rows: int,
    start: Array | int,
    size: int,
) -> Float32[Array, "size row"]:
    """The products with so many outputs of the weight, from `start` on; `rows` is the inputs' axis of rows."""
    _, groups, terms, _ = words.shape
    # Two sums that do not wait for each other.
    even_terms: list[Array] = []
    odd_terms: list[Array] = []
    for term in range(terms):
        # One slice: XLA would write an array of the outputs' words, of which all terms are slices.
        both = lax.dynamic_slice(words, (start, 0, term, 0), (size, groups, 1, VECTOR))
        both = jnp.expand_dims(both[:, :, 0], 1 + rows)
        low, high = numbers_of_words(both)
        even_terms.append(low * even[None, :, :, term])
        odd_terms.append(high * odd[None, :, :, term])
    total = functools.reduce(operator.add, even_terms) + functools.reduce(operator.add, odd_terms)
    # Slices of it: so many uses of one sum are more than XLA would compute it anew for. A product with ones takes
    # longer. First the groups, for all places of a vector alike.
    group = (slice(None),) * (2 - rows)
    parts = [
        functools.reduce(operator.add, (total[(*group, one)][..., place] for one in range(groups)))
        for place in range(VECTOR)
    ]
    while len(parts) > 1:
        parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def numbers_of_words(words: UInt32[Array, "*shape"]) -> tuple[Float32[Array, "*shape"], Float32[Array, "*shape"]]:
    """The bfloat16 numbers in the low and in the high halves of words."""
    # XLA would not know the distance of a shift in its fusion, and branch on whether it is one of 32 bits.
    low = lax.bitcast_convert_type(words.astype(jnp.uint16), jnp.bfloat16).astype(jnp.float32)
    return low, lax.bitcast_convert_type(words & jnp.uint32(0xFFFF0000), jnp.float32)


def groups_of_terms(terms: int) -> int:
    """In how many equal groups the terms of a sum are added, each of no more than MOST_TERMS: the fewest, but two.

    A single group is a loop that LLVM does not vectorise.
    """
    can = (groups for groups in range(2, terms + 1) if terms % groups == 0 and terms // groups <= MOST_TERMS)
    return next(can, terms)


def _at_least_two(matrix: Float[Array, "row in"]) -> Float[Array, "padded in"]:
    return jnp.concatenate([matrix, jnp.zeros_like(matrix)]) if len(matrix) == 1 else matrix
