"""Logits over a vocabulary that may be sharded over the devices of the `model` axis, in order.

Every query is answered by each device for its shard first; only these answers are exchanged.
"""

import functools
import math
import operator
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
"""Terms of a sum of exponentials that are added element by element. 8 and 32 are as fast."""


class Vocabulary(NamedTuple):
    """The vocabulary of a model.

    Attributes:
        held: tokens whose logits one device computes.
        devices: number of shards.
    """

    held: int
    devices: int = 1

    @staticmethod
    def of(config: DecoderConfig) -> "Vocabulary":
        """Return the vocabulary of a model, or of one device's shard of it."""
        return Vocabulary(config.vocab_size, config.devices.model)

    @property
    def size(self) -> int:
        """Tokens of the whole vocabulary."""
        return self.held * self.devices

    def whole(self, logits: Logits) -> Float32[Array, "row vocab"]:
        """All-gather the logits."""
        if self.devices == 1:
            return logits
        return lax.all_gather(logits, MODEL, axis=1, tiled=True, to="invarying")

    def log_total(self, logits: Logits) -> Float32[Array, "row 1"]:
        """Return log(sum(exp(logits))) over the vocabulary."""
        top = jnp.max(group_max(logits), axis=1, keepdims=True)
        if self.devices > 1:
            top = lax.pmax(top, MODEL)
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        total = _sum_of_exponentials(logits, top)
        return top + jnp.log(total if self.devices == 1 else lax.psum(total, MODEL))

    def logit(self, logits: Logits, token: Int32[Array, "row"]) -> Float32[Array, "row 1"]:
        """Return the logit of one token per row."""
        if self.devices == 1:
            return jnp.take_along_axis(logits, token[:, None], axis=1, mode="fill")
        found, inside = local_rows(token, MODEL, self.held)
        inside = jnp.where(found, inside, 0)
        own = jnp.take_along_axis(logits, inside[:, None], axis=1, mode="fill")
        return lax.psum(jnp.where(found[:, None], own, 0.0), MODEL)

    def best(self, logits: Logits, count: int) -> tuple[Float32[Array, "row top"], Int32[Array, "row top"]]:
        """Return the highest logits of each row and their tokens, best first, the lower token first if equal."""
        best, tokens = lax.top_k(logits, min(count, self.held))
        if self.devices == 1:
            return best, tokens
        tokens = tokens + lax.axis_index(MODEL) * self.held
        # Shards are in the order of the tokens, so the first of equal logits is the lowest token here too.
        best, tokens = (lax.all_gather(one, MODEL, axis=1, tiled=True, to="invarying") for one in (best, tokens))
        best, place = lax.top_k(best, count)
        return best, jnp.take_along_axis(tokens, place, axis=1, mode="fill")

    def is_most_likely(self, logits: Logits, token: Int32[Array, "row"]) -> Bool[Array, "row"]:
        """Whether a token is the first one with the highest logit of its row; false if a logit is NaN."""
        first = most_likely(logits)
        if self.devices == 1:
            return first == token
        wrong = first == self.held
        own = jnp.take_along_axis(logits, jnp.where(wrong, 0, first)[:, None], axis=1, mode="fill")
        mine = jnp.where(wrong, -1, first + lax.axis_index(MODEL) * self.held)[:, None]
        # Shards are in order as in `best`. Indices, not comparisons with a device's own logit: XLA may compute a value
        # twice, with different rounding.
        highest, tokens = (lax.all_gather(one, MODEL, axis=1, tiled=True, to="invarying") for one in (own, mine))
        best = jnp.take_along_axis(tokens, jnp.argmax(highest, axis=1, keepdims=True), axis=1, mode="fill")[:, 0]
        return (best == token) & jnp.all(tokens >= 0, axis=1)


def _sum_of_exponentials(logits: Logits, top: Float32[Array, "row 1"]) -> Float32[Array, "row 1"]:
    """Return `sum(exp(logits - top))` of each row: slices are added element by element, then along the row.

    XLA:CPU's own reduction computes the exponentials inside its loop, and takes three times as long for uncached
    logits.
    """
    rows, held = logits.shape
    terms = math.gcd(SUM_TERMS, held)
    slices = logits.reshape((rows, terms, -1))
    sums = functools.reduce(operator.add, (jnp.exp(slices[:, i] - top) for i in range(terms)))
    return jnp.sum(materialize(sums), axis=1, keepdims=True)
