"""The scoring step: log-probabilities of given tokens, and its contract."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from hybridlm.sampling.vocab_parallel import Vocabulary
from hybridlm.steps.structure import STATE, Rows, Step, Structure
from ir_passes import Lane, LaneContract, Shared
from models import Decoder

MAX_HEAD_BYTES, MIN_HEAD_ROWS = 32 << 20, 128
"""Maximum bytes of logits that the scoring head holds at a time, and minimum number of rows, which share one read of
the head's weight."""


class Scored(NamedTuple):
    """Outputs of a scoring step for each position's target.

    Attributes:
        logprob: log-probability of the target; meaningless without a target.
        greedy: whether the target is the most likely token.
        top_tokens, top_logprobs: the most likely tokens, best first; None unless requested.
    """

    logprob: Float32[Array, "lane token"]
    greedy: Bool[Array, "lane token"]
    top_tokens: Int32[Array, "lane token top"] | None
    top_logprobs: Float32[Array, "lane token top"] | None


SCORE_CONTRACT = LaneContract(
    inputs=(Shared(), STATE, Lane(), Lane(role="length"), Lane(), Shared(), Lane()),
    outputs=(Lane(), STATE),
)


def score_step(structure: Structure, top: int) -> Step:
    """`step(params, rows, tokens, lengths, positions, kv_blocks, targets) -> (Scored, rows)`.

    `targets[i, t]` is the token that follows `tokens[i, t]`; targets of padding have no meaning.

    Args:
        structure: structure of the model.
        top: number of most likely tokens to report at each position.
    """

    def step(
        params: tuple[Any, ...],
        rows: Rows,
        tokens: Int32[Array, "lane token"],
        lengths: Int32[Array, "lane"],
        positions: Int32[Array, "lane"],
        kv_blocks: Int32[Array, ""],
        targets: Int32[Array, "lane token"],
    ) -> tuple[Scored, Rows]:
        model = structure.rebuild(params)
        hidden, layers = model(tokens, lengths, positions, rows.layers, kv_blocks)
        return score_tokens(model, hidden, targets, top), Rows(layers, rows.token)

    return step


def score_tokens(
    model: Decoder, hidden: Float32[Array, "lane token hidden"], targets: Int32[Array, "lane token"], top: int
) -> Scored:
    """Score tokens by a log-softmax over the whole vocabulary, in blocks of tokens, to hold few logits at once."""
    lanes, tokens, size = hidden.shape
    vocabulary = Vocabulary.of(model.config)
    rows = max(MIN_HEAD_ROWS, MAX_HEAD_BYTES // (4 * vocabulary.held))
    block = min(tokens, max(1, rows // lanes))
    blocks = -(-tokens // block)

    def split(x: Array) -> Array:
        """[lane, token, ..] -> [block, lane, token of the block, ..]."""
        x = jnp.pad(x, [(0, 0), (0, blocks * block - tokens)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape((lanes, blocks, block, *x.shape[2:])), 1, 0)

    def join(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape((lanes, blocks * block, *x.shape[3:]))[:, :tokens]

    def score_block(inputs: tuple[Array, Array]) -> Scored:
        hidden, target = inputs
        logits = model.logits(hidden.reshape((-1, size)))
        each = target.reshape((-1,))
        total, chosen = vocabulary.log_total(logits), vocabulary.logit(logits, each)
        best, ids = vocabulary.best(logits, top) if top else (None, None)
        greedy = vocabulary.is_most_likely(logits, each)
        scored = Scored((chosen - total)[:, 0], greedy, ids, None if best is None else best - total)
        return jax.tree.map(lambda x: x.reshape((*target.shape, *x.shape[1:])), scored)

    return jax.tree.map(join, lax.map(score_block, (split(hidden), split(targets))))
