"""GigaChat3.5, Alice AI and Ling 2.5 against float64 forwards of their equations: odd settings, chunks and lanes.

Rounding of the embeddings to float32 changes logits of 3 to 20 by at most 3e-4 (`Float64Oracle.noise`), a third or less
of the tolerances. The variants have few layers: a gated norm amplifies small outputs, so that with a fifth layer the
same rounding changes a logit by 2e-3, as much as a fault may.
"""

from pathlib import Path

import numpy as np
import pytest
from comparison import TOLERANCES, check_logits, check_logprobs, log_softmax, padded
from float64_delta import Float64DeltaModel
from float64_gated import Float64GatedModel
from random_checkpoint import write_random_checkpoint
from tiny_variants import GATED, LING_LIGHTNING, variant

import hybridlm

PROMPTS = [[int(token) for token in np.random.default_rng(n).integers(64, size=n)] for n in (1, 3, 5, 17, 33, 41)]
NEW = 12


@pytest.fixture(scope="module", params=[each.name for each in (*GATED, LING_LIGHTNING)])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(request.param, tmp_path_factory.mktemp("gated") / request.param)


@pytest.fixture(scope="module")
def tolerance(directory: Path) -> float:
    return TOLERANCES[variant(directory.name).family]


@pytest.fixture(scope="module")
def model(directory: Path) -> Float64GatedModel | Float64DeltaModel:
    return Float64DeltaModel(directory) if directory.name == LING_LIGHTNING.name else Float64GatedModel(directory)


@pytest.fixture(scope="module")
def logits(model: Float64GatedModel | Float64DeltaModel) -> list[np.ndarray]:
    return [model.forward(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module", params=[7, pytest.param(16, marks=pytest.mark.long)])
def lm(directory: Path, request: pytest.FixtureRequest) -> hybridlm.LM:
    """Three lanes for six prompts reuse lanes; the chunks end inside chunks of the recurrence."""
    return hybridlm.load(str(directory), lanes=3, dtype="float32", chunk=request.param)


@pytest.mark.slow
def test_logits_of_every_position(lm: hybridlm.LM, logits: list[np.ndarray], tolerance: float) -> None:
    batch = np.asarray(lm.forward(padded(PROMPTS)).logits)
    for prompt, row, expected in zip(PROMPTS, batch, logits, strict=True):
        where = f"prompt of {len(prompt)} tokens"
        assert not check_logits(row[: len(prompt)], expected.astype(np.float32), where, tolerance)


@pytest.mark.slow
def test_scores_in_chunks(lm: hybridlm.LM, logits: list[np.ndarray], tolerance: float) -> None:
    for prompt, score, expected in zip(PROMPTS, lm.score(PROMPTS), logits, strict=True):
        chosen = log_softmax(expected)[np.arange(len(prompt) - 1), prompt[1:]]
        where = f"prompt of {len(prompt)} tokens"
        check_logprobs(score.logprobs, np.concatenate([[np.nan], chosen]).astype(np.float32), where, tolerance)


@pytest.mark.slow
def test_greedy_tokens(lm: hybridlm.LM, model: Float64GatedModel | Float64DeltaModel, tolerance: float) -> None:
    for prompt, completion in zip(PROMPTS, lm.generate(PROMPTS, max_tokens=NEW, ignore_eos=True), strict=True):
        assert len(completion.token_ids) == NEW
        # Each token is the best of the reference after the tokens before it.
        steps = model.forward([*prompt, *completion.token_ids])[len(prompt) - 1 : -1]
        best = np.sort(steps, axis=-1)
        clear = best[:, -1] - best[:, -2] > 2 * tolerance
        assert clear.any() and (steps.argmax(axis=-1) == completion.token_ids)[clear].all()
