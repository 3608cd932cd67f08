"""Drafts change the tokens per step and never the tokens, for any drafter."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from random_traffic import Known, completed

import hybridlm
from hybridlm import Completion
from hybridlm.engine.speculation import Speculation

REPEATING = [7, 11, 13, 5, 3] * 4
PROMPTS = [REPEATING, [5], [9, 8, 7, 6], [21] * 9, [4, 40, 44, 14, 41, 40, 44], list(range(3, 30)), [90, 91]]
SETTINGS: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
PARTLY_RIGHT = (0, 6, 2, 8, 9)


@pytest.fixture(scope="module")
def plain(text_lm: hybridlm.LM) -> list[Completion]:
    return text_lm.generate(PROMPTS, **SETTINGS)


def check(completions: Sequence[Completion], expected: Sequence[Completion]) -> None:
    for completion, other in zip(completions, expected, strict=True):
        assert (completion.token_ids, completion.finish_reason) == (other.token_ids, other.finish_reason)


def counted(lm: hybridlm.LM) -> dict[str, int]:
    return {name: lm.stats[name] for name in ("steps", "verify_steps", "drafted_tokens", "accepted_tokens")}


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [(4,), PARTLY_RIGHT], ids=["right", "partly right"])
def test_the_same_tokens_in_fewer_steps(
    text_lm: hybridlm.LM, plain: list[Completion], always: None, pattern: Any
) -> None:
    """Seven requests in three lanes: all, fewer or no drafts, right and wrong, mixed."""
    counts = counted(text_lm)
    check(text_lm.generate(PROMPTS, speculate=Known(plain, pattern), **SETTINGS), plain)
    gains = {name: count - counts[name] for name, count in counted(text_lm).items()}
    assert 0 < gains["verify_steps"] < gains["steps"]
    if pattern == PARTLY_RIGHT:
        assert 0 < gains["accepted_tokens"] < gains["drafted_tokens"]
    else:
        assert gains["accepted_tokens"] == gains["drafted_tokens"] > 0
        assert 1.0 < text_lm.stats["tokens_per_step"] < 5.0
        assert gains["verify_steps"] <= sum(len(completion.token_ids) for completion in plain) / 5 + 3


def test_ngram(text_lm: hybridlm.LM, plain: list[Completion], always: None) -> None:
    counts = counted(text_lm)
    check(text_lm.generate(PROMPTS, speculate="ngram", **SETTINGS), plain)
    assert counted(text_lm)["drafted_tokens"] > counts["drafted_tokens"]


def test_sampled_tokens_are_the_same(text_lm: hybridlm.LM, always: None) -> None:
    sampled: dict[str, Any] = {**SETTINGS, "temperature": 0.9, "top_k": 20, "seed": 11, "n": 2}
    want = text_lm.generate(PROMPTS[:3], **sampled)
    assert want[0].token_ids != want[1].token_ids
    check(text_lm.generate(PROMPTS[:3], speculate=Known(want, PARTLY_RIGHT), **sampled), want)


def test_accepted_tokens_behind_the_end_are_dropped(
    text_lm: hybridlm.LM, plain: list[Completion], always: None
) -> None:
    """A stop token among accepted tokens, and fewer tokens left than drafts."""
    for stop in plain[0].token_ids[1:4]:
        want = text_lm.generate(PROMPTS, stop=stop, **SETTINGS)
        check(text_lm.generate(PROMPTS, stop=stop, speculate=Known(plain), **SETTINGS), want)
        assert want[0].finish_reason == "stop"
    for limit in (1, 2, 3, 6):
        settings: dict[str, Any] = {**SETTINGS, "max_tokens": limit}
        completions = text_lm.generate(PROMPTS, speculate=Known(plain), **settings)
        assert [completion.token_ids for completion in completions] == [
            completion.token_ids[:limit] for completion in plain
        ]
        assert {completion.finish_reason for completion in completions} == {"length"}


def test_to_the_end_of_the_context(text_lm: hybridlm.LM, always: None) -> None:
    prompts = [[3, 4, 5] * size for size in (82, 83, 84)]
    want = text_lm.generate(prompts, max_tokens=99, ignore_eos=True)
    assert [len(completion.token_ids) for completion in want] == [text_lm.context - len(prompt) for prompt in prompts]
    check(text_lm.generate(prompts, max_tokens=99, ignore_eos=True, speculate=Known(want)), want)


@pytest.mark.long
def test_log_probabilities(text_lm: hybridlm.LM, always: None) -> None:
    """Compare every token's log-probabilities with single-token steps."""
    settings = {**SETTINGS, "logprobs": 2}
    want = text_lm.generate(PROMPTS, **settings)
    completions = text_lm.generate(PROMPTS, speculate=Known(want, PARTLY_RIGHT), **settings)
    for completion, other in zip(completions, want, strict=True):
        assert completion.token_ids == other.token_ids
        assert completion.logprobs and other.logprobs and completion.top_logprobs and other.top_logprobs
        np.testing.assert_allclose(completion.logprobs, other.logprobs, atol=1e-4)
        for best, expected in zip(completion.top_logprobs, other.top_logprobs, strict=True):
            assert list(best) == list(expected)
            np.testing.assert_allclose(list(best.values()), list(expected.values()), atol=1e-4)


@pytest.mark.long
def test_whose_rows_a_lane_finds(sanitized_lm: hybridlm.LM, plain: list[Completion], always: None) -> None:
    """The sanitizer expects after every step the position that the accepted tokens lead to."""
    check(sanitized_lm.generate(PROMPTS, speculate=Known(plain, PARTLY_RIGHT), **SETTINGS), plain)


def test_cancelled_while_a_step_verifies(text_lm: hybridlm.LM, plain: list[Completion], always: None) -> None:
    with text_lm.session(speculate=Known(plain)) as session:
        for prompt in PROMPTS:
            session.submit(prompt, **SETTINGS)
        completions: dict[int, Completion] = {}
        for turn in range(200):
            completions |= completed(session)
            if turn == 6:
                session.cancel(1)
            if not session.busy:
                break
    assert completions.pop(1).finish_reason == "cancelled"
    check(
        [completions[index] for index in sorted(completions)],
        [completion for index, completion in enumerate(plain) if index != 1],
    )


class Endless:
    def __init__(self, answers: Iterator[Any]):
        self.answers = answers

    def propose(self, token_ids: Sequence[int], k: int) -> Any:
        return next(self.answers)


def test_a_drafter_that_fails_ends_the_run_and_nothing_else(
    text_lm: hybridlm.LM, plain: list[Completion], always: None
) -> None:
    with pytest.raises(ValueError, match=r"Endless.propose: expected at most 4 tokens, got 9"):
        text_lm.generate(PROMPTS, speculate=Endless(iter([[], [1], [1] * 9])), **SETTINGS)
    check(text_lm.generate(PROMPTS, speculate=Known(plain), **SETTINGS), plain)


def test_wrong_drafters_are_refused(text_lm: hybridlm.LM) -> None:
    with pytest.raises(ValueError, match="speculate: expected 'ngram'"):
        text_lm.generate([[1]], speculate="eagle")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError, match="speculate: expected 'ngram'"):
        hybridlm.load(text_lm.path, speculate=4)  # type: ignore[arg-type]  # wrong on purpose


class Never:
    """A drafter that is always wrong, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        self.asked += 1
        return [1] * k


def test_drafts_that_do_not_pay_stop(
    text_lm: hybridlm.LM, plain: list[Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences without right drafts stop drafting if verification costs 1.5 steps."""
    monkeypatch.setattr(Speculation, "cost", lambda self, lanes: 1.5)
    monkeypatch.setattr("hybridlm.drafting.step_times.StepTimes.measured", lambda self, step: True)
    monkeypatch.setattr(text_lm.engine, "_prior", type(text_lm.engine._prior)())
    stats, drafter = text_lm.stats, Never()
    check(text_lm.generate(PROMPTS, speculate=drafter, **SETTINGS), plain)
    new_stats = text_lm.stats
    assert new_stats["accepted_tokens"] - stats["accepted_tokens"] <= 3
    assert new_stats["speculation_pauses"] - stats["speculation_pauses"] >= 3
    assert 0 < new_stats["verify_steps"] - stats["verify_steps"] <= 16
    assert drafter.asked <= 12 * len(PROMPTS)
