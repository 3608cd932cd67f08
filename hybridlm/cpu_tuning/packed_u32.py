"""A bfloat16 weight as packed 32-bit words: the same bytes, and the product that reads them."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Float32, UInt32

from hybridlm.sampling.int8_head import unpack_u32
from models.ops.layout import materialized_transpose
from models.sharding.varying import varying_like

VECTOR = 8
"""Partial sums of even inputs, and as many of odd ones, in each group of terms."""
MAX_TERMS = 72
"""Terms per partial sum: LLVM takes seconds over more, and its code for them is slow."""
SHARED_TERMS = 16
"""Terms per partial sum when the words are unpacked once for all rows. 16 fill the AVX-512 registers; with fewer, XLA
recomputes the inputs."""
MAX_PARTIAL_BYTES = 8 << 20
"""Partial sums held at a time: more would go to memory and back, and into pages that every step is given anew."""


def packed_u32(param: Float[Array, "out in"]) -> UInt32[Array, "out half"] | None:
    """Return a second array over the bytes of a parameter of 16-bit numbers, two of a row in each word.

    Nothing is copied. The words keep the parameter alive. Neither may be donated.

    Args:
        param: on one device; an even number of inputs.

    Returns:
        None where the bytes cannot be shared.
    """
    words = jax.device_put(np.asarray(param).view(np.uint32), may_alias=True)
    return words if words.unsafe_buffer_pointer() == param.unsafe_buffer_pointer() else None


@functools.partial(jax.jit, static_argnames="shared", inline=True)
def multiply_packed(
    rows: Float32[Array, "row in"], words: UInt32[Array, "out half"], shared: bool = False
) -> Float32[Array, "row out"]:
    """Return `rows @ weight.T` with the rows rounded to bfloat16, accumulated in float32; for one to four rows.

    A library's product packs the weight in every call, which takes two to three times as long as reading it. Sums of
    elementwise products do not: `VECTOR` partial sums of each output in each group of terms, and their sum. Measured
    beside other variants: docs/performance.md.

    Args:
        rows: the inputs.
        words: the bytes of the weight: each holds an even input's number in its low half, the next one's in its high
            half. XLA converts a bfloat16 array to float32 and back before it takes slices of it, all of it.
        shared: the rows are the inner loop, and LLVM unpacks a group's words before it, once for all rows; needs two
            groups of SHARED_TERMS or more.
    """
    terms = words.shape[1] // VECTOR
    groups = terms // SHARED_TERMS if shared else groups_of_terms(terms)
    # As bfloat16 has them; XLA would fuse two conversions with the product, and compute them for each of its pieces.
    rounded = lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
    inputs = rounded.reshape(len(rows), groups, terms // groups, VECTOR, 2)
    inner = 1 if shared else 0
    inputs = jnp.moveaxis(inputs, 0, inner)
    even, odd = inputs[..., 0], inputs[..., 1]
    words = words.reshape(len(words), groups, terms // groups, VECTOR)
    outputs = len(words)
    pieces = -(-len(rows) * outputs * groups * VECTOR * 4 // MAX_PARTIAL_BYTES)
    size = -(-outputs // pieces)
    if pieces == 1:
        return materialized_transpose(_partial_sums(even, odd, words, inner, 0, size))

    def piece(index: Array, y: Array) -> Array:
        start = jnp.minimum(index * size, outputs - size)  # the last piece has some of the one before it, too
        return lax.dynamic_update_slice_in_dim(y, _partial_sums(even, odd, words, inner, start, size), start, axis=0)

    empty = varying_like(jnp.zeros((outputs, len(rows)), jnp.float32), even, odd, words)
    return materialized_transpose(lax.fori_loop(0, pieces, piece, empty))


def _partial_sums(
    even: Float32[Array, "outer inner term vector"],
    odd: Float32[Array, "outer inner term vector"],
    words: UInt32[Array, "out group term vector"],
    rows: int,
    start: Array | int,
    size: int,
) -> Float32[Array, "size row"]:
    """Return the products with `size` outputs of the weight, from `start` on; `rows` is the inputs' axis of rows."""
    _, groups, terms, _ = words.shape
    # Two sums that do not wait for each other.
    even_terms: list[Array] = []
    odd_terms: list[Array] = []
    for term in range(terms):
        # One slice: XLA would write an array of the outputs' words, of which all terms are slices.
        both = lax.dynamic_slice(words, (start, 0, term, 0), (size, groups, 1, VECTOR))
        both = jnp.expand_dims(both[:, :, 0], 1 + rows)
        low, high = unpack_u32(both)
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


def groups_of_terms(terms: int) -> int:
    """Return in how many equal groups the terms of a sum are added, each of at most MAX_TERMS: the fewest, but two.

    A single group is a loop that LLVM does not vectorise.
    """
    can = (groups for groups in range(2, terms + 1) if terms % groups == 0 and terms // groups <= MAX_TERMS)
    return next(can, terms)
