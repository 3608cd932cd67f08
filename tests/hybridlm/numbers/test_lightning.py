"""Ling 2.5 with lightning attention and limits of SwiGLU against a float64 forward of its equations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import check_logits, check_logprobs, padded
from float64_delta import Float64DeltaModel
from random_checkpoint import write_random_checkpoint
from with_head import head_logits, load_with_head

import hybridlm

TOLERANCE = 3e-4
"""As for Ling 3.0."""
PROMPTS = [[int(token) for token in np.random.default_rng(n).integers(64, size=n)] for n in (1, 3, 5, 17, 33, 40)]
NEW = 12


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    limits: dict[str, Any] = {
        "expert_swiglu_limit_list": [0, 0.3, 0, 0.3, 0.2, 0, 0.2],
        "share_expert_swiglu_limit_list": [0, 0, 0.2, 0.3, 0, 0, 0.3],
    }
    return write_random_checkpoint("ling_lightning", tmp_path_factory.mktemp("ling"), head=True, **limits)


@pytest.fixture(scope="module")
def logits(directory: Path) -> list[np.ndarray]:
    model = Float64DeltaModel(directory)
    return [model.forward(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module", params=[7, pytest.param(16, marks=pytest.mark.long)])
def lm(directory: Path, request: pytest.FixtureRequest) -> hybridlm.LM:
    """Three lanes for six prompts reuse lanes; the chunks end inside chunks of the recurrence."""
    return hybridlm.load(str(directory), lanes=3, dtype="float32", chunk=request.param)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def test_logits_of_every_position(lm: hybridlm.LM, logits: list[np.ndarray]) -> None:
    batch = np.asarray(lm.forward(padded(PROMPTS)).logits)
    for prompt, row, expected in zip(PROMPTS, batch, logits, strict=True):
        where = f"prompt of {len(prompt)} tokens"
        assert not check_logits(row[: len(prompt)], expected.astype(np.float32), where, TOLERANCE)


@pytest.mark.slow
def test_logits_of_the_prediction_head(directory: Path) -> None:
    """Behind each token but the first, with limits of its experts."""
    model, prompts = Float64DeltaModel(directory), PROMPTS[1:]
    for prompt, row in zip(prompts, head_logits(load_with_head(directory), prompts), strict=True):
        expected = model.prediction(prompt).astype(np.float32)
        assert not check_logits(row, expected, f"prompt of {len(prompt)} tokens", TOLERANCE)


@pytest.mark.slow
def test_scores_in_chunks(lm: hybridlm.LM, logits: list[np.ndarray]) -> None:
    for prompt, score, expected in zip(PROMPTS, lm.score(PROMPTS), logits, strict=True):
        chosen = log_probabilities(expected)[np.arange(len(prompt) - 1), prompt[1:]]
        where = f"prompt of {len(prompt)} tokens"
        check_logprobs(score.logprobs, np.concatenate([[np.nan], chosen]).astype(np.float32), where, TOLERANCE)


@pytest.mark.slow
def test_greedy_tokens(lm: hybridlm.LM, directory: Path) -> None:
    model = Float64DeltaModel(directory)
    for prompt, completion in zip(PROMPTS, lm.generate(PROMPTS, max_tokens=NEW, ignore_eos=True), strict=True):
        assert len(completion.token_ids) == NEW
        # Each token is the best of the reference after the tokens before it.
        steps = model.forward([*prompt, *completion.token_ids])[len(prompt) - 1 : -1]
        best = np.sort(steps, axis=-1)
        clear = best[:, -1] - best[:, -2] > 2 * TOLERANCE
        assert clear.any() and (steps.argmax(axis=-1) == completion.token_ids)[clear].all()
