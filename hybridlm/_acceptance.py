"""How often drafts are right, of one sequence and of all, and when a sequence stops drafting for a while."""

FORGET = 0.9
"""What the next drafts leave of the weight of all before."""
PAUSE = 32
"""Tokens that a sequence draws without drafts after these have not paid; twice as many each time in a row."""
GOOD = 0.6
"""Share of right drafts from which a sequence is trusted as at its beginning."""
HOPE = 0.9
"""What is expected of a model's own head before anything is known of it."""
HOPEFUL = 16
"""One of so many sequences expects that again, whatever has been learned since."""


class Acceptance:
    """Of one sequence, from its own drafts.

    Args:
        start: what is expected before there are any.

    Attributes:
        pauses: how often it has stopped drafting.
    """

    def __init__(self, start: float = 0.5) -> None:
        self._start = start
        self._right, self._tried = 2 * start, 2.0
        self._resume, self._wait = 0, PAUSE
        self.pauses = 0

    @property
    def rate(self) -> float:
        """Probability that a draft is right where those before it are."""
        return self._right / self._tried

    def expected(self, drafts: int) -> float:
        """Drafts of so many that are accepted on average: each counts only if all before it are right."""
        return sum(self.rate**place for place in range(1, drafts + 1))

    def learn(self, drafted: int, accepted: int) -> None:
        """Of so many drafts the first `accepted` were right."""
        self._right = FORGET * self._right + accepted
        self._tried = FORGET * self._tried + min(accepted + 1, drafted)
        if self.rate > GOOD:
            self._wait = PAUSE

    def drafts(self, drawn: int) -> bool:
        """Whether to draft, after so many tokens."""
        return drawn >= self._resume

    def pause(self, drawn: int) -> None:
        """Stop drafting after so many tokens; the next drafts begin without prejudice."""
        self._resume = drawn + self._wait
        self._wait *= 2
        self._right, self._tried = 2 * self._start, 2.0
        self.pauses += 1


class Record:
    """Of all sequences together: what one that begins may expect of a head, which guesses alike for all of them."""

    def __init__(self) -> None:
        self._all, self._begun = Acceptance(HOPE), 0

    def expected(self) -> float:
        """What a sequence that begins now expects."""
        self._begun += 1
        return self._all.rate if self._begun % HOPEFUL else HOPE

    def learn(self, drafted: int, accepted: int) -> None:
        """Of so many drafts of some sequence the first `accepted` were right."""
        self._all.learn(drafted, accepted)
