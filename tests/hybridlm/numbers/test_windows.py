"""Attention over a window in the engine: texts over several pages, against float64."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from comparison import TOLERANCES, check_logprobs, log_probabilities
from float64_windowed import Float64WindowedModel

import hybridlm

GOLDEN = Path(__file__).parents[2] / "golden"
NAMES = {"lfm3_base": TOLERANCES["lfm3"], "lara_base": TOLERANCES["lara_mini"]}
LENGTHS = (300, 1, 133, 41)


def windowed(name: str, window: int, directory: Path) -> Path:
    """Copy a golden, with another window."""
    shutil.copytree(GOLDEN / name, directory)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sliding_window": window}))
    return directory


def texts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, 97, length).tolist() for length in lengths]


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("window", [1, 131, 300, 500])
def test_scores(name: str, window: int, tmp_path: Path) -> None:
    """Windows shorter than the texts, as long as one, and longer; chunks and windows end inside pages."""
    directory = windowed(name, window, tmp_path / "model")
    lm, reference = hybridlm.load(directory, lanes=2, dtype="float32", chunk=37), Float64WindowedModel(directory)
    for score, text in zip(lm.score(texts(*LENGTHS)), texts(*LENGTHS), strict=True):
        expected = log_probabilities(reference.forward(text), text)
        check_logprobs(score.logprobs, expected, f"{name}, window {window}, {len(text)} tokens", NAMES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("always")
def test_drafts_and_cached_prefixes(name: str, tmp_path: Path) -> None:
    """Greedy tokens, verified in steps of several, after prefixes that another request computed."""
    directory = windowed(name, 140, tmp_path / "model")
    lm = hybridlm.load(directory, lanes=2, dtype="float32", chunk=50, speculate="ngram", prefix_cache="4MB")
    reference, (base, *_) = Float64WindowedModel(directory), texts(250)
    prompts = [base + base[:30], base + base[:30] + [7, 9, 8], base[:140]]
    for prompt in prompts:
        (completion,) = lm.generate([prompt], max_tokens=40, ignore_eos=True)
        tokens = prompt + list(completion.token_ids)
        logits = reference.forward(tokens)[len(prompt) - 1 : -1]
        behind = logits.max(axis=-1) - logits[np.arange(40), tokens[len(prompt) :]]
        assert (behind < NAMES[name]).all(), (name, len(prompt), behind)
    assert lm.stats["drafted_tokens"] > 0 and lm.stats["prefix_tokens_saved"] >= 280
