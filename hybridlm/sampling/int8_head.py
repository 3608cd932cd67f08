"""The int8 head: find the most likely tokens without all logits, with an int8 copy of the head as pre-filter.

The copy holds the head's rows as int8, half of its bytes, in a basis without outliers (`rotated`), and the input is
rounded to int8 as well. The error of each logit computed from both is bounded (Cauchy-Schwarz: the norm of the rounding
error of its row times that of the input, and vice versa). Exact logits are computed where these upper bounds are
highest, until no bound exceeds the highest logit found. The result is the argmax of all logits, except where two differ
only in the last bits of a float32 sum.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int8, Int32, UInt32

from hybridlm.sampling.rotation import rotated, rotation_error
from hybridlm.sampling.sampling import BESIDE_GREEDY, GREEDY, Sampling, grouped_argmax
from models.ops.layout import materialize

MAX_LANES = 8
"""Above this number of lanes int8 products are slower than bfloat16 ones."""
GROUP_TOKENS = 32
"""Tokens whose exact logits are computed together; 16 and 64 take as long."""
MAX_COLUMNS = 4
"""XLA:CPU's matmul costs the same for 1 to 4 columns, so up to 4 rows of the copy are packed into one, which is read in
longer pieces."""
MAX_CODE = 127
"""Largest int8 code."""
MIN_RADIUS = 2.0**-100
"""Lower bound on the error radius; guards against denormals."""
BLOCK_ELEMENTS = 1 << 20
"""Elements of a head that are quantized at a time."""


class Int8Head(NamedTuple):
    """A vocabulary head and its int8 copy.

    Attributes:
        packed: the bytes of the head as packed uint32, two bfloat16 numbers of a row in each (see `packed_u32`).
        codes: its rows as int8.
        scale: value of one code step, per row.
        radius: error bound of a token's logit computed from the copy, for an unrounded input of norm 1.
        reach: norm of each row of the copy: bounds how far the input's rounding error moves the logit, per unit of its
            norm.
    """

    packed: UInt32[Array, "vocab half"]
    codes: Int8[Array, "vocab hidden"]
    scale: Float32[Array, "vocab"]
    radius: Float32[Array, "vocab"]
    reach: Float32[Array, "vocab"]


def supports_int8_head(head: Array | jax.ShapeDtypeStruct) -> bool:
    """Whether the dtype and the dimensions of a head allow an int8 copy."""
    vocab, hidden = head.shape
    return head.dtype == jnp.bfloat16 and vocab % math.lcm(GROUP_TOKENS, MAX_COLUMNS) == 0 and hidden % 2 == 0


def unpack_u32(packed: UInt32[Array, "*shape"]) -> tuple[Float32[Array, "*shape"], Float32[Array, "*shape"]]:
    """Return the bfloat16 numbers in the low and in the high halves of packed words."""
    # Not a shift: in a fusion XLA does not know its distance, and emits a branch for shifts by 32 bits.
    low = lax.bitcast_convert_type(packed.astype(jnp.uint16), jnp.bfloat16).astype(jnp.float32)
    return low, lax.bitcast_convert_type(packed & jnp.uint32(0xFFFF0000), jnp.float32)


def int8_copy_bytes(head: Array) -> int:
    """Bytes of the int8 copy of a head."""
    vocab, hidden = head.shape
    return vocab * (hidden + 3 * 4)


def build_int8_head(packed: UInt32[Array, "vocab half"]) -> Int8Head:
    """Build the int8 head from a head's packed words; the radius of a row that is not finite is NaN."""
    return Int8Head(packed, *_narrow_copy(packed))


@jax.jit
def _narrow_copy(
    packed: UInt32[Array, "vocab half"],
) -> tuple[Int8[Array, "vocab hidden"], Float32[Array, "vocab"], Float32[Array, "vocab"], Float32[Array, "vocab"]]:
    """Return codes, scale, radius and reach of a head, from its packed words."""
    vocab, hidden = packed.shape[0], 2 * packed.shape[1]
    rows = math.gcd(vocab, 1 << (max(1, BLOCK_ELEMENTS // hidden).bit_length() - 1))
    # Rounding errors in float32: the quantization steps, the logits of both heads, and the rotation.
    rest = math.sqrt(hidden) * 2.0**-21 + (hidden + 64) * 2.0**-23 + rotation_error(hidden)

    def block(part: Array) -> tuple[Array, Array, Array, Array]:
        numbers = rotated(jnp.stack(unpack_u32(part), axis=2).reshape((rows, hidden)))
        scale = jnp.max(jnp.abs(numbers), axis=1) / MAX_CODE
        steps = numbers / jnp.where(scale > 0, scale, 1.0)[:, None]
        codes = jnp.round(steps)
        off, norm = (scale * jnp.linalg.norm(one, axis=1) * (1 + 2.0**-10) for one in (steps - codes, codes))
        return codes.astype(jnp.int8), scale, off + (off + norm) * rest + MIN_RADIUS, norm

    # Slices of packed words, since a bfloat16 array would be converted whole (ops/layout: gather).
    codes, *others = lax.map(block, packed.reshape((-1, rows, hidden // 2)))
    scale, radius, reach = (one.reshape(vocab) for one in others)
    return codes.reshape((vocab, hidden)), scale, radius, reach


def sample_with_int8_head(
    hidden: Float32[Array, "lane hidden"],
    active: Bool[Array, "lane"],
    int8_head: Int8Head,
    sampling: Sampling,
    sampling_mode: Int32[Array, ""],
    otherwise: Callable[[], Int32[Array, "lane"]],
) -> Int32[Array, "lane"]:
    """Sample the next token of every lane; the size of the vocabulary for a lane whose logits have NaN.

    A lane of temperature 0 has the token of `most_likely_by_int8_head`, whatever the other lanes do.

    Args:
        hidden: the final residual stream.
        active: lanes that sample; the tokens of others have no meaning.
        int8_head: the int8 head.
        sampling, sampling_mode: as for `sample_tokens`.
        otherwise: samples from all logits.
    """
    sampled = jnp.asarray(sampling.temperature) > 0
    found = lax.cond(
        (sampling_mode == GREEDY) | (sampling_mode >= BESIDE_GREEDY),
        lambda: most_likely_by_int8_head(hidden, active & ~sampled, int8_head),
        lambda: jnp.full(len(hidden), len(int8_head.codes), jnp.int32),
    )
    return lax.cond(sampling_mode == GREEDY, lambda: found, lambda: jnp.where(sampled, otherwise(), found))


def most_likely_by_int8_head(
    hidden: Float32[Array, "lane hidden"], asked: Bool[Array, "lane"], int8_head: Int8Head
) -> Int32[Array, "lane"]:
    """Return the first token with the highest logit of each lane; the size of the vocabulary if a logit is NaN.

    Args:
        hidden: the final residual stream, which is rounded to bfloat16.
        asked: lanes whose token is wanted; others get the size of the vocabulary.
        int8_head: the int8 head.
    """
    rounded = lax.reduce_precision(hidden, exponent_bits=8, mantissa_bits=7)
    bounds = group_upper_bounds(rounded, int8_head)
    return lax.map(lambda lane: _search(lane[0], lane[1], lane[2], int8_head.packed), (rounded, bounds, asked))


def group_upper_bounds(x: Float32[Array, "lane hidden"], int8_head: Int8Head) -> Float32[Array, "lane group"]:
    """Return an upper bound of the logits of each group; infinity for an input that is zero or not finite.

    Args:
        x: bfloat16 numbers.
        int8_head: the int8 head.
    """
    lanes, (vocab, hidden) = len(x), int8_head.codes.shape
    numbers = rotated(x)
    step = jnp.max(jnp.abs(numbers), axis=1, keepdims=True) / MAX_CODE
    steps = numbers / step
    codes = jnp.round(steps)
    norm, rounded = (step * jnp.linalg.norm(one, axis=1, keepdims=True) for one in (steps, steps - codes))
    joined, codes = max(1, MAX_COLUMNS // lanes), codes.astype(jnp.int8)
    zeros = jnp.zeros_like(codes)
    # The columns of a lane are adjacent, in the order of the lanes.
    columns = [jnp.concatenate([codes if i == j else zeros for j in range(joined)], axis=1) for i in range(joined)]
    products = lax.dot_general(
        int8_head.codes.reshape((-1, joined * hidden)),
        materialize(jnp.stack(columns, axis=1).reshape((-1, joined * hidden))),
        (((1,), (1,)), ((), ())),
        preferred_element_type=jnp.int32,
    )
    products = materialize(products).reshape((-1, lanes, joined)).astype(jnp.float32)
    logits = int8_head.scale[:, None] * step.T * jnp.swapaxes(products, 1, 2).reshape((vocab, lanes))
    bounds = logits + int8_head.radius[:, None] * norm.T + int8_head.reach[:, None] * rounded.T
    bounds = materialize(jnp.where(jnp.isnan(bounds), jnp.inf, bounds))
    return jnp.max(bounds.reshape((-1, GROUP_TOKENS, lanes)), axis=1).T


class _Search(NamedTuple):
    """State of the search for one lane's token.

    Attributes:
        bounds: upper bounds of the groups that are left; -inf for the others.
        next: the first group of the highest bound.
        highest, token: the highest logit so far, and the first token that has it.
        wrong: a logit is NaN.
        looked: number of groups whose logits have been computed.
    """

    bounds: Float32[Array, "group"]
    next: Int32[Array, ""]
    highest: Float32[Array, ""]
    token: Int32[Array, ""]
    wrong: Bool[Array, ""]
    looked: Int32[Array, ""]


def _search(
    x: Float32[Array, "hidden"],
    bounds: Float32[Array, "group"],
    asked: Bool[Array, ""],
    head: UInt32[Array, "vocab half"],
) -> Int32[Array, ""]:
    """Return the most likely token of one lane, computing the exact logits of one group after another."""
    even, odd = x[None, 0::2], x[None, 1::2]
    vocab = jnp.int32(len(head))

    def goes_on(found: _Search) -> Bool[Array, ""]:
        return asked & ~found.wrong & (found.looked < len(bounds)) & (found.bounds[found.next] >= found.highest)

    def look(found: _Search) -> _Search:
        low, high = unpack_u32(lax.dynamic_slice_in_dim(head, found.next * GROUP_TOKENS, GROUP_TOKENS))
        logits = jnp.sum(low * even + high * odd, axis=1)
        highest, token = jnp.max(logits), found.next * GROUP_TOKENS + lax.argmax(logits, 0, jnp.int32)
        better = (highest > found.highest) | ((highest == found.highest) & (token < found.token))
        left = found.bounds.at[found.next].set(-jnp.inf)
        return _Search(
            left,
            grouped_argmax(left[None])[0],
            jnp.where(better, highest, found.highest),
            jnp.where(better, token, found.token),
            jnp.isnan(logits).any(),
            found.looked + 1,
        )

    first = grouped_argmax(bounds[None])[0]
    found = lax.while_loop(
        goes_on, look, _Search(bounds, first, jnp.float32(-jnp.inf), vocab, jnp.bool_(False), jnp.int32(0))
    )
    return jnp.where(found.wrong, vocab, found.token)
