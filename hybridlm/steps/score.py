"""The scoring step: log-probabilities of given tokens."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from hybridlm.sampling.vocab_parallel import Vocabulary
from hybridlm.steps.hooks import HiddenRows, ProbeHooks
from hybridlm.steps.operands import Chosen, StepInputs
from hybridlm.steps.structure import Rows, Step, Structure, with_layers
from models import Decoder
from models.decoder.decoder import lane_info
from models.ops.layout import materialize

MAX_HEAD_BYTES, MIN_HEAD_ROWS = 16 << 20, 128
"""Maximum bytes of logits in the head at a time, and minimum rows, which share one read of its weight."""


class Scored(NamedTuple):
    """Outputs of a scoring step for each position's target; None unless requested.

    Attributes:
        greedy: the target is the most likely token.
        top_tokens, top_logprobs: the best first.
        rank: from 1.
        entropy: in nats.
    """

    logprob: Float32[Array, "lane token"]
    greedy: Bool[Array, "lane token"]
    top_tokens: Int32[Array, "lane token top"] | None
    top_logprobs: Float32[Array, "lane token top"] | None
    rank: Int32[Array, "lane token"] | None = None
    entropy: Float32[Array, "lane token"] | None = None
    chosen_logprobs: Float32[Array, "lane token chosen"] | None = None
    chosen_ranks: Int32[Array, "lane token chosen"] | None = None
    hidden_states: HiddenRows | None = None


def score_step(structure: Structure, top: int) -> Step:
    """Make the scoring step, with outputs `Scored`.

    With `chosen`, ranks, entropy and chosen ids are reported too, at its temperature.
    """

    def step(params: tuple[Any, ...], rows: Rows, inputs: StepInputs) -> tuple[Scored, Rows]:
        model = structure.rebuild(params)
        tokens, lengths, positions, slots, kv_blocks, pages = inputs.batch
        devices, probes = model.config.devices, inputs.probes
        assert inputs.targets is not None, "a step that scores has targets"
        hooks = None if probes is None else ProbeHooks(probes, positions, tokens.shape[1], devices)
        info = lane_info(tokens, lengths, positions, kv_blocks, slots=slots, pages=pages)._replace(hooks=hooks)
        hidden, layers = model.run(tokens, info, rows.layers)
        scored = score_tokens(model, hidden, inputs.targets, top, inputs.chosen)
        if hooks is not None:
            scored = scored._replace(hidden_states=hooks.hidden_states)
        return scored, with_layers(rows, layers, slots)

    return step


def score_tokens(
    model: Decoder,
    hidden: Float32[Array, "lane token hidden"],
    targets: Int32[Array, "lane token"],
    top: int,
    chosen: Chosen | None = None,
) -> Scored:
    """Score tokens by a log-softmax over the vocabulary, in blocks of few logits."""
    vocabulary = Vocabulary.of(model.config)

    def score_block(inputs: tuple[Array, Array]) -> Scored:
        hidden, target = inputs
        logits = model.logits(hidden).reshape((target.size, -1))
        each = target.reshape((-1,))
        total, logit = vocabulary.log_total(logits), vocabulary.logit(logits, each)
        best, ids = vocabulary.best(logits, top) if top else (None, None)
        greedy = vocabulary.is_most_likely(logits, each)
        scored = Scored((logit - total)[:, 0], greedy, ids, None if best is None else best - total)
        return jax.tree.map(lambda x: x.reshape((*target.shape, *x.shape[1:])), scored)

    def describe_block(inputs: tuple[Array, Array, Array, Array]) -> Scored:
        hidden, target, token_ids, temperature = inputs
        logits = model.logits(hidden).reshape((target.size, -1))
        # The last block is padded with zeros. A rank compares logits with one of the same array.
        logits = materialize(logits / jnp.where(temperature > 0, temperature, 1.0).reshape((-1, 1)))
        each = target.reshape((-1,))
        total, logit = vocabulary.log_total(logits), vocabulary.logit(logits, each)
        best, ids = vocabulary.best(logits, top) if top else (None, None)
        rank = vocabulary.rank(logits, each, logit)

        def describe(token: Array) -> tuple[Array, Array]:
            id_logit = vocabulary.logit(logits, token)
            return (id_logit - total)[:, 0], vocabulary.rank(logits, token, id_logit)

        logprobs = ranks = None
        if token_ids.shape[2]:
            # One id at a time costs less than their product, and no memory.
            by_id = jnp.moveaxis(token_ids.reshape((-1, token_ids.shape[2])), 1, 0)
            logprobs, ranks = (jnp.moveaxis(x, 0, 1) for x in lax.map(describe, by_id))
        scored = Scored(
            (logit - total)[:, 0],
            vocabulary.is_most_likely(logits, each),
            ids,
            None if best is None else best - total,
            rank,
            vocabulary.entropy(logits, total)[:, 0],
            logprobs,
            ranks,
        )
        return jax.tree.map(lambda x: x.reshape((*target.shape, *x.shape[1:])), scored)

    if chosen is None:
        return in_blocks(score_block, (hidden, targets), vocabulary.shard_size)
    temperature = jnp.broadcast_to(chosen.temperature[:, None], targets.shape)
    return in_blocks(describe_block, (hidden, targets, chosen.token_ids, temperature), vocabulary.shard_size)


def token_logits(
    model: Decoder,
    hidden: Float32[Array, "lane token hidden"],
    targets: Int32[Array, "lane token"],
    keep_logits: bool,
) -> tuple[Float32[Array, "lane token"], Float32[Array, "lane token vocab"] | None]:
    """Return differentiable log-probabilities of the targets, and their logits or None.

    Bits equal `score_tokens`; a gradient computes a block's logits anew.
    """
    vocabulary = Vocabulary.of(model.config)

    @jax.checkpoint
    def block(inputs: tuple[Array, Array]) -> tuple[Array, Array | None]:
        hidden, target = inputs
        logits = model.logits(hidden).reshape((target.size, -1))
        total = vocabulary.log_total(logits, differentiable=True)
        logit = vocabulary.logit(logits, target.reshape((-1,)))
        block_logits = logits.reshape((*target.shape, -1)) if keep_logits else None
        return (logit - total)[:, 0].reshape(target.shape), block_logits

    return in_blocks(block, (hidden, targets), vocabulary.shard_size)


def in_blocks(describe: Callable[[Any], Any], inputs: tuple[Array, ...], logit_count: int) -> Any:
    """Apply a function to blocks of tokens in sequence and join the results.

    Args:
        describe: arrays [lane, token of the block, ..] -> a pytree of such arrays.
        inputs: arrays [lane, token, ..].
        logit_count: of a token on one device.
    """
    lanes, tokens = inputs[0].shape[:2]
    rows = max(MIN_HEAD_ROWS, MAX_HEAD_BYTES // (4 * logit_count))
    block = min(tokens, max(1, rows // lanes))
    blocks = -(-tokens // block)

    def split(x: Array) -> Array:
        """[lane, token, ..] -> [block, lane, token of the block, ..]."""
        x = jnp.pad(x, [(0, 0), (0, blocks * block - tokens)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape((lanes, blocks, block, *x.shape[2:])), 1, 0)

    def join(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape((lanes, blocks * block, *x.shape[3:]))[:, :tokens]

    return jax.tree.map(join, lax.map(describe, tuple(map(split, inputs))))
