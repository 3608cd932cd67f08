"""Drawing the next token of every lane from its logits, each lane by itself.

The key of a draw is (seed, index of the request, position of the token); nothing else enters, so a sequence draws the
same tokens whatever its batch-mates, its lane and the number of lanes are.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32, UInt32

from models.ops.layout import own_array
from models.sharding.varying import varying_like

HostOrDevice = Array | np.ndarray

LogitsProcessor = Callable[[Float32[Array, "vocab"], Int32[Array, ""], Int32[Array, ""]], Float32[Array, "vocab"]]
"""(logits of one lane, the last token it consumed, the position of the token to draw) -> logits; jittable."""


SLICES = 16
"""Of a row, in which NaN is looked for."""


class Sampling(NamedTuple):
    """How each lane draws its next token: temperature, then top_k, then top_p of what is left, then min_p.

    Attributes:
        temperature: 0 for the most likely token.
        top_k: keep the k most likely tokens, and those as likely as the last of them; 0 keeps all.
        top_p: keep tokens where those that are more likely have less than this probability together; 1 keeps all.
        min_p: keep tokens at least min_p times as likely as the most likely one; 0 keeps all.
        seed: 64-bit seed in two words, high and low.
        index: index of the request.
    """

    temperature: Float32[HostOrDevice, "lane"]
    top_k: Int32[HostOrDevice, "lane"]
    top_p: Float32[HostOrDevice, "lane"]
    min_p: Float32[HostOrDevice, "lane"]
    seed: UInt32[HostOrDevice, "lane 2"]
    index: UInt32[HostOrDevice, "lane"]


def _groups(logits: Float32[Array, "row vocab"]) -> Float32[Array, "row group token"]:
    """Tokens next to each other, in groups of one size."""
    rows, vocab = logits.shape
    return logits.reshape((rows, -1, math.gcd(vocab, 128)))


def group_max(logits: Float32[Array, "row vocab"]) -> Float32[Array, "row group"]:
    """The maximum of each group of tokens; computed once in a step, whoever asks for it. It may overlook NaN."""
    return jnp.max(_groups(logits), axis=2)


def has_nan(logits: Float32[Array, "row vocab"]) -> Bool[Array, "row"]:
    """Whether some logit of a row is NaN.

    No maximum tells: from some thousand numbers on XLA:CPU leaves it to a library, whose maximum of numbers and NaN is
    one of the numbers, and of NaN alone -inf. Slices of a row number by number, as a sum along it takes longer.
    """
    rows, vocab = logits.shape
    slices = logits.reshape((rows, math.gcd(vocab, SLICES), -1))
    found = functools.reduce(operator.or_, (jnp.isnan(slices[:, i]) for i in range(slices.shape[1])))
    return jnp.any(own_array(found), axis=1)


def most_likely(logits: Float32[Array, "row vocab"]) -> Int32[Array, "row"]:
    """The first index of each row's maximum; `vocab` where a row holds NaN, which no token id is."""
    return jnp.where(has_nan(logits), jnp.int32(logits.shape[1]), grouped_argmax(logits))


def grouped_argmax(logits: Float32[Array, "row vocab"]) -> Int32[Array, "row"]:
    """The first index of each row's maximum, where nothing is NaN.

    The maximum of groups of tokens, then the first group that has it, then its first token: the logits are read once.
    """
    groups = _groups(logits)
    size = groups.shape[2]
    highest = group_max(logits)
    # No number is looked for by its value: XLA may compute it twice, and round it otherwise the second time.
    first = lax.argmax(highest, 1, jnp.int32)
    group = jnp.take_along_axis(groups, first[:, None, None], axis=1, mode="fill")[:, 0]
    return first * size + lax.argmax(group, 1, jnp.int32)


GREEDY, SAMPLED, FILTERED = range(3)
"""How the lanes of a step draw: the most that one of them asks for. More takes longer and changes no token."""
BESIDE_GREEDY = 4
"""Added to more than GREEDY where another lane has temperature 0."""
MAX_BATCHED_LOGITS = 1_800_000
"""Logits that are sampled together. Of more lanes each is sampled by itself: XLA would map the scratch of the step anew
in every call (docs/performance.md). Of fewer, it computes what is one lane's on one core."""


def _noise(sampling: Sampling, position: Array, vocab: int) -> Array:
    """What is added to the logits of one lane, so that the highest of the sums is a draw (the Gumbel-max trick)."""
    key = jax.random.wrap_key_data(jnp.asarray(sampling.seed), impl="threefry2x32")
    key = jax.random.fold_in(jax.random.fold_in(key, sampling.index), position)
    return jax.random.gumbel(key, (vocab,), jnp.float32)


def kept_by_filters(scaled: Float32[Array, "lane vocab"], sampling: Sampling) -> Bool[Array, "lane vocab"]:
    """Which tokens the filters of each lane leave, the most likely ones always.

    Every filter keeps the tokens whose logit is at least some cutoff, so of equally likely tokens all or none, and
    nothing has to be sorted.

    Args:
        scaled: logits divided by the temperature.
        sampling: settings of each lane.
    """
    order = _order(scaled)
    highest = jnp.max(scaled, axis=1, keepdims=True)
    best = jnp.max(order, axis=1)
    ones = jnp.ones(scaled.shape, jnp.float32)
    cutoff = jnp.where(
        sampling.top_k > 0, _cutoff(order, ones, jnp.asarray(sampling.top_k, jnp.float32)), jnp.uint32(0)
    )
    keep = order >= cutoff[:, None]
    # in units of the probability of the most likely token, whose logit may be infinite
    weight = jnp.where(scaled == highest, 1.0, jnp.where(keep, jnp.exp(scaled - highest), 0.0))
    enough = jnp.asarray(sampling.top_p) * jnp.sum(weight, axis=1)
    cutoff = jnp.where(sampling.top_p < 1.0, jnp.minimum(_cutoff(order, weight, enough), best), jnp.uint32(0))
    first = jnp.arange(scaled.shape[1], dtype=jnp.int32)[None] == grouped_argmax(scaled)[:, None]
    return first | (keep & (order >= cutoff[:, None]) & (weight >= sampling.min_p[:, None]))


def _order(x: Float32[Array, "lane vocab"]) -> UInt32[Array, "lane vocab"]:
    """Integers in the order of floats, equal for equal ones."""
    bits = lax.bitcast_convert_type(jnp.where(x == 0.0, 0.0, x), jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def _cutoff(
    order: UInt32[Array, "lane vocab"], weight: Float32[Array, "lane vocab"], enough: Float32[Array, "lane"]
) -> UInt32[Array, "lane"]:
    """The lowest place in the order above which the weights of a lane add up to less than `enough`, by bisection."""

    def halve(bounds: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        low, high = bounds
        middle = low + (high - low) // 2
        above = jnp.sum(jnp.where(order > middle[:, None], weight, 0.0), axis=1) < enough
        return (jnp.where(above, low, middle + 1), jnp.where(above, middle, high)), None

    lanes = order.shape[0]
    bounds = (jnp.zeros(lanes, jnp.uint32), jnp.full(lanes, 0xFFFFFFFF, jnp.uint32))
    (cutoff, _), _ = lax.scan(halve, varying_like(bounds, order), length=32)
    return cutoff


def sample_tokens(
    logits: Float32[Array, "lane vocab"],
    sampling: Sampling,
    positions: Int32[Array, "lane"],
    sampling_mode: Int32[Array, ""],
) -> Int32[Array, "lane"]:
    """The next token of every lane; `vocab` for a lane whose logits hold NaN.

    Args:
        logits: after any processing.
        sampling: settings of each lane.
        positions: the position in its sequence that each lane's token will have.
        sampling_mode: `GREEDY` where the host knows that every lane has temperature 0, `SAMPLED` where no lane that has a
            temperature has a filter, `FILTERED` otherwise; `BESIDE_GREEDY` changes nothing here.
    """
    greedy = most_likely(logits)

    def alone(lane: tuple[Array, Array, Sampling, Array]) -> Array:
        logits, greedy, sampling, position = jax.tree.map(lambda x: x[None], lane)
        return _sampled(logits, greedy, sampling, position, sampling_mode)[0]

    def sampled() -> Array:
        of_lanes = (logits, greedy, jax.tree.map(jnp.asarray, sampling), positions)
        if logits.size <= MAX_BATCHED_LOGITS:
            return _sampled(*of_lanes, sampling_mode)
        return lax.map(alone, of_lanes)

    return lax.cond(sampling_mode == GREEDY, lambda: greedy, sampled)


def _sampled(
    logits: Float32[Array, "lane vocab"],
    greedy: Int32[Array, "lane"],
    sampling: Sampling,
    positions: Int32[Array, "lane"],
    sampling_mode: Int32[Array, ""],
) -> Int32[Array, "lane"]:
    """The tokens of `sample_tokens` where some lanes have a temperature; `greedy` is what the others have."""
    vocab = logits.shape[1]
    scaled = logits / jnp.where(sampling.temperature > 0, sampling.temperature, 1.0)[:, None]
    kept = lax.cond(
        sampling_mode % BESIDE_GREEDY == FILTERED,
        lambda: kept_by_filters(scaled, sampling),
        lambda: varying_like(jnp.ones(logits.shape, jnp.bool_), scaled),
    )
    noise = jax.vmap(lambda sampling, position: _noise(sampling, position, vocab))(sampling, positions)
    tokens = grouped_argmax(jnp.where(kept, scaled + noise, -jnp.inf))
    return jnp.where((sampling.temperature > 0) & (greedy < vocab), tokens, greedy)
