"""Guesses of a model's own head: the tokens behind the one that a lane has sampled, each from the one before."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int32

from hybridlm.sampling.sampling import LogitsProcessor, Sampling, sample_tokens
from hybridlm.sampling.vocab_parallel import Vocabulary
from models import Decoder, MtpDecoder
from models.decoder.mtp import MtpState


class DraftingLanes(NamedTuple):
    """Where lanes stand when they propose_mtp_drafts, and how they draw.

    Attributes:
        consumed: tokens that the step has consumed; a lane of which it is 0 has not sampled, and mtp_drafts nothing.
        positions: of each lane's first token of the step; what it has sampled stands behind those consumed.
        kv_blocks: blocks of the caches that hold the positions of all mtp_drafts.
        sampling, sampling_mode: as the step has them.
    """

    consumed: Int32[Array, "lane"]
    positions: Int32[Array, "lane"]
    kv_blocks: Int32[Array, ""]
    sampling: Sampling
    sampling_mode: Int32[Array, ""]


def propose_mtp_drafts(
    model: Decoder,
    layers: tuple[Any, ...],
    token: Int32[Array, "lane"],
    lanes: DraftingLanes,
    count: int,
    processor: LogitsProcessor | None,
) -> tuple[Int32[Array, "lane propose_mtp_drafts"], tuple[Any, ...]]:
    """The next tokens as the head expects them.

    A propose_mtp_drafts is sampled with the key of its position: the model draws with the same noise later, and where the head's
    logits are like the model's, so is the token. What the head keeps of mtp_drafts lies behind the sequence, at positions
    that nothing looks at before they are written again.

    Args:
        model: with a head.
        layers: its state, of which the head's has consumed all tokens but the one sampled.
        token: what each lane has sampled.
        lanes: where they stand.
        count: how many mtp_drafts.
        processor: changes the logits of each lane before the draw.

    Returns:
        Guesses, each in the vocabulary, and the state.
    """
    assert isinstance(model, MtpDecoder), "a model without a head mtp_drafts nothing"
    *before, head = layers
    rows, hidden, vocabulary = head.layer, head.hidden, Vocabulary.of(model.config)
    one = (lanes.consumed > 0).astype(jnp.int32)

    def inside(token: Array) -> Array:
        # what is sampled from logits that are not numbers is no token
        return jnp.where(token < vocabulary.size, token, 0)

    token, found, drawn_at = inside(token), list[Array](), lanes.positions + lanes.consumed
    for place in range(count):
        # Without a barrier XLA:CPU fuses the mtp_drafts of a single lane into one another without end; of a loop it widens
        # the embedding before it, all of it for the few rows that are taken.
        hidden, token = lax.optimization_barrier((hidden, token))
        at = drawn_at + place
        after, rows = model.consume_pairs(token[:, None], hidden[:, None], one, at, rows, lanes.kv_blocks)
        hidden = after[:, 0]
        logits = vocabulary.whole(model.logits(hidden))
        if processor is not None:
            logits = jax.vmap(processor)(logits, token, at + 1)
        token = inside(sample_tokens(logits, lanes.sampling, at + 1, lanes.sampling_mode))
        found.append(token)
    return jnp.stack(found, axis=1), (*before, MtpState(rows, head.hidden))
