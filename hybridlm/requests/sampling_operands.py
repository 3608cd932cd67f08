"""Sampling settings of sequences as operands of a step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridlm.requests.logit_changes import ChangesShape, changes_shape, logit_changes
from hybridlm.requests.sequence import ActiveSequence, ResolvedParams
from hybridlm.sampling.sampling import BESIDE_GREEDY, FILTERED, GREEDY, SAMPLED, Sampling


def step_operands(
    lanes: Sequence[ActiveSequence | None],
    vocab_size: int,
    drafts: Sequence[Sequence[int]] | None = None,
    tokens: int = 1,
) -> tuple[tuple[Any, ...], ChangesShape]:
    """Return the operands that say how each lane is sampled, and the fields of `Shape` about changes of logits.

    Arguments as for `logit_changes`.
    """
    changes = logit_changes(lanes, vocab_size, drafts, tokens)
    return (*sampling_arrays(lanes), *changes), changes_shape(changes)


def sampling_arrays(lanes: Sequence[ActiveSequence | None]) -> tuple[Sampling, np.ndarray]:
    """Return the sampling settings of every lane, and the sampling mode (int32 [], see `sample_tokens`)."""
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
    if sampling_mode != GREEDY and any(one is not None and one.request.params.temperature == 0 for one in lanes):
        sampling_mode += BESIDE_GREEDY
    return sampling, np.array(sampling_mode, np.int32)


def _sampling_mode(params: ResolvedParams) -> int:
    """Return the sampling mode that one lane needs."""
    if params.temperature == 0:
        return GREEDY
    return FILTERED if params.top_k > 0 or params.top_p < 1 or params.min_p > 0 else SAMPLED
