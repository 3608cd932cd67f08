"""Logits over a vocabulary that may be sharded, in order, over the `model` axis.

Devices answer queries for their shards; only answers are exchanged.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from hybridlm.sampling.sampling import group_max, most_likely
from models import DecoderConfig
from models.ops.layout import materialize
from models.sharding.devices import MODEL, local_rows

Logits = Float32[Array, "row held"]
SUM_TERMS = 16
"""Terms that are added element by element; 8 and 32 are as fast."""


class Vocabulary(NamedTuple):
    """The vocabulary of a model: `shard_size` tokens on each of `devices`."""

    shard_size: int
    devices: int = 1

    @staticmethod
    def of(config: DecoderConfig) -> "Vocabulary":
        return Vocabulary(config.vocab_size, config.devices.model)

    @property
    def size(self) -> int:
        return self.shard_size * self.devices

    def whole(self, logits: Logits) -> Float32[Array, "row vocab"]:
        if self.devices == 1:
            return logits
        return lax.all_gather(logits, MODEL, axis=1, tiled=True, to="invarying")

    def log_total(self, logits: Logits, differentiable: bool = False) -> Float32[Array, "row 1"]:
        """Return log(sum(exp(logits))) over the vocabulary, per row.

        Args:
            differentiable: the maximum has no gradient; the numbers are equal.
        """
        top = jnp.max(group_max(lax.stop_gradient(logits) if differentiable else logits), axis=1, keepdims=True)
        if self.devices > 1:
            top = lax.pmax(top, MODEL)
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        total = sum_of_terms(logits.shape, lambda cut: jnp.exp(cut(logits) - top))
        return top + jnp.log(total if self.devices == 1 else lax.psum(total, MODEL))

    def entropy(self, logits: Logits, total: Float32[Array, "row 1"]) -> Float32[Array, "row 1"]:
        """Return each row's entropy in nats, given `log_total`."""

        def term(cut: Callable[[Array], Array]) -> Array:
            logprob = cut(logits) - total
            # A token without probability adds nothing: 0 * -inf is NaN.
            return jnp.where(jnp.isneginf(logprob), 0.0, -jnp.exp(logprob) * logprob)

        return self.sum(logits.shape, term)

    def sum(self, shape: tuple[int, ...], term: Callable[[Callable[[Array], Array]], Array]) -> Float32[Array, "row 1"]:
        """Return the sum of terms along each row over all shards; see `sum_of_terms`."""
        partial_sum = sum_of_terms(shape, term)
        return partial_sum if self.devices == 1 else lax.psum(partial_sum, MODEL)

    def same_most_likely(self, logits: Logits, other: Logits) -> Bool[Array, "row"]:
        """Whether two models have the same most likely token; ties go to the first."""
        if self.devices == 1:
            return most_likely(logits) == most_likely(other)
        return self.is_most_likely(other, self.best(logits, 1)[1][:, 0])

    def rank(self, logits: Logits, token: Int32[Array, "row"], logit: Float32[Array, "row 1"]) -> Int32[Array, "row"]:
        """Return the rank of each row's token, from 1, in the order of `best`.

        Args:
            logits: materialized, so that the token's logit is the same everywhere.
        """
        ids = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
        if self.devices > 1:
            ids = ids + lax.axis_index(MODEL) * self.shard_size
        precedes = (logits > logit) | ((logits == logit) & (ids < token[:, None]))
        count = jnp.sum(precedes, axis=1, dtype=jnp.int32)
        return 1 + (count if self.devices == 1 else lax.psum(count, MODEL))

    def logit(self, logits: Logits, token: Int32[Array, "row"]) -> Float32[Array, "row 1"]:
        if self.devices == 1:
            return jnp.take_along_axis(logits, token[:, None], axis=1, mode="fill")
        is_local, index = local_rows(token, MODEL, self.shard_size)
        index = jnp.where(is_local, index, 0)
        local_logit = jnp.take_along_axis(logits, index[:, None], axis=1, mode="fill")
        return lax.psum(jnp.where(is_local[:, None], local_logit, 0.0), MODEL)

    def best(self, logits: Logits, count: int) -> tuple[Float32[Array, "row top"], Int32[Array, "row top"]]:
        """Return the highest logits of each row and their tokens; ties in token order."""
        best, tokens = lax.top_k(logits, min(count, self.shard_size))
        if self.devices == 1:
            return best, tokens
        tokens = tokens + lax.axis_index(MODEL) * self.shard_size
        # Shards are in token order, so the first of equal logits is the lowest token here too.
        best, tokens = (lax.all_gather(array, MODEL, axis=1, tiled=True, to="invarying") for array in (best, tokens))
        best, place = lax.top_k(best, count)
        return best, jnp.take_along_axis(tokens, place, axis=1, mode="fill")

    def is_most_likely(self, logits: Logits, token: Int32[Array, "row"]) -> Bool[Array, "row"]:
        """Whether a token is the first with its row's highest logit; False with NaN."""
        first = most_likely(logits)
        if self.devices == 1:
            return first == token
        wrong = first == self.shard_size
        local_logit = jnp.take_along_axis(logits, jnp.where(wrong, 0, first)[:, None], axis=1, mode="fill")
        local_token = jnp.where(wrong, -1, first + lax.axis_index(MODEL) * self.shard_size)[:, None]
        # Shards are in order as in `best`. XLA may compute a value twice, with different rounding, so comparisons with
        # a device's own logit fail.
        highest, tokens = (
            lax.all_gather(array, MODEL, axis=1, tiled=True, to="invarying") for array in (local_logit, local_token)
        )
        best = jnp.take_along_axis(tokens, jnp.argmax(highest, axis=1, keepdims=True), axis=1, mode="fill")[:, 0]
        return (best == token) & jnp.all(tokens >= 0, axis=1)


def sum_of_terms(shape: tuple[int, ...], term: Callable[[Callable[[Array], Array]], Array]) -> Float32[Array, "row 1"]:
    """Return the sum of terms along each row, slices element by element.

    XLA:CPU's reduction computes exponentials inside its loop: three times slower for uncached logits.

    Args:
        term: (cut) -> terms of one slice; `cut` slices an array [row, width].
    """
    rows, width = shape
    terms = math.gcd(SUM_TERMS, width)

    def cut(place: int) -> Callable[[Array], Array]:
        return lambda array: array.reshape((rows, terms, -1))[:, place]

    sums = functools.reduce(operator.add, (term(cut(i)) for i in range(terms)))
    return jnp.sum(materialize(sums), axis=1, keepdims=True)
