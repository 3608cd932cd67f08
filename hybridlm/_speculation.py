"""Whether the next step of the decode pool verifies drafts, and which.

Drafts never change what is drawn; the only question is time. A step that verifies takes longer than one that draws a
token of each lane, and gives more tokens if drafts are right. Both are measured: the times of the steps as they run,
and how often each sequence's drafts were right.
"""

from collections.abc import Callable, Sequence

from hybridlm._acceptance import Acceptance, Record
from hybridlm._drafters import Drafter, HeadDrafter, checked_proposal
from hybridlm._sequence import Sequence as Alive
from hybridlm._step_times import StepTimes

GAIN = 1.02
"""Tokens per second that drafts must promise over no drafts."""
AGAIN = 8
"""Steps without a look at drafts after they did not pay for all lanes together."""


class Drafting:
    """The drafts of one sequence.

    Args:
        drafter: guesses.
        prompt: its tokens.
        start: how often they are expected to be right.

    Attributes:
        acceptance: how often the guesses are right.
    """

    def __init__(self, drafter: Drafter, prompt: Sequence[int], start: float = 0.5):
        self._drafter = drafter
        self._prompt = len(prompt)
        self._tokens = list(prompt)
        self.acceptance = Acceptance(start)

    def hear(self, generated: int, guesses: Sequence[int]) -> None:
        """The model's own head has guessed what follows so many generated tokens."""
        if isinstance(self._drafter, HeadDrafter):
            self._drafter.hear(self._prompt + generated, guesses)

    def propose(self, generated: Sequence[int], most: int, vocab_size: int) -> tuple[int, ...]:
        """Guesses behind the tokens that were generated so far.

        Raises:
            TypeError, ValueError: the drafter's answer is none (see `checked_proposal`).
        """
        self._tokens += generated[len(self._tokens) - self._prompt :]
        return checked_proposal(self._drafter, self._tokens, most, vocab_size) if most > 0 else ()


class Speculation:
    """What a run drafts.

    Args:
        drafters: makes the drafter of a sequence.
        tokens: most drafts of a lane in a step (K).
        times: of the steps, kept from run to run.
        record: of the model's own head, kept from run to run.
        vocab_size: token ids are below it.

    Attributes:
        always: verify whatever is proposed, for tests.
    """

    always = False

    def __init__(self, drafters: Callable[[], Drafter], tokens: int, times: StepTimes, record: Record, vocab_size: int):
        self._drafters, self.tokens, self.times, self._vocab_size = drafters, tokens, times, vocab_size
        self._wait = 0
        self._record = record if drafters is HeadDrafter else None

    def begin(self, prompt: Sequence[int]) -> Drafting:
        """For a sequence that joins."""
        if self._record is None:
            return Drafting(self._drafters(), prompt)
        return Drafting(self._drafters(), prompt, self._record.expected())

    def looks(self, sequences: Sequence[Alive]) -> bool:
        """Whether the next step needs to know what the one before has drawn."""
        return not self._wait and any(
            s.drafting is not None and s.drafting.acceptance.drafts(s.drawn) for s in sequences
        )

    def rest(self) -> None:
        """A step has passed without a look at drafts."""
        self._wait = max(0, self._wait - 1)

    def drafts(self, lanes: Sequence[Alive | None], context: int) -> list[tuple[int, ...]] | None:
        """The drafts of every lane; None where the next step had better have none.

        Everything that the lanes have drawn must have been read.

        Raises:
            TypeError, ValueError: a drafter's answer is none.
        """
        proposed = [() if s is None else self._propose(s, context) for s in lanes]
        if not any(proposed):
            return None
        plain, verify = self.steps(len(lanes))
        if self.always:
            return proposed
        if not self.times.known(plain):
            return None
        counts = [(s, len(drafts)) for s, drafts in zip(lanes, proposed, strict=True) if s is not None]
        if self.times.known(verify) and not self._pays(counts, len(lanes)):
            self._wait = AGAIN
            return None
        return proposed

    def guesses(self, lanes: Sequence[Alive | None], verifying: bool) -> int:
        """How many tokens the model's own head guesses in the next step, for the one behind it to verify.

        Args:
            lanes: the sequences.
            verifying: whether the next step verifies drafts; one that draws guesses only where that promises to pay.
        """
        if self._record is None or self._wait:
            return 0
        if verifying or self.always:
            return self.tokens
        plain, verify = self.steps(len(lanes))
        drafting = [(s, s.drafting is not None and s.drafting.acceptance.drafts(s.drawn)) for s in lanes if s]
        if not self.times.known(plain) or not any(drafts for _, drafts in drafting):
            return 0
        if self.times.known(verify) and not self._pays([(s, self.tokens * one) for s, one in drafting], len(lanes)):
            self._wait = AGAIN
            return 0
        return self.tokens

    def steps(self, lanes: int) -> tuple[tuple[str, int], tuple[str, int]]:
        """Names of the two steps of a pool under which their times are kept."""
        return ("draw", lanes), ("verify" if self._record is None else "verify and guess", lanes)

    def cost(self, lanes: int) -> float:
        """Time of a step that verifies, in those of one that draws; both have been measured."""
        plain, verify = self.steps(lanes)
        return self.times.median(verify) / self.times.median(plain)

    def learn(self, sequence: Alive, lanes: int, drafted: int, accepted: int) -> bool:
        """Of a sequence's drafts the first `accepted` were right; returns whether it stops drafting for a while."""
        assert sequence.drafting is not None
        acceptance = sequence.drafting.acceptance
        acceptance.learn(drafted, accepted)
        if self._record is not None:
            self._record.learn(drafted, accepted)
        _, verify = self.steps(lanes)
        if self.always or not self.times.known(verify) or 1 + acceptance.expected(self.tokens) > self.cost(lanes):
            return False
        acceptance.pause(sequence.drawn)
        return True

    def _propose(self, sequence: Alive, context: int) -> tuple[int, ...]:
        drafting = sequence.drafting
        if drafting is None or not drafting.acceptance.drafts(sequence.drawn):
            return ()
        return drafting.propose(sequence.generated, min(self.tokens, sequence.left(context) - 1), self._vocab_size)

    def _pays(self, drafts: Sequence[tuple[Alive, int]], lanes: int) -> bool:
        """Whether a step that verifies so many drafts of each sequence gives more tokens in its time."""
        expected = sum(
            1 + (s.drafting.acceptance.expected(count) if s.drafting is not None else 0) for s, count in drafts
        )
        return expected > GAIN * self.cost(lanes) * len(drafts)
