"""Drafts of the next tokens, how far they are trusted, and refusals."""

from typing import Any

import numpy as np
import pytest

from hybridlm.drafting.acceptance import MIN_LEARNING_RATE, MIN_PAUSE, AcceptancePrior, Drafting
from hybridlm.drafting.drafters import MtpDrafter, NgramDrafter, checked_proposal, drafters


def longest_match(tokens: list[int], k: int) -> list[int]:
    """Tokens after the latest occurrence of the longest recurring n-gram, by exhaustive search."""
    for size in (4, 3, 2):
        for place in range(len(tokens) - 1, size - 1, -1):
            if size < len(tokens) and tokens[place - size : place] == tokens[len(tokens) - size :]:
                return tokens[place : place + k]
    return []


@pytest.mark.parametrize("vocabulary", [2, 3, 9])
def test_ngram_against_a_search(vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    for _ in range(20):
        tokens, drafter = [int(t) for t in rng.integers(0, vocabulary, 60)], NgramDrafter()
        end = 1
        while end <= len(tokens):
            for k in (1, 4, 64):
                assert drafter.propose(tokens[:end], k) == longest_match(tokens[:end], k)
            end += int(rng.integers(1, 4))


def test_ngram_goes_round_a_pattern() -> None:
    drafter = NgramDrafter()
    assert drafter.propose([1, 2, 3, 4, 5, 1, 2, 3], 4) == [4, 5, 1, 2]
    assert drafter.propose([1, 2, 3, 4, 5, 1, 2, 3, 9], 4) == []
    # the longer run decides, though the shorter one stood later
    assert NgramDrafter().propose([1, 2, 3, 7, 7, 7, 2, 3, 8, 8, 1, 2, 3], 1) == [7]


class Fixed:
    def __init__(self, answer: Any):
        self.answer = answer

    def propose(self, token_ids: Any, k: int) -> Any:
        return self.answer


def test_what_may_draft() -> None:
    assert drafters(None) is None
    ngram = drafters("ngram")
    assert ngram is not None and ngram() is not ngram()  # each sequence has its own
    fixed = Fixed([1])
    local = drafters(fixed)
    assert local is not None and local() is fixed
    with pytest.raises(ValueError, match="expected 'ngram', 'mtp', None or an object with propose.*got 'medusa'"):
        drafters("medusa")  # type: ignore[arg-type]  # wrong on purpose
    for wrong in (3, NgramDrafter, True):
        with pytest.raises(TypeError, match="expected 'ngram', 'mtp', None or an object with propose"):
            drafters(wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_what_a_drafter_may_answer() -> None:
    assert checked_proposal(Fixed(np.array([3, 4])), [1], 2, 5) == (3, 4)
    assert checked_proposal(Fixed([]), [1], 2, 5) == ()
    for answer in (None, "ab", [1.0], [True], {1: 2}):
        with pytest.raises(TypeError, match=r"Fixed.propose: expected a list of at most 2 token ids"):
            checked_proposal(Fixed(answer), [1], 2, 5)
    with pytest.raises(ValueError, match=r"Fixed.propose: expected at most 2 tokens, got 3"):
        checked_proposal(Fixed([1, 2, 3]), [1], 2, 5)
    for token in (-1, 5):
        with pytest.raises(ValueError, match=rf"token {token} at index 1 is outside the vocabulary \[0, 5\)"):
            checked_proposal(Fixed([0, token]), [1], 2, 5)


def drafting(rate: float) -> Drafting:
    return Drafting(NgramDrafter(), (), rate)


def test_acceptance() -> None:
    sequence = drafting(0.5)
    assert sequence.expected(4) == pytest.approx(0.5 + 0.25 + 0.125 + 0.0625)
    for _ in range(20):
        sequence.observe(4, 4)
    assert sequence.expected(4) > 3.5
    for _ in range(20):
        sequence.observe(4, 0)
    assert sequence.expected(4) < 0.6


def test_pauses_grow_until_drafts_are_right_again() -> None:
    sequence = drafting(0.5)
    assert sequence.should_draft(0)
    sequence.pause(10)
    assert not sequence.should_draft(10 + MIN_PAUSE - 1) and sequence.should_draft(10 + MIN_PAUSE)
    sequence.pause(50)
    assert not sequence.should_draft(50 + 2 * MIN_PAUSE - 1) and sequence.should_draft(50 + 2 * MIN_PAUSE)
    assert sequence.rate == 0.5
    for _ in range(20):
        sequence.observe(4, 4)
    sequence.pause(200)
    assert sequence.should_draft(200 + MIN_PAUSE)


def test_new_sequences_are_trusted_as_the_last_ones_were() -> None:
    prior = AcceptancePrior()
    assert drafting(prior.rate).expected(4) > 2
    for _ in range(100):
        prior.observe(4, 0)
    assert drafting(prior.rate).expected(4) < 0.1
    assert [rate > 0.7 for rate in [prior.begin() for _ in range(32)]].count(True) == 2
    for _ in range(100):
        prior.observe(1, 1)
    assert drafting(prior.rate).expected(4) > 3.5


def test_the_first_drafts_of_all_count_more_than_later_ones() -> None:
    """Two sequences suffice to stop drafting if verifying costs 1.5 steps."""
    prior = AcceptancePrior(0.9)
    prior.observe(4, 0)
    prior.observe(4, 0)
    assert prior.rate == pytest.approx(0.3) and drafting(prior.rate).expected(4) < 0.5
    for _ in range(100):
        prior.observe(4, 0)
    prior.observe(4, 4)
    assert prior.rate == pytest.approx(MIN_LEARNING_RATE, abs=1e-6)


def test_mtp_drafts_are_for_the_place_they_were_made_for() -> None:
    drafter = MtpDrafter()
    assert drafter.propose([3], 4) == []
    drafter.observe(5, [7, 8, 9])
    assert drafter.propose([1] * 5, 4) == [7, 8, 9] and drafter.propose([1] * 5, 2) == [7, 8]
    assert drafter.propose([1] * 6, 4) == [] == drafter.propose([1] * 4, 4)
    make = drafters("mtp")
    assert make is not None and isinstance(make(), MtpDrafter)
    with pytest.raises(ValueError, match=r"which is read where it is asked for: hybridlm.load\(..., speculate='mtp'"):
        drafters("mtp", has_head=False)
