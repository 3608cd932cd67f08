"""Sampling settings of sequences as inputs of a step."""

from collections.abc import Sequence

import numpy as np

from hybridlm.requests.logit_changes import logit_changes
from hybridlm.requests.sequence import ActiveSequence, ResolvedParams
from hybridlm.sampling.sampling import BESIDE_GREEDY, FILTERED, GREEDY, SAMPLED, Sampling
from hybridlm.steps.operands import Batch, StepInputs


def sampling_inputs(
    batch: Batch, lanes: Sequence[ActiveSequence | None], vocab_size: int, drafts: Sequence[Sequence[int]] | None = None
) -> StepInputs:
    """Return the inputs of a step that samples the next token of each lane, or verifies `drafts`."""
    counts = None if drafts is None else np.array([len(draft) for draft in drafts], np.int32)
    changes = logit_changes(lanes, vocab_size, drafts, 1 if drafts is None else batch.tokens.shape[1])
    return StepInputs(batch, counts, *sampling_arrays(lanes), changes)


def sampling_arrays(lanes: Sequence[ActiveSequence | None]) -> tuple[Sampling, np.ndarray]:
    """Return the sampling settings of every lane, and the mode (int32 [], see `sample_tokens`)."""
    idle = ResolvedParams()
    params = [idle if sequence is None else sequence.request.params for sequence in lanes]
    index = [0 if sequence is None else sequence.request.key_index for sequence in lanes]
    sampling = Sampling(
        np.array([p.temperature for p in params], np.float32),
        np.array([p.top_k for p in params], np.int32),
        np.array([p.top_p for p in params], np.float32),
        np.array([p.min_p for p in params], np.float32),
        np.array([[p.seed >> 32, p.seed & 0xFFFFFFFF] for p in params], np.uint32),
        np.array(index, np.uint32),
    )
    sampling_mode = max(map(_sampling_mode, params))
    if sampling_mode != GREEDY and any(
        sequence is not None and sequence.request.params.temperature == 0 for sequence in lanes
    ):
        sampling_mode += BESIDE_GREEDY
    return sampling, np.array(sampling_mode, np.int32)


def _sampling_mode(params: ResolvedParams) -> int:
    if params.temperature == 0:
        return GREEDY
    return FILTERED if params.top_k > 0 or params.top_p < 1 or params.min_p > 0 else SAMPLED
