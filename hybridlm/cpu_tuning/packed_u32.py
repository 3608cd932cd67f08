"""A bfloat16 weight as packed uint32: the same bytes, and the product that reads them."""

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
"""Maximum terms per partial sum: LLVM takes seconds over more, and its code for them is slow."""
SHARED_TERMS = 16
"""Terms per partial sum when packed weights are unpacked once for all rows. 16 fill the AVX-512 registers; with fewer,
XLA recomputes the inputs."""
MAX_PARTIAL_BYTES = 8 << 20
"""Maximum bytes of partial sums held at a time: more would not stay in the cache, and would use newly mapped pages in
every step."""


def packed_u32(param: Float[Array, "out in"]) -> UInt32[Array, "out half"] | None:
    """Return a second array over the bytes of a parameter of 16-bit numbers, two of a row in each uint32.

    Nothing is copied. The packed array keeps the parameter alive. Neither may be donated.

    Args:
        param: on one device; an even number of inputs.

    Returns:
        None if the bytes cannot be shared.
    """
    packed = jax.device_put(np.asarray(param).view(np.uint32), may_alias=True)
    return packed if packed.unsafe_buffer_pointer() == param.unsafe_buffer_pointer() else None


@functools.partial(jax.jit, static_argnames="shared", inline=True)
def multiply_packed(
    rows: Float32[Array, "row in"], packed: UInt32[Array, "out half"], shared: bool = False
) -> Float32[Array, "row out"]:
    """Return `rows @ weight.T` with the rows rounded to bfloat16, accumulated in float32; for one to four rows.

    A library matmul packs the weight in every call, which takes two to three times as long as reading it. Sums of
    elementwise products do not: `VECTOR` partial sums of each output in each group of terms, and their sum. Measured
    beside other variants: docs/performance-without-amx.md.

    Args:
        rows: the inputs.
        packed: the bytes of the weight: each uint32 holds an even input's number in its low half, the next one's in its
            high half. XLA would convert a whole bfloat16 array to float32 before slicing it (ops/layout: gather).
        shared: the rows are the inner loop, and LLVM unpacks a group's weights before it, once for all rows; needs two
            groups of SHARED_TERMS or more.
    """
    terms = packed.shape[1] // VECTOR
    groups = terms // SHARED_TERMS if shared else groups_of_terms(terms)
    # Rounded to bfloat16 in float32: two conversions would be fused into the product (ops/layout: fusion).
    rounded = lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
    inputs = rounded.reshape(len(rows), groups, terms // groups, VECTOR, 2)
    inner = 1 if shared else 0
    inputs = jnp.moveaxis(inputs, 0, inner)
    even, odd = inputs[..., 0], inputs[..., 1]
    packed = packed.reshape(len(packed), groups, terms // groups, VECTOR)
    outputs = len(packed)
    pieces = -(-len(rows) * outputs * groups * VECTOR * 4 // MAX_PARTIAL_BYTES)
    size = -(-outputs // pieces)
    if pieces == 1:
        return materialized_transpose(_partial_sums(even, odd, packed, inner, 0, size))

    def piece(index: Array, y: Array) -> Array:
        start = jnp.minimum(index * size, outputs - size)  # the last piece overlaps the previous one
        return lax.dynamic_update_slice_in_dim(y, _partial_sums(even, odd, packed, inner, start, size), start, axis=0)

    empty = varying_like(jnp.zeros((outputs, len(rows)), jnp.float32), even, odd, packed)
    return materialized_transpose(lax.fori_loop(0, pieces, piece, empty))


def _partial_sums(
    even: Float32[Array, "outer inner term vector"],
    odd: Float32[Array, "outer inner term vector"],
    packed: UInt32[Array, "out group term vector"],
    rows: int,
    start: Array | int,
    size: int,
) -> Float32[Array, "size row"]:
    """Return the products with `size` outputs of the weight, from `start` on; `rows` is the row axis of the inputs."""
    _, groups, terms, _ = packed.shape
    # Two independent sums.
    even_terms: list[Array] = []
    odd_terms: list[Array] = []
    for term in range(terms):
        # One slice: XLA would materialize an array of all outputs first, and slice each term from it.
        both = lax.dynamic_slice(packed, (start, 0, term, 0), (size, groups, 1, VECTOR))
        both = jnp.expand_dims(both[:, :, 0], 1 + rows)
        low, high = unpack_u32(both)
        even_terms.append(low * even[None, :, :, term])
        odd_terms.append(high * odd[None, :, :, term])
    total = functools.reduce(operator.add, even_terms) + functools.reduce(operator.add, odd_terms)
    # Slices of `total`: with this many uses XLA materializes it instead of recomputing it (ops/layout: fusion). A
    # product with ones takes longer. First the groups, for all places of a vector alike.
    group = (slice(None),) * (2 - rows)
    parts = [
        functools.reduce(operator.add, (total[(*group, one)][..., place] for one in range(groups)))
        for place in range(VECTOR)
    ]
    while len(parts) > 1:
        parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def groups_of_terms(terms: int) -> int:
    """Return the number of equal groups of at most MAX_TERMS terms: the fewest, but at least two.

    A single group is a loop that LLVM does not vectorise.
    """
    can = (groups for groups in range(2, terms + 1) if terms % groups == 0 and terms // groups <= MAX_TERMS)
    return next(can, terms)
