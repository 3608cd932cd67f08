"""Logits over a vocabulary whose rows may be split over the devices along `model`, in order.

What is asked of all logits of a row is asked of each device's part of them first; only these answers are exchanged.
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
from models.ops.layout import own_array
from models.sharding.devices import MODEL, local_rows

Logits = Float32[Array, "row held"]
TERMS = 16
"""Of a sum of exponentials that is computed number by number. 8 and 32 are as fast."""


class Vocabulary(NamedTuple):
    """The vocabulary of a model.

    Attributes:
        held: tokens whose logits one device computes.
        devices: that have a part of it each.
    """

    held: int
    devices: int = 1

    @staticmethod
    def of(config: DecoderConfig) -> "Vocabulary":
        """That of a model, or of the share that one device has of it."""
        return Vocabulary(config.vocab_size, config.devices.model)

    @property
    def size(self) -> int:
        """Tokens of the whole vocabulary."""
        return self.held * self.devices

    def whole(self, logits: Logits) -> Float32[Array, "row vocab"]:
        """All logits, on every device."""
        if self.devices == 1:
            return logits
        return lax.all_gather(logits, MODEL, axis=1, tiled=True, to="invarying")

    def log_total(self, logits: Logits) -> Float32[Array, "row 1"]:
        """log(sum(exp(logits))) over the vocabulary."""
        top = jnp.max(group_max(logits), axis=1, keepdims=True)
        if self.devices > 1:
            top = lax.pmax(top, MODEL)
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        total = _sum_of_exponentials(logits, top)
        return top + jnp.log(total if self.devices == 1 else lax.psum(total, MODEL))

    def logit(self, logits: Logits, token: Int32[Array, "row"]) -> Float32[Array, "row 1"]:
        """The logit of a token of each row."""
        if self.devices == 1:
            return jnp.take_along_axis(logits, token[:, None], axis=1, mode="fill")
        found, inside = local_rows(token, MODEL, self.held)
        inside = jnp.where(found, inside, 0)
        own = jnp.take_along_axis(logits, inside[:, None], axis=1, mode="fill")
        return lax.psum(jnp.where(found[:, None], own, 0.0), MODEL)

    def best(self, logits: Logits, count: int) -> tuple[Float32[Array, "row top"], Int32[Array, "row top"]]:
        """The highest logits of each row and their tokens, best first, of equal ones the lower token."""
        best, tokens = lax.top_k(logits, min(count, self.held))
        if self.devices == 1:
            return best, tokens
        tokens = tokens + lax.axis_index(MODEL) * self.held
        # Parts follow one another in the order of the tokens, so the first of equal ones is the lowest token here too.
        best, tokens = (lax.all_gather(one, MODEL, axis=1, tiled=True, to="invarying") for one in (best, tokens))
        best, place = lax.top_k(best, count)
        return best, jnp.take_along_axis(tokens, place, axis=1, mode="fill")

    def is_most_likely(self, logits: Logits, token: Int32[Array, "row"]) -> Bool[Array, "row"]:
        """Whether a token is the first of those with the highest logit of its row; false where a logit is NaN."""
        first = most_likely(logits)
        if self.devices == 1:
            return first == token
        wrong = first == self.held
        own = jnp.take_along_axis(logits, jnp.where(wrong, 0, first)[:, None], axis=1, mode="fill")
        mine = jnp.where(wrong, -1, first + lax.axis_index(MODEL) * self.held)[:, None]
        # Parts follow one another as in `best`. A device's own number is not looked for among the exchanged ones: XLA
        # may compute it twice, and round it otherwise the second time.
        highest, tokens = (lax.all_gather(one, MODEL, axis=1, tiled=True, to="invarying") for one in (own, mine))
        best = jnp.take_along_axis(tokens, jnp.argmax(highest, axis=1, keepdims=True), axis=1, mode="fill")[:, 0]
        return (best == token) & jnp.all(tokens >= 0, axis=1)


def _sum_of_exponentials(logits: Logits, top: Float32[Array, "row 1"]) -> Float32[Array, "row 1"]:
    """`sum(exp(logits - top))` of each row, in two sums: of slices number by number, then along the row.

    XLA:CPU's own sum along a row computes the exponentials inside, and takes three times as long where no cache holds
    the logits.
    """
    rows, held = logits.shape
    terms = math.gcd(TERMS, held)
    slices = logits.reshape((rows, terms, -1))
    sums = functools.reduce(operator.add, (jnp.exp(slices[:, i] - top) for i in range(terms)))
    return jnp.sum(own_array(sums), axis=1, keepdims=True)
