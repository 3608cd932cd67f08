"""Drawing the next token of every lane from its logits, each lane by itself.

The key of a draw is (seed, index of the request, position of the token); nothing else enters, so a sequence draws the
same tokens whatever its batch-mates, its lane and the number of lanes are.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32, UInt32

HostOrDevice = Array | np.ndarray

LogitsProcessor = Callable[[Float32[Array, "vocab"], Int32[Array, ""], Int32[Array, ""]], Float32[Array, "vocab"]]
"""(logits of one lane, the last token it consumed, the position of the token to draw) -> logits; jittable."""


class Sampling(NamedTuple):
    """How each lane draws its next token: temperature, then top_k, then top_p of what is left, then min_p.

    Attributes:
        temperature: 0 for the most likely token.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the most likely tokens whose probability adds up to p (nucleus); 1 keeps all.
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


def most_likely(logits: Float32[Array, "row vocab"]) -> Int32[Array, "row"]:
    """The first index of each row's maximum; `vocab` where a row holds NaN, which no token id is.

    The maximum of groups of tokens, then the first group that has it, then its first token: the logits are read once.
    """
    rows, vocab = logits.shape
    size = math.gcd(vocab, 128)
    count = vocab // size
    groups = logits.reshape((rows, count, size))
    highest = jnp.max(groups, axis=2)
    top = jnp.max(highest, axis=1, keepdims=True)
    first = _first(highest == top)
    inside = jnp.where(first < count, first, 0)
    group = jnp.take_along_axis(groups, inside[:, None, None], axis=1, mode="fill")[:, 0]
    return jnp.where(first < count, inside * size + _first(group == top), jnp.int32(vocab))


def _first(found: Bool[Array, "row place"]) -> Int32[Array, "row"]:
    """The first true place of each row, or how many there are."""
    places = jnp.arange(found.shape[1], dtype=jnp.int32)[None]
    return jnp.min(jnp.where(found, places, jnp.int32(found.shape[1])), axis=1)


def _draw_lane(logits: Array, sampling: Sampling, position: Array) -> Array:
    """One lane: logits [vocab] -> token."""
    vocab = logits.shape[0]
    scaled = logits / jnp.where(sampling.temperature > 0, sampling.temperature, 1.0)
    ordered, tokens = lax.top_k(scaled, vocab)
    keep = (sampling.top_k == 0) | (jnp.arange(vocab, dtype=jnp.int32) < sampling.top_k)
    probability = jax.nn.softmax(jnp.where(keep, ordered, -jnp.inf))
    before = jnp.cumsum(probability) - probability
    keep &= (sampling.top_p >= 1.0) | (before < sampling.top_p)
    keep &= probability >= sampling.min_p * probability[0]
    key = jax.random.wrap_key_data(jnp.asarray(sampling.seed), impl="threefry2x32")
    key = jax.random.fold_in(jax.random.fold_in(key, sampling.index), position)
    noise = jax.random.gumbel(key, (vocab,), jnp.float32)[tokens]
    return tokens[jnp.argmax(jnp.where(keep, ordered + noise, -jnp.inf))].astype(jnp.int32)


def draw(
    logits: Float32[Array, "lane vocab"],
    sampling: Sampling,
    positions: Int32[Array, "lane"],
    any_sampled: Bool[Array, ""],
) -> Int32[Array, "lane"]:
    """The next token of every lane; `vocab` for a lane whose logits hold NaN.

    Args:
        logits: after any processing.
        sampling: settings of each lane.
        positions: the position in its sequence that each lane's token will have.
        any_sampled: false where the host knows that every lane has temperature 0; the result is the same.
    """
    greedy = most_likely(logits)

    def sampled() -> Array:
        tokens = jax.vmap(_draw_lane)(logits, sampling, positions)
        return jnp.where((sampling.temperature > 0) & (greedy < logits.shape[1]), tokens, greedy)

    return lax.cond(any_sampled, sampled, lambda: greedy)
