"""hybridlm against Hugging Face transformers on tiny random checkpoints that transformers wrote."""

import numpy as np
import pytest
from comparison import check_greedy, check_logits, check_logprobs, padded
from tiny_variants import GREEDY_TOKENS

import hybridlm

pytestmark = pytest.mark.oracle

MAX_TIES = 1
"""Prompts of the eight of a case that may leave the oracle's greedy continuation at a near tie."""


def test_logits_of_every_position(case, lm):
    """All prompts in one batch, the short ones padded with other tokens."""
    batch = np.asarray(lm.forward(padded(case.prompts)).logits)
    ties = sum(
        check_logits(row[: len(expected)], expected, case.where(index), case.tolerance)
        for index, (row, expected) in enumerate(zip(batch, case.logits, strict=True))
    )
    assert ties <= MAX_TIES


def test_ragged_batch_scores(case, lm):
    """Eight prompts queued over three lanes have the log-probabilities that each has alone in transformers."""
    for index, score in enumerate(lm.score(case.prompts)):
        where, prompt = case.where(index), case.prompts[index]
        assert list(score.token_ids) == prompt, where
        check_logprobs(score.logprobs, case.logprobs[index], where, case.tolerance)
        best = np.sort(case.logits[index][:-1], axis=-1)
        clear = best[:, -1] - best[:, -2] > 5e-3
        greedy = case.logits[index][:-1].argmax(axis=-1) == np.asarray(prompt[1:])
        assert (score.greedy[1:] == greedy)[clear].all(), where
        assert score.sum_logprob == pytest.approx(case.logprobs[index][1:].sum(), abs=4e-3 * len(prompt)), where


def test_ragged_batch_generates(case, lm):
    """Eight prompts queued over three lanes continue as each does alone in transformers."""
    completions = lm.generate(case.prompts, max_tokens=GREEDY_TOKENS, ignore_eos=True)
    ties = sum(
        check_greedy(completion.token_ids, case.greedy[index], case.where(index), case.tolerance)
        for index, completion in enumerate(completions)
    )
    assert ties <= MAX_TIES


def test_each_prompt_alone(case, lm):
    """Single prompts have equal logits, log-probabilities and continuations."""
    logits = np.asarray(lm.forward(case.prompts[-1]).logits)
    ties = check_logits(logits, case.logits[-1], case.where(-1) + ", alone", case.tolerance)
    for index, prompt in enumerate(case.prompts):
        where = case.where(index) + ", alone"
        check_logprobs(lm.score([prompt])[0].logprobs, case.logprobs[index], where, case.tolerance)
        completion = lm.generate([prompt], max_tokens=GREEDY_TOKENS, ignore_eos=True)[0]
        ties += check_greedy(completion.token_ids, case.greedy[index], where, case.tolerance)
    assert ties <= MAX_TIES


def test_chunked_prefill(case, chunk):
    """Log-probabilities and continuations do not depend on the chunk size of the prefill.

    All sizes for every variant, with one seed each (conftest.py): crossed with all seeds it would take hours and see
    the same chunks of the same lengths again.
    """
    lm = hybridlm.load(str(case.directory), lanes=3, dtype="float32", chunk=chunk)
    for index, score in enumerate(lm.score(case.prompts)):
        check_logprobs(score.logprobs, case.logprobs[index], f"{case.where(index)}, chunk {chunk}", case.tolerance)
    completions = lm.generate(case.prompts, max_tokens=GREEDY_TOKENS, ignore_eos=True)
    ties = sum(
        check_greedy(completion.token_ids, case.greedy[index], f"{case.where(index)}, chunk {chunk}", case.tolerance)
        for index, completion in enumerate(completions)
    )
    assert ties <= MAX_TIES
