"""Changes of logits before sampling: penalties, biases, bans, and masks of grammars."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32, UInt32

from hybridlm.sampling.sampling import HostOrDevice

MASK_BITS = 32
"""Tokens per word of a mask."""


class LogitChanges(NamedTuple):
    """Changed logits: by `bias`, then `repetition`, then `penalty`, per lane.

    Attributes:
        tokens: ids; beyond the vocabulary for no token.
        bias: -inf bans the token.
        repetition: divides a logit of at least 0, multiplies a lower one; 1 for none.
        mask: bit `token % 32` of word `token // 32` allows the token, per lane or, in a verifying step, per token.
    """

    tokens: Int32[HostOrDevice, "lane change"]
    bias: Float32[HostOrDevice, "lane change"]
    repetition: Float32[HostOrDevice, "lane change"]
    penalty: Float32[HostOrDevice, "lane change"]
    mask: UInt32[HostOrDevice, "lane *token word"] | None = None


def changed_logits(logits: Float32[Array, "lane vocab"], changes: LogitChanges) -> Float32[Array, "lane vocab"]:
    tokens = jnp.asarray(changes.tokens)
    old = jnp.take_along_axis(logits, tokens, axis=1, mode="fill", fill_value=0.0) + changes.bias
    new = jnp.where(old < 0, old * changes.repetition, old / changes.repetition) - changes.penalty

    def written(row: Array, tokens: Array, new: Array) -> Array:
        return row.at[tokens].set(new, mode="drop")

    return jax.vmap(written)(logits, tokens, new)


def mask_words(vocab_size: int) -> int:
    return -(-vocab_size // MASK_BITS)


def masked_logits(
    logits: Float32[Array, "row vocab"], mask: UInt32[HostOrDevice, "row word"]
) -> Float32[Array, "row vocab"]:
    """Return the logits with -inf for tokens with bit 0; NaN stays."""
    allowed = _unpacked(jnp.asarray(mask))[:, : logits.shape[1]]
    return jnp.where(allowed | jnp.isnan(logits), logits, -jnp.inf)


def _unpacked(mask: UInt32[Array, "row word"]) -> Bool[Array, "row token"]:
    bits = (mask[:, :, None] >> np.arange(MASK_BITS, dtype=np.uint32)[None, None]) & np.uint32(1)
    return bits.reshape((mask.shape[0], -1)) == np.uint32(1)


def only_allowed(token: Int32[Array, "row"], logits: Float32[Array, "row vocab"], no_token: int) -> Int32[Array, "row"]:
    """Return sampled tokens, or `no_token` if the changed logit is -inf; `vocab` (NaN) stays."""
    vocab = logits.shape[1]
    valid_token = jnp.where(token < vocab, token, 0)[:, None]
    chosen = jnp.take_along_axis(logits, valid_token, axis=1, mode="fill")[:, 0]
    return jnp.where((token < vocab) & (chosen == -jnp.inf), jnp.int32(no_token), token)
