"""How often the drafts of one sequence are right, and when it stops drafting for a while."""

DECAY = 0.9
"""What the next drafts leave of the weight of all before."""
MIN_PAUSE = 32
"""Tokens that a sequence draws without drafts after these have not paid; twice as many each time in a row."""
MIN_TRUSTED_RATE = 0.6
"""Share of right drafts from which a sequence is trusted as at its beginning."""
RETRY_INTERVAL = 16
"""One of so many sequences begins without regard to the last ones."""
PRIOR_WEIGHT = 2.0
"""Drafts of earlier sequences that count as a new one's own."""
MIN_LEARNING_RATE = 0.15
"""Share that the newest drafts have in what is expected of the next sequence's, once there were enough of them."""


class AcceptancePrior:
    """What is expected of the drafts of a sequence that has had none: how those of the last sequences were.

    Args:
        rate: before there were any; high enough to be tried.

    Attributes:
        rate: probability that a draft is right where those before it are.
    """

    def __init__(self, rate: float = 0.8) -> None:
        self.rate, self._hope, self._begun, self._learned = rate, rate, 0, 0

    def begin(self) -> float:
        """The rate for a sequence that begins: one of so many is tried whatever the last ones were like."""
        self._begun += 1
        return self.rate if self._begun % RETRY_INTERVAL else max(self.rate, self._hope)

    def observe(self, drafted: int, accepted: int) -> None:
        """Of so many drafts the first `accepted` were right.

        What was hoped for counts as one time, so that the first drafts of all say more than later ones.
        """
        self._learned += 1
        self.rate += max(MIN_LEARNING_RATE, 1 / (self._learned + 1)) * (accepted / min(accepted + 1, drafted) - self.rate)


class Acceptance:
    """Of one sequence, from its own drafts.

    Args:
        rate: what is expected of its first ones.

    Attributes:
        pauses: how often it has stopped drafting.
    """

    def __init__(self, rate: float) -> None:
        self._right, self._tried = PRIOR_WEIGHT * rate, PRIOR_WEIGHT
        self._resume, self._wait = 0, MIN_PAUSE
        self.pauses = 0

    @property
    def rate(self) -> float:
        """Probability that a draft is right where those before it are."""
        return self._right / self._tried

    def expected(self, drafts: int) -> float:
        """Drafts of so many that are accepted on average: each counts only if all before it are right."""
        return sum(self.rate**place for place in range(1, drafts + 1))

    def observe(self, drafted: int, accepted: int) -> None:
        """Of so many drafts the first `accepted` were right."""
        self._right = DECAY * self._right + accepted
        self._tried = DECAY * self._tried + min(accepted + 1, drafted)
        if self.rate > MIN_TRUSTED_RATE:
            self._wait = MIN_PAUSE

    def should_draft(self, sampled: int) -> bool:
        """Whether to draft, after so many tokens."""
        return sampled >= self._resume

    def pause(self, sampled: int) -> None:
        """Stop drafting after so many tokens; what the next drafts are like is open."""
        self._resume = sampled + self._wait
        self._wait *= 2
        self._right, self._tried = PRIOR_WEIGHT / 2, PRIOR_WEIGHT
        self.pauses += 1
