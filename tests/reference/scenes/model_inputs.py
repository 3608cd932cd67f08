"""Requests of a model that is not there: checked, and applied to logits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridlm import SamplingParams
from hybridlm.engine.inputs import Inputs
from hybridlm.requests.sequence import ActiveSequence, Request, ResolvedParams, logit_changes
from hybridlm.sampling.logit_changes import changed_logits
from hybridlm.sampling.sampling import Sampling


def model_inputs(tokenizer: Any = None, vocab_size: int = 97, context: int = 256, **limits: Any) -> Inputs:
    """Return the checks of inputs by these limits; any state of a prefix goes."""
    return Inputs(tokenizer, vocab_size, context, **{"eos_token_ids": (), "require": lambda snapshot: None, **limits})


def changed_by(
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    logits: np.ndarray,
    eos_token_ids: tuple[int, ...] = (),
) -> np.ndarray:
    """Return float32 logits [lane, vocabulary]; of the last lane, as the settings change them after these tokens."""
    lanes, vocabulary = logits.shape
    resolved = model_inputs(vocab_size=vocabulary, eos_token_ids=eos_token_ids).resolve(params)
    request = Request(0, tuple(prompt), resolved)
    sequence = ActiveSequence(request, consumed=len(prompt) + len(output) - 1, generated=list(output))
    changes = logit_changes([None] * (lanes - 1) + [sequence], vocabulary)
    return logits if changes is None else np.asarray(changed_logits(jnp.asarray(logits), changes))


def active_sequence(prompt: Sequence[int], **state: Any) -> ActiveSequence:
    """Return a sequence of default settings that has read nothing, but for `state`."""
    return ActiveSequence(Request(0, tuple(prompt), ResolvedParams()), **state)


def request_of(params: SamplingParams, prompt: Sequence[int], index: int, priority: int, **resolved: Any) -> Request:
    """Return a checked request; `resolved` replaces fields of its checked settings."""
    return Request(index, tuple(prompt), replace(model_inputs().resolve(params), **resolved), priority)


def sampling_of(
    lanes: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: tuple[int, int] = (0, 7),
) -> Sampling:
    """Return equal settings of lanes, numbered from 0; `seed` in two words."""
    filters = np.full(lanes, top_k, np.int32), np.full(lanes, top_p, np.float32), np.full(lanes, min_p, np.float32)
    seeds = np.tile(np.array(seed, np.uint32), (lanes, 1))
    return Sampling(np.full(lanes, temperature, np.float32), *filters, seeds, np.arange(lanes, dtype=np.uint32))
