"""Drafts of the multi-token-prediction (MTP) head, each from the previous token."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int32

from hybridlm.sampling.sampling import LogitsProcessor, sample_tokens
from hybridlm.sampling.vocab_parallel import Vocabulary
from hybridlm.steps.operands import StepInputs
from models import Decoder, MtpDecoder
from models.decoder.mtp import MtpState
from models.state.rows import take_rows


def propose_mtp_drafts(
    model: Decoder,
    layers: tuple[Any, ...],
    token: Int32[Array, "lane"],
    inputs: StepInputs,
    consumed: Int32[Array, "lane"],
    count: int,
    processor: LogitsProcessor | None,
) -> tuple[Int32[Array, "lane propose_mtp_drafts"], tuple[Any, ...]]:
    """Draft the next tokens with the MTP head.

    A draft is sampled with the key of its position: the model later samples with the same noise, and where the head's
    logits are like the model's, so is the token. The head's keys and values of drafts are after the end of the
    sequence, at positions that are written again before they are read.

    Args:
        model: a model with an MTP head.
        layers: its state; the head has consumed all tokens except the sampled one.
        token: the token that each lane has sampled.
        inputs: inputs of the step; its KV cache blocks hold the positions of all drafts.
        consumed: number of tokens that the step has consumed; a lane with 0 has not sampled, and gets no drafts.
        count: number of drafts.
        processor: changes the logits of each lane before sampling.

    Returns:
        Drafts, all in the vocabulary, and the state.
    """
    assert isinstance(model, MtpDecoder), "a model without an MTP head drafts nothing"
    *body, head = layers
    slots, rows, vocabulary = inputs.batch.slots, head.layer, Vocabulary.of(model.config)
    hidden = take_rows(head.hidden, slots)
    length, (sampling, sampling_mode) = (consumed > 0).astype(jnp.int32), inputs.required_sampling

    def inside(token: Array) -> Array:
        # sampling from NaN logits gives an id outside the vocabulary
        return jnp.where(token < vocabulary.size, token, 0)

    token, drafts, start = inside(token), list[Array](), inputs.batch.positions + consumed
    for place in range(count):
        # Without a barrier XLA:CPU fuses the drafts of a single lane into one another endlessly; before a loop it would
        # convert the whole embedding to float32 for the few rows that are read.
        hidden, token = lax.optimization_barrier((hidden, token))
        position = start + place
        residual, rows = model.mtp_forward(
            token[:, None], hidden[:, None], length, position, rows, inputs.batch.kv_blocks, slots, inputs.batch.pages
        )
        hidden = residual[:, 0]
        logits = vocabulary.whole(model.logits(hidden))
        if processor is not None:
            logits = jax.vmap(processor)(logits, token, position + 1)
        devices = model.config.devices
        token = inside(sample_tokens(logits, sampling, position + 1, sampling_mode, devices))
        drafts.append(token)
    return jnp.stack(drafts, axis=1), (*body, MtpState(rows, head.hidden))
