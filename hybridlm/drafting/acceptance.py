"""Drafts of one sequence, their acceptance rate, and when drafting pauses."""

from collections.abc import Sequence

from hybridlm.drafting.drafters import Drafter, MtpDrafter, checked_proposal

DECAY = 0.9
"""Exponential decay of past acceptance counts."""
MIN_PAUSE = 32
"""Tokens without drafts after unprofitable drafts; doubles each time in a row."""
MIN_TRUSTED_RATE = 0.6
"""Acceptance rate above which the next pause is the shortest."""
RETRY_INTERVAL = 16
"""One of this many sequences starts with the initial rate."""
PRIOR_WEIGHT = 2.0
"""Weight of earlier sequences in a new one's counts, in drafts."""
MIN_LEARNING_RATE = 0.15
"""Minimum weight of the newest drafts in the next sequence's rate."""


class AcceptancePrior:
    """Expected acceptance rate of a sequence's first drafts, from the last sequences.

    Attributes:
        rate: probability that a draft is accepted after accepted ones; initially high enough for drafts to be tried.
    """

    def __init__(self, rate: float = 0.8) -> None:
        self.rate, self._hope, self._begun, self._learned = rate, rate, 0, 0

    def begin(self) -> float:
        """Return the rate for a new sequence; every RETRY_INTERVAL-th has the initial rate."""
        self._begun += 1
        return self.rate if self._begun % RETRY_INTERVAL else max(self.rate, self._hope)

    def observe(self, drafted: int, accepted: int) -> None:
        """Record that the first `accepted` of `drafted` drafts were right.

        The initial rate counts as one observation, so that first observations weigh more.
        """
        self._learned += 1
        self.rate += max(MIN_LEARNING_RATE, 1 / (self._learned + 1)) * (
            accepted / min(accepted + 1, drafted) - self.rate
        )


class Drafting:
    """The drafts of one sequence, and their acceptance rate."""

    def __init__(self, drafter: Drafter, prompt: Sequence[int], rate: float):
        self._drafter = drafter
        self._prompt = len(prompt)
        self._tokens = list(prompt)
        self._last: tuple[int, int, tuple[int, ...]] = (0, 0, ())
        self._right, self._tried = PRIOR_WEIGHT * rate, PRIOR_WEIGHT
        self._resume, self._wait = 0, MIN_PAUSE

    def take_mtp(self, generated: int, mtp_drafts: Sequence[int]) -> None:
        """Take the MTP drafts of the last sampling step."""
        if isinstance(self._drafter, MtpDrafter):
            self._drafter.observe(self._prompt + generated, mtp_drafts)
            self._last = (0, 0, ())

    def propose(self, generated: Sequence[int], limit: int, vocab_size: int) -> tuple[int, ...]:
        """Return drafts after the generated tokens; raises as `checked_proposal`."""
        self._tokens += generated[len(self._tokens) - self._prompt :]
        if self._last[:2] != (len(self._tokens), limit):
            drafts = checked_proposal(self._drafter, self._tokens, limit, vocab_size) if limit > 0 else ()
            self._last = len(self._tokens), limit, drafts
        return self._last[2]

    @property
    def rate(self) -> float:
        return self._right / self._tried

    def expected(self, drafts: int) -> float:
        """Return the expected number of accepted drafts."""
        return sum(self.rate**place for place in range(1, drafts + 1))

    def observe(self, drafted: int, accepted: int) -> None:
        self._right = DECAY * self._right + accepted
        self._tried = DECAY * self._tried + min(accepted + 1, drafted)
        if self.rate > MIN_TRUSTED_RATE:
            self._wait = MIN_PAUSE

    def should_draft(self, sampled: int) -> bool:
        return sampled >= self._resume

    def pause(self, sampled: int) -> None:
        self._resume = sampled + self._wait
        self._wait *= 2
        self._right, self._tried = PRIOR_WEIGHT / 2, PRIOR_WEIGHT
