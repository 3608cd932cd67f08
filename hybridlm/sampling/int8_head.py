"""The most likely tokens without all logits: a narrow copy of the vocabulary head says which ones they cannot be.

The copy has the head's rows as integers of eight bits, half of its bytes, in a basis in which no number of a row stands
out (`rotated`), and the input is rounded to as few. How far a logit by both can be from the head's own is known for
each token (Cauchy-Schwarz: the norm of what rounding took from its row times the input's, and the other way round).
Logits of the head itself are computed where these bounds are the highest, until none is above the highest logit. What
is found is what all logits would have given, but for those that are the same to the last bits of a float32 sum.
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
from models.ops.layout import own_array

MAX_LANES = 8
"""Beyond these the products of integers take longer than those of bfloat16."""
GROUP = 32
"""Tokens whose logits are computed together; 16 and 64 take as long."""
COLUMNS = 4
"""Of so few XLA:CPU's library takes no longer for one more: they are used for rows of the copy that are taken as one,
which is read in longer pieces so."""
LEVELS = 127
"""The largest of the integers."""
LEAST = 2.0**-100
"""Of a radius: numbers that are hardly more than none are taken for none."""
BLOCK = 1 << 20
"""Numbers of a head that are rounded at a time."""


class Int8Head(NamedTuple):
    """A head's own numbers and its narrow copy.

    Attributes:
        words: the bytes of the head, two bfloat16 numbers of a row in each word (see `packed_u32`).
        codes: its rows as integers.
        scale: what an integer of each row stands for.
        radius: how far a token's logit by the copy can be from its own, for an input of norm 1 that is not rounded.
        reach: the norm of each row of the copy: so far a token's logit can be moved by what rounding took from the
            input, for each unit of its norm.
    """

    words: UInt32[Array, "vocab half"]
    codes: Int8[Array, "vocab hidden"]
    scale: Float32[Array, "vocab"]
    radius: Float32[Array, "vocab"]
    reach: Float32[Array, "vocab"]


def supports_int8_head(head: Array | jax.ShapeDtypeStruct) -> bool:
    """Whether a head has the dtype and the dimensions for it."""
    vocab, hidden = head.shape
    return head.dtype == jnp.bfloat16 and vocab % math.lcm(GROUP, COLUMNS) == 0 and hidden % 2 == 0


def unpack_u32(words: UInt32[Array, "*shape"]) -> tuple[Float32[Array, "*shape"], Float32[Array, "*shape"]]:
    """Return the bfloat16 numbers in the low and in the high halves of packed words."""
    # XLA would not know the distance of a shift in its fusion, and branch on whether it is one of 32 bits.
    low = lax.bitcast_convert_type(words.astype(jnp.uint16), jnp.bfloat16).astype(jnp.float32)
    return low, lax.bitcast_convert_type(words & jnp.uint32(0xFFFF0000), jnp.float32)


def int8_copy_bytes(head: Array) -> int:
    """What the narrow copy of a head takes."""
    vocab, hidden = head.shape
    return vocab * (hidden + 3 * 4)


def build_int8_head(words: UInt32[Array, "vocab half"]) -> Int8Head:
    """The int8 head of a vocabulary head, from its words; the radius of a row that is not finite is NaN."""
    return Int8Head(words, *_narrow_copy(words))


@jax.jit
def _narrow_copy(
    words: UInt32[Array, "vocab half"],
) -> tuple[Int8[Array, "vocab hidden"], Float32[Array, "vocab"], Float32[Array, "vocab"], Float32[Array, "vocab"]]:
    """The codes, the scale, the radius and the reach of a head, from its words."""
    vocab, hidden = words.shape[0], 2 * words.shape[1]
    rows = math.gcd(vocab, 1 << (max(1, BLOCK // hidden).bit_length() - 1))
    # What is rounded to float32: the integers' steps, the sums of logits on both sides, and the change of basis.
    rest = math.sqrt(hidden) * 2.0**-21 + (hidden + 64) * 2.0**-23 + rotation_error(hidden)

    def block(part: Array) -> tuple[Array, Array, Array, Array]:
        numbers = rotated(jnp.stack(unpack_u32(part), axis=2).reshape((rows, hidden)))
        scale = jnp.max(jnp.abs(numbers), axis=1) / LEVELS
        steps = numbers / jnp.where(scale > 0, scale, 1.0)[:, None]
        codes = jnp.round(steps)
        off, norm = (scale * jnp.linalg.norm(one, axis=1) * (1 + 2.0**-10) for one in (steps - codes, codes))
        return codes.astype(jnp.int8), scale, off + (off + norm) * rest + LEAST, norm

    # In words: XLA would convert all of a bfloat16 array to float32 before it takes a part of it.
    codes, *others = lax.map(block, words.reshape((-1, rows, hidden // 2)))
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
    """The next token of every lane; the size of the vocabulary for a lane whose logits hold NaN.

    A lane of temperature 0 has the token of `most_likely_by_int8_head` whatever the others draw.

    Args:
        hidden: the final residual stream.
        active: lanes that draw; the tokens of others have no meaning.
        int8_head: of the head.
        sampling, sampling_mode: as for `sample_tokens`.
        otherwise: the draw from all logits.
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
    """The first token with the highest logit of each lane; the size of the vocabulary where a logit is NaN.

    Args:
        hidden: the final residual stream, which is rounded to bfloat16.
        asked: lanes whose token is wanted; others have the size of the vocabulary.
        int8_head: of the head.
    """
    rounded = lax.reduce_precision(hidden, exponent_bits=8, mantissa_bits=7)
    bounds = group_upper_bounds(rounded, int8_head)
    return lax.map(lambda lane: _search(lane[0], lane[1], lane[2], int8_head.words), (rounded, bounds, asked))


def group_upper_bounds(x: Float32[Array, "lane hidden"], int8_head: Int8Head) -> Float32[Array, "lane group"]:
    """No logit of a group is higher; infinity for an input that is zero or not finite.

    Args:
        x: bfloat16 numbers.
        int8_head: of the head.
    """
    lanes, (vocab, hidden) = len(x), int8_head.codes.shape
    numbers = rotated(x)
    step = jnp.max(jnp.abs(numbers), axis=1, keepdims=True) / LEVELS
    steps = numbers / step
    codes = jnp.round(steps)
    norm, rounded = (step * jnp.linalg.norm(one, axis=1, keepdims=True) for one in (steps, steps - codes))
    joined, codes = max(1, COLUMNS // lanes), codes.astype(jnp.int8)
    zeros = jnp.zeros_like(codes)
    # Everything of a lane lies together, in the order of the lanes.
    columns = [jnp.concatenate([codes if i == j else zeros for j in range(joined)], axis=1) for i in range(joined)]
    products = lax.dot_general(
        int8_head.codes.reshape((-1, joined * hidden)),
        own_array(jnp.stack(columns, axis=1).reshape((-1, joined * hidden))),
        (((1,), (1,)), ((), ())),
        preferred_element_type=jnp.int32,
    )
    products = own_array(products).reshape((-1, lanes, joined)).astype(jnp.float32)
    logits = int8_head.scale[:, None] * step.T * jnp.swapaxes(products, 1, 2).reshape((vocab, lanes))
    bounds = logits + int8_head.radius[:, None] * norm.T + int8_head.reach[:, None] * rounded.T
    bounds = own_array(jnp.where(jnp.isnan(bounds), jnp.inf, bounds))
    return jnp.max(bounds.reshape((-1, GROUP, lanes)), axis=1).T


class _Search(NamedTuple):
    """Where the search for one lane's token stands.

    Attributes:
        bounds: of the groups that are left; -inf for the others.
        next: the first group of the highest bound.
        highest, token: the highest logit so far, and the first token that has it.
        wrong: a logit is NaN.
        looked: groups whose logits have been computed.
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
    """The most likely token of one lane, by the logits of one group after another."""
    even, odd = x[None, 0::2], x[None, 1::2]
    vocab = jnp.int32(len(head))

    def goes_on(found: _Search) -> Bool[Array, ""]:
        return asked & ~found.wrong & (found.looked < len(bounds)) & (found.bounds[found.next] >= found.highest)

    def look(found: _Search) -> _Search:
        low, high = unpack_u32(lax.dynamic_slice_in_dim(head, found.next * GROUP, GROUP))
        logits = jnp.sum(low * even + high * odd, axis=1)
        highest, token = jnp.max(logits), found.next * GROUP + lax.argmax(logits, 0, jnp.int32)
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
