"""Smoke test on a GPU: parity, isolation, reused rows, experts, sampling, embedded model.

Then checks of the last part of scripts/check_device.py, one by one.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from comparison import TOLERANCES, Greedy, check_greedy, check_logits, check_logprobs, padded
from device_checks import certificates, each_lane, golden_model, isolation, used_rows
from device_engine import GOLDEN_MODELS
from reused_rows import check_reused_rows

import hybridlm
from hybridlm import demo

pytestmark = pytest.mark.gpu

GOLDEN = Path(__file__).parents[2] / "golden"
MODELS = sorted(path.name for path in GOLDEN.iterdir())


@pytest.mark.parametrize("name", MODELS)
def test_golden_logits_scores_and_greedy_tokens(name: str) -> None:
    """`dtype="float32"` means full float32 products, on devices too that would round their operands by default."""
    lm = hybridlm.load(GOLDEN / name, lanes=3, dtype="float32", chunk=16)
    tolerance = TOLERANCES[lm.config.family]
    with np.load(GOLDEN / name / "expected.npz") as file:
        expected = dict(file)
    ends = np.cumsum(expected["lengths"])[:-1]
    prompts = [prompt.tolist() for prompt in np.split(expected["prompts"], ends)]
    for actual, logits in zip(lm.forward(padded(prompts)).logits, np.split(expected["logits"], ends), strict=True):
        check_logits(np.asarray(actual)[: len(logits)], logits, name, tolerance)
    for score, logprobs in zip(lm.score(prompts), np.split(expected["logprobs"], ends), strict=True):
        check_logprobs(score.logprobs, logprobs, name, tolerance)
    completions = lm.generate(prompts, max_tokens=expected["greedy"].shape[1], ignore_eos=True)
    for completion, tokens, margins in zip(completions, expected["greedy"], expected["greedy_margins"], strict=True):
        check_greedy(completion.token_ids, Greedy(tokens, margins), name, tolerance)


def test_a_sequence_has_the_same_bits_with_others() -> None:
    lm = hybridlm.load(GOLDEN / "sparse_base", lanes=4, chunk=8)
    prompts = [[5, 9, 3, 7, 11, 2, 8, 4, 6], [10, 12], [13] * 30, [1]]
    rest = [prompts[0], [20] * 25, [3], [4, 5, 6]]
    settings = {"max_tokens": 12, "ignore_eos": True, "logprobs": 3, "temperature": 0.8, "seed": 1}
    assert lm.generate(prompts, **settings)[0] == lm.generate(rest, **settings)[0]
    assert lm.score(prompts)[0].logprobs.tobytes() == lm.score(rest)[0].logprobs.tobytes()


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_earlier_sequences_change_no_bit(name: str) -> None:
    check_reused_rows(hybridlm.load(GOLDEN / name, lanes=4, dtype="float32", chunk=8))


def test_the_embedded_model_answers_its_stories() -> None:
    lm = hybridlm.load(demo.path(), lanes=8)
    stories = [demo.story(demo.UNSEEN.start + i) for i in range(16)]
    answers = lm.generate([story.prompt for story in stories], max_tokens=12)
    right = sum(story.answered_by(answer.text or "") for story, answer in zip(stories, answers, strict=True))
    assert right >= 15


@pytest.mark.parametrize("kernels", ["off", "auto"])
@pytest.mark.parametrize("check", [isolation, each_lane, used_rows, certificates])
@pytest.mark.parametrize("name", GOLDEN_MODELS)
def test_device(name: str, check: Callable[[hybridlm.LM], object], kernels: str) -> None:
    check(golden_model(name, kernels))
