"""Sampling settings, penalties, biases, bans and grammars as inputs of a step."""

from collections.abc import Sequence

import numpy as np

from hybridlm.grammars import token_masks
from hybridlm.requests.sequence import ActiveSequence, ResolvedParams
from hybridlm.sampling.logit_changes import LogitChanges, mask_words
from hybridlm.sampling.sampling import BESIDE_GREEDY, FILTERED, GREEDY, SAMPLED, Sampling
from hybridlm.steps.operands import Batch, StepInputs


def sampling_inputs(
    batch: Batch, lanes: Sequence[ActiveSequence | None], vocab_size: int, drafts: Sequence[Sequence[int]] | None = None
) -> StepInputs:
    """Return the inputs of a step that samples each lane's next token, or verifies `drafts`."""
    counts = None if drafts is None else np.array([len(draft) for draft in drafts], np.int32)
    changes = logit_changes(lanes, vocab_size, drafts, 1 if drafts is None else batch.tokens.shape[1])
    return StepInputs(batch, counts, *sampling_arrays(lanes), changes)


def sampling_arrays(lanes: Sequence[ActiveSequence | None]) -> tuple[Sampling, np.ndarray]:
    """Return the lanes' sampling settings, and the mode (int32 [], see `sample_tokens`)."""
    idle = ResolvedParams()
    params = [idle if sequence is None else sequence.request.params for sequence in lanes]
    indices = [0 if sequence is None else sequence.request.key_index for sequence in lanes]
    sampling = Sampling(
        np.array([p.temperature for p in params], np.float32),
        np.array([p.top_k for p in params], np.int32),
        np.array([p.top_p for p in params], np.float32),
        np.array([p.min_p for p in params], np.float32),
        np.array([[p.seed >> 32, p.seed & 0xFFFFFFFF] for p in params], np.uint32),
        np.array(indices, np.uint32),
    )
    sampled = [p for p in params if p.temperature != 0]
    filtered = any(p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in sampled)
    sampling_mode = GREEDY if not sampled else FILTERED if filtered else SAMPLED
    if sampling_mode != GREEDY and any(
        sequence is not None and sequence.request.params.temperature == 0 for sequence in lanes
    ):
        sampling_mode += BESIDE_GREEDY
    return sampling, np.array(sampling_mode, np.int32)


MIN_CHANGES, CHANGES_STEP = 64, 8
"""Changes of a lane in the smallest step, and the factor to the next step."""


def logit_changes(
    lanes: Sequence[ActiveSequence | None],
    vocab_size: int,
    drafts: Sequence[Sequence[int]] | None = None,
    tokens: int = 1,
) -> LogitChanges | None:
    """Return the logit changes of all lanes, padded to a bucket; None without changes.

    All their sampled tokens must have been read; `drafts` are of a verifying step.
    """
    lane_changes = [_changes(s) if s is not None and s.request.params.changes_logits else None for s in lanes]
    grammars = [None if s is None else s.grammar for s in lanes]
    if all(change is None for change in (*lane_changes, *grammars)):
        return None
    masks = token_masks(grammars, mask_words(vocab_size), drafts, tokens)
    count = bucket(max((lane_change[0].size for lane_change in lane_changes if lane_change is not None), default=0))
    changes = LogitChanges(
        np.full((len(lanes), count), vocab_size, np.int32),
        np.zeros((len(lanes), count), np.float32),
        np.ones((len(lanes), count), np.float32),
        np.zeros((len(lanes), count), np.float32),
        masks,
    )
    for lane, lane_change in enumerate(lane_changes):
        if lane_change is not None:
            for target, part in zip(changes[:-1], lane_change, strict=True):
                assert isinstance(target, np.ndarray)
                target[lane, : part.size] = part
    return changes


def empty_changes(lanes: int, count: int, mask: tuple[int, ...] | None = None) -> LogitChanges:
    """Return an operand without changes; `mask` is the shape after the lanes."""
    bias, repetition, penalty = (np.zeros((lanes, count), np.float32) for _ in range(3))
    masks = None if mask is None else np.zeros((lanes, *mask), np.uint32)
    return LogitChanges(np.zeros((lanes, count), np.int32), bias, repetition, penalty, masks)


def bucket(count: int) -> int:
    size = MIN_CHANGES
    while size < count:
        size *= CHANGES_STEP
    return size


def _changes(sequence: ActiveSequence) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    request, params = sequence.request, sequence.request.params
    generated = np.array(sequence.output, np.int32)
    if len(sequence.generated) != sequence.sampled:
        raise AssertionError(f"request {request.index}: a step with penalties needs all of its sampled tokens")
    history = (*request.prompt, *sequence.generated)
    bias = dict(params.logit_bias)
    banned = params.stop_token_ids if generated.size < params.min_tokens else frozenset[int]()
    banned |= {word[-1] for word in params.bad_words if history[len(history) - len(word) + 1 :] == word[:-1]}
    repeated, counted = np.empty(0, np.int32), np.empty(0, np.int32)
    counts = np.empty(0, np.int64)
    if params.repetition_penalty != 1:
        repeated = np.unique(np.array(history, np.int32))
    if params.presence_penalty or params.frequency_penalty:
        counted, counts = np.unique(generated, return_counts=True)
    biased = np.array([*bias, *banned], np.int32)
    tokens = np.unique(np.concatenate([biased, repeated, counted])).astype(np.int32)
    changes = np.zeros(tokens.size, np.float32), np.ones(tokens.size, np.float32), np.zeros(tokens.size, np.float32)
    for token, value in bias.items():
        changes[0][np.searchsorted(tokens, token)] = value
    changes[0][np.searchsorted(tokens, np.array(sorted(banned), np.int32))] = -np.inf
    changes[1][np.searchsorted(tokens, repeated)] = params.repetition_penalty
    penalty = params.presence_penalty + params.frequency_penalty * counts
    changes[2][np.searchsorted(tokens, counted)] = penalty
    return tokens, *changes
