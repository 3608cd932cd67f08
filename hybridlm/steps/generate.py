"""The generating step: prefill or decode of one chunk, and one sampled token per lane.

A lane of length 0 keeps its rows.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32, Int32

from hybridlm.sampling.logit_changes import changed_logits, masked_logits, only_allowed
from hybridlm.sampling.sampling import LogitsProcessor, sample_tokens
from hybridlm.sampling.vocab_parallel import Vocabulary
from hybridlm.steps.hooks import HiddenRows, ProbeHooks
from hybridlm.steps.operands import StepInputs
from hybridlm.steps.structure import Rows, Step, Structure, with_layers
from models import Decoder, MtpDecoder
from models.decoder.decoder import lane_info
from models.decoder.mtp import MtpState
from models.sharding.devices import Devices
from models.state.rows import put_rows, take_rows

LAST_SAMPLED = -1
"""Placeholder for the lane's last sampled token."""
NO_TOKEN = 1
"""Token `vocab + NO_TOKEN` stands for none left by changes of logits."""


class SampledTokens(NamedTuple):
    """Outputs per lane of a generating step, or per token of a verifying step.

    Attributes:
        token: `vocab` where the logits have NaN or the token's own is infinite, `vocab + NO_TOKEN` where a mask and
            other changes leave no token.
        logprob: before temperature and processing.
        top_tokens, top_logprobs: the best first.
        hidden_states: of the lane's last token in some layers.
    """

    token: Int32[Array, "*lane"]
    logprob: Float32[Array, "*lane"] | None
    top_tokens: Int32[Array, "*lane top"] | None
    top_logprobs: Float32[Array, "*lane top"] | None
    mtp_drafts: Int32[Array, "lane propose_mtp_drafts"] | None = None
    hidden_states: HiddenRows | None = None


def generate_step(
    structure: Structure, top: int | None, processor: LogitsProcessor | None, mtp_drafts: int = 0
) -> Step:
    """Make the generating step, with outputs `SampledTokens`.

    Args:
        top: None for tokens alone, otherwise log-probabilities of the token and `top` others.
        mtp_drafts: after the sampled token; `kv_blocks` must have room for them.
    """

    def step(params: tuple[Any, ...], rows: Rows, inputs: StepInputs) -> tuple[SampledTokens, Rows]:
        model = structure.rebuild(params)
        tokens, lengths, positions, slots, kv_blocks, pages = inputs.batch
        tokens = jnp.where(tokens == LAST_SAMPLED, take_rows(rows.token, slots), tokens)
        devices = model.config.devices
        last = jnp.where(lengths > 0, lengths - 1, 0)[:, None]
        probes = inputs.probes
        hooks = None if probes is None else ProbeHooks(probes, positions, tokens.shape[1], devices, last)
        info = lane_info(tokens, lengths, positions, kv_blocks, slots=slots, pages=pages)._replace(hooks=hooks)
        hidden, layers = model.run(tokens, info, rows.layers)
        hidden = jnp.take_along_axis(hidden, last[:, :, None], axis=1, mode="fill")[:, 0]
        last_token = None if processor is None else jnp.take_along_axis(tokens, last, axis=1, mode="fill")[:, 0]

        logits, devices = Vocabulary.of(model.config).whole(model.logits(hidden)), model.config.devices
        sampled = sample_with_logprobs(logits, last_token, positions + lengths, inputs, top, processor, devices)
        if hooks is not None:
            sampled = sampled._replace(hidden_states=hooks.hidden_states)
        rows = Rows(layers, rows.token)
        return finish_step(model, rows, sampled.token, sampled, inputs, lengths, mtp_drafts, processor)

    return step


def finish_step(
    model: Decoder,
    rows: Rows,
    token: Int32[Array, "lane"],
    sampled: SampledTokens,
    inputs: StepInputs,
    consumed: Int32[Array, "lane"],
    mtp_drafts: int,
    processor: LogitsProcessor | None,
) -> tuple[SampledTokens, Rows]:
    """Store each lane's next token in its row, and draft with the MTP head.

    Args:
        rows: new state of the layers, and the tokens before the step.
        consumed: tokens per lane; a lane with 0 keeps its token.
    """
    layers = rows.layers
    if mtp_drafts:
        drafts, layers = propose_mtp_drafts(model, layers, token, inputs, consumed, mtp_drafts, processor)
        sampled = sampled._replace(mtp_drafts=drafts)
    slots = inputs.batch.slots
    last = jnp.where(consumed[:, None] > 0, token[:, None], take_rows(rows.token, slots))
    return sampled, Rows(layers, put_rows(rows.token, slots, last))


def sample_with_logprobs(
    logits: Float32[Array, "row vocab"],
    last_token: Int32[Array, "row"] | None,
    positions: Int32[Array, "row"],
    inputs: StepInputs,
    top: int | None,
    processor: LogitsProcessor | None,
    devices: Devices,
) -> SampledTokens:
    """Sample each row's next token, with its log-probability if requested.

    Args:
        last_token: before the token to sample; None without a processor.
        positions: of the tokens to sample.
        inputs: changes are before the processor, masks after it.
    """
    logprob = top_tokens = top_logprobs = None
    changes, (sampling, sampling_mode) = inputs.changes, inputs.required_sampling
    processed = logits if changes is None else changed_logits(logits, changes)
    if processor is not None:
        assert last_token is not None, "a processor is told what the lane has consumed"
        processed = jax.vmap(processor)(processed, last_token, positions)
    if changes is not None and changes.mask is not None:
        processed = masked_logits(processed, changes.mask)
    with jax.named_scope("sample"):
        token = sample_tokens(processed, sampling, positions, sampling_mode, devices)
    vocab = logits.shape[1]
    if changes is not None or processor is not None:
        token = only_allowed(token, processed, vocab + NO_TOKEN)
    chosen = jnp.take_along_axis(logits, jnp.where(token < vocab, token, 0)[:, None], axis=1, mode="fill")
    # A processor may force a token by an infinite logit; the model may not.
    token = jnp.where((token < vocab) & ~jnp.isfinite(chosen[:, 0]), jnp.int32(vocab), token)
    if top is not None:
        total = Vocabulary(vocab).log_total(logits)
        logprob = (chosen - total)[:, 0]
        if top > 0:
            best, top_tokens = lax.top_k(logits, top)
            top_logprobs = best - total
    return SampledTokens(token, logprob, top_tokens, top_logprobs)


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

    A draft has the key of its position: the model later samples with the same noise. The head's keys and values of
    drafts are written again before they are read.

    Args:
        layers: the head has consumed all tokens except the sampled one.
        inputs: KV cache blocks have room for all drafts.
        consumed: a lane with 0 has not sampled, and gets no drafts.

    Returns:
        `count` drafts, all in the vocabulary, and the state.
    """
    assert isinstance(model, MtpDecoder), "a model without an MTP head drafts nothing"
    *body, head = layers
    slots, rows, vocabulary = inputs.batch.slots, head.layer, Vocabulary.of(model.config)
    hidden = take_rows(head.hidden, slots)
    length, (sampling, sampling_mode) = (consumed > 0).astype(jnp.int32), inputs.required_sampling

    def inside(token: Array) -> Array:
        # NaN logits give an id outside the vocabulary
        return jnp.where(token < vocabulary.size, token, 0)

    token, drafts, start = inside(token), list[Array](), inputs.batch.positions + consumed
    for place in range(count):
        # Without a barrier XLA:CPU fuses the drafts of a single lane into one another endlessly; before a loop it would
        # convert the whole embedding to float32 for a few rows.
        hidden, token = lax.optimization_barrier((hidden, token))
        position = start + place
        tokens, pages = token[:, None], inputs.batch.pages
        info = lane_info(tokens, length, position, inputs.batch.kv_blocks, slots=slots, pages=pages)
        residual, rows = model.mtp_forward(tokens, hidden[:, None], info, rows)
        hidden = residual[:, 0]
        logits = vocabulary.whole(model.logits(hidden))
        if processor is not None:
            logits = jax.vmap(processor)(logits, token, position + 1)
        devices = model.config.devices
        token = inside(sample_tokens(logits, sampling, position + 1, sampling_mode, devices))
        drafts.append(token)
    return jnp.stack(drafts, axis=1), (*body, MtpState(rows, head.hidden))


def hidden_step(structure: Structure) -> Step:
    """Make the step with outputs `hidden`, float32 [N, T, hidden]; padding has no meaning."""

    def step(
        params: tuple[Any, ...], rows: Rows, inputs: StepInputs
    ) -> tuple[Float32[Array, "lane token hidden"], Rows]:
        tokens, lengths, positions, slots, kv_blocks, pages = inputs.batch
        hidden, layers = structure.rebuild(params)(
            tokens, lengths, positions, rows.layers, kv_blocks, slots=slots, pages=pages
        )
        return hidden, with_layers(rows, layers, slots)

    return step
