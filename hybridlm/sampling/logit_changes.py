"""Changes of single tokens' logits before sampling: penalties, biases and bans, for each lane its own."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int32

from hybridlm.sampling.sampling import HostOrDevice


class LogitChanges(NamedTuple):
    """The tokens of each lane whose logits change: first by `bias`, then by `repetition`, then by `penalty`.

    Attributes:
        tokens: their ids; an id beyond the vocabulary stands for no token.
        bias: added to the logit; -inf bans the token.
        repetition: divides a logit that is at least 0, and multiplies one below; 1 for none.
        penalty: subtracted.
    """

    tokens: Int32[HostOrDevice, "lane change"]
    bias: Float32[HostOrDevice, "lane change"]
    repetition: Float32[HostOrDevice, "lane change"]
    penalty: Float32[HostOrDevice, "lane change"]


def changed_logits(logits: Float32[Array, "lane vocab"], changes: LogitChanges) -> Float32[Array, "lane vocab"]:
    """Return the logits of every lane with its changes."""
    tokens = jnp.asarray(changes.tokens)
    old = jnp.take_along_axis(logits, tokens, axis=1, mode="fill", fill_value=0.0) + changes.bias
    new = jnp.where(old < 0, old * changes.repetition, old / changes.repetition) - changes.penalty

    def written(row: Array, tokens: Array, new: Array) -> Array:
        return row.at[tokens].set(new, mode="drop")

    return jax.vmap(written)(logits, tokens, new)
