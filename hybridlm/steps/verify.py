"""The verifying step: forward, sample, accept, and replay accepted tokens in one program.

A lane consumes certain tokens (its last sampled one, or the next of its prompt), then drafts. A draft is accepted if it
equals the token sampled in its place with the usual key, and all earlier drafts were accepted: fixed keys make
rejection sampling unnecessary. Rows are written once, with the accepted tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from hybridlm.sampling.sampling import LogitsProcessor
from hybridlm.sampling.vocab_parallel import Vocabulary
from hybridlm.steps.generate import LAST_SAMPLED, SampledTokens, finish_step, sample_with_logprobs
from hybridlm.steps.operands import StepInputs
from hybridlm.steps.structure import Rows, Step, Structure
from models import Decoder
from models.decoder.decoder import lane_info
from models.state.rows import take_rows


def verify_step(structure: Structure, top: int | None, processor: LogitsProcessor | None, mtp_drafts: int = 0) -> Step:
    """Make the verifying step, with outputs `(accepted, SampledTokens)`.

    Its inputs have `drafts` and `sampling`, and may have `changes`; the first token of a lane may be `LAST_SAMPLED`.
    `accepted` counts tokens per lane. The sample after the last accepted token is the lane's next token; later ones
    have no meaning. The last `drafts[i]` of a lane's tokens are drafts, fewer than all; without drafts all are
    accepted.

    Arguments as for `generate_step`.
    """

    def step(
        params: tuple[Any, ...], rows: Rows, inputs: StepInputs
    ) -> tuple[tuple[Int32[Array, "lane"], SampledTokens], Rows]:
        model = structure.rebuild(params)
        tokens, lengths, positions, slots, kv_blocks, pages = inputs.batch
        tokens = jnp.where(tokens == LAST_SAMPLED, take_rows(rows.token, slots), tokens)
        hidden, pending = model(
            tokens, lengths, positions, rows.layers, kv_blocks, verifying=True, slots=slots, pages=pages
        )
        sampled = _sample_after_each(model, hidden, tokens, inputs, top, processor)
        assert inputs.drafts is not None, "a step that verifies has drafts"
        accepted = accept(tokens, sampled.token, lengths, inputs.drafts)
        info = lane_info(tokens, accepted, positions, kv_blocks, slots=slots)
        layers = model.commit(pending, info, rows.layers)
        last = jnp.where(accepted > 0, accepted - 1, 0)[:, None]
        token = jnp.take_along_axis(sampled.token, last, axis=1, mode="fill")[:, 0]
        rows = Rows(layers, rows.token)
        sampled, rows = finish_step(model, rows, token, sampled, inputs, accepted, mtp_drafts, processor)
        return (accepted, sampled), rows

    return step


def accept(
    tokens: Int32[Array, "lane token"],
    sampled: Int32[Array, "lane token"],
    lengths: Int32[Array, "lane"],
    drafts: Int32[Array, "lane"],
) -> Int32[Array, "lane"]:
    """Return the accepted tokens per lane: certain tokens and drafts before a mismatch.

    Args:
        sampled: the token after each of the tokens.
        lengths: 0 accepts none.
        drafts: at the end of a lane's tokens, fewer than all.
    """
    place = jnp.arange(1, tokens.shape[1], dtype=jnp.int32)[None]
    right = (place < (lengths - drafts)[:, None]) | (tokens[:, 1:] == sampled[:, :-1])
    run = jnp.cumprod((right & (place < lengths[:, None])).astype(jnp.int32), axis=1)
    return jnp.where(lengths > 0, 1 + jnp.sum(run, axis=1, dtype=jnp.int32), 0)


def _sample_after_each(
    model: Decoder, hidden: Array, tokens: Array, inputs: StepInputs, top: int | None, processor: LogitsProcessor | None
) -> SampledTokens:
    """Sample after every token of every lane: [lane, token, ..]."""
    lanes, count, _ = hidden.shape
    changes = inputs.changes
    positions = inputs.batch.positions[:, None] + 1 + jnp.arange(count, dtype=jnp.int32)[None]
    masks = None if changes is None else changes.mask
    changes = None if changes is None else changes._replace(mask=None)
    rows = inputs.required_sampling[0], changes
    row_sampling, changes = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x), count, axis=0), rows)
    if changes is not None and masks is not None:
        changes = changes._replace(mask=jnp.asarray(masks).reshape((lanes * count, -1)))
    logits = Vocabulary.of(model.config).whole(model.logits(hidden).reshape((lanes * count, -1)))
    last = None if processor is None else tokens.reshape(-1)
    devices = model.config.devices
    row_inputs = inputs._replace(sampling=row_sampling, changes=changes)
    sampled = sample_with_logprobs(logits, last, positions.reshape(-1), row_inputs, top, processor, devices)
    return jax.tree.map(lambda x: x.reshape((lanes, count, *x.shape[1:])), sampled)
