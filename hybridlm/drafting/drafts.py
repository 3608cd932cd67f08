"""Drafts of one sequence, and their acceptance rate."""

from collections.abc import Sequence

from hybridlm.drafting.acceptance import Acceptance
from hybridlm.drafting.drafters import Drafter, MtpDrafter, checked_proposal


class Drafting:
    """The drafts of one sequence.

    Attributes:
        acceptance: acceptance rate so far.
    """

    def __init__(self, drafter: Drafter, prompt: Sequence[int], rate: float):
        self._drafter = drafter
        self._prompt = len(prompt)
        self._tokens = list(prompt)
        self._last: tuple[int, int, tuple[int, ...]] = (0, 0, ())
        self.acceptance = Acceptance(rate)

    def observe(self, generated: int, mtp_drafts: Sequence[int]) -> None:
        """Store the MTP drafts that follow the first `generated` generated tokens."""
        if isinstance(self._drafter, MtpDrafter):
            self._drafter.observe(self._prompt + generated, mtp_drafts)
            self._last = (0, 0, ())

    def propose(self, generated: Sequence[int], limit: int, vocab_size: int) -> tuple[int, ...]:
        """Return drafts after the tokens generated so far.

        Raises:
            TypeError, ValueError: the drafter's answer is invalid (see `checked_proposal`).
        """
        self._tokens += generated[len(self._tokens) - self._prompt :]
        if self._last[:2] != (len(self._tokens), limit):
            drafts = checked_proposal(self._drafter, self._tokens, limit, vocab_size) if limit > 0 else ()
            self._last = len(self._tokens), limit, drafts
        return self._last[2]
