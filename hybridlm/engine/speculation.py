"""Speculation: the choice of drafts for the next decode step.

Drafts change the speed only. A verifying step takes longer, and yields more tokens with right drafts; step times and
each sequence's acceptance are measured.
"""

from collections.abc import Callable, Sequence

from hybridlm.drafting.acceptance import AcceptancePrior, Drafting
from hybridlm.drafting.drafters import Drafter, MtpDrafter
from hybridlm.drafting.step_times import StepTimes
from hybridlm.requests.sequence import ActiveSequence

MIN_SPEEDUP = 1.02
"""Least expected speed-up over no drafts, for verifying."""
MIN_WAIT, MAX_WAIT = 8, 512
"""Steps without drafting after unprofitable drafts; doubles each time in a row."""
REMEASURE_AFTER = 64
"""Steps until unprofitable drafts are verified once: step times may have changed."""


class Speculation:
    """The drafting decisions of a run.

    Args:
        tokens: most drafts of a lane in a step (K).
        times, prior: step times, and acceptance rate of new sequences, from earlier runs.

    Attributes:
        always: verify every proposal, for tests.
    """

    always = False

    def __init__(
        self, drafters: Callable[[], Drafter], tokens: int, times: StepTimes, prior: AcceptancePrior, vocab_size: int
    ):
        self._drafters, self.tokens, self.times, self._vocab_size = drafters, tokens, times, vocab_size
        self._prior = prior
        self._wait, self._refused = 0, MIN_WAIT
        self._head, self._mtp_next = drafters is MtpDrafter, False

    @property
    def ahead(self) -> int:
        """Most positions after a lane's next token in a step."""
        return 2 * self.tokens if self._head else self.tokens

    @property
    def head_drafts(self) -> int:
        return self.tokens if self._head else 0

    def begin(self, prompt: Sequence[int]) -> Drafting:
        return Drafting(self._drafters(), prompt, self._prior.begin())

    def should_draft(self, sequences: Sequence[ActiveSequence]) -> bool:
        """Whether the next step drafts and therefore needs the previous step's tokens.

        The wait pays where the read tokens, although one short, have drafts. MTP drafts come with those tokens.
        """
        if self._head:
            return self._mtp_next
        return not self._wait and any(map(self._propose, sequences))

    def skip(self) -> None:
        self._wait = max(0, self._wait - 1)

    def drafts(self, lanes: Sequence[ActiveSequence | None]) -> list[tuple[int, ...]] | None:
        """Return the drafts of every lane; None if the next step should not verify any.

        All sampled tokens must have been read.

        Raises:
            TypeError, ValueError: a drafter's answer is not a list of token ids.
        """
        proposed = [() if s is None else self._propose(s) for s in lanes]
        if not any(proposed):
            return None
        if self.always:
            return proposed
        if not self.times.measured(self.steps(len(lanes))[0]):
            return None
        if self._wait:  # the MTP head drafted to measure the time
            return proposed
        return proposed if self._should_verify(lanes, proposed) else None

    def mtp_draft_count(self, lanes: Sequence[ActiveSequence | None], verifying: bool) -> int:
        """Return the number of MTP drafts in the next step, for a later step.

        Args:
            verifying: the next step verifies drafts; a sampling step drafts only if that may pay.
        """
        if not self._head:
            return 0
        self._mtp_next = not self._wait and (verifying or self._should_propose(lanes))
        return self.tokens if verifying or self._mtp_next else 0

    def _should_propose(self, lanes: Sequence[ActiveSequence | None]) -> bool:
        asking = [s is not None and s.drafting is not None and s.drafting.should_draft(s.sampled) for s in lanes]
        if self.always or not any(asking):
            return self.always
        return self.times.measured(self.steps(len(lanes))[0]) and self._should_verify(
            lanes, [(0,) * self.tokens if drafting else () for drafting in asking]
        )

    def _should_verify(self, lanes: Sequence[ActiveSequence | None], drafts: list[tuple[int, ...]]) -> bool:
        """Whether to verify drafts, for speed or to measure."""
        if not self.times.measured(self.steps(len(lanes))[1]) or self._pays(lanes, drafts, self.cost(len(lanes))):
            self._refused = MIN_WAIT
            return True
        self._wait, self._refused = self._refused, min(2 * self._refused, MAX_WAIT)
        return self._wait > REMEASURE_AFTER

    def steps(self, lanes: int) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
        """Return the `StepTimes` keys of sampling and verifying: kind, lanes, MTP drafts."""
        return ("generate", lanes, 0), ("verify", lanes, self.tokens if self._head else 0)

    def cost(self, lanes: int) -> float:
        plain, verify = self.steps(lanes)
        return self.times.min_seconds(verify) / self.times.min_seconds(plain)

    def observe(self, sequence: ActiveSequence, lanes: int, drafted: int, accepted: int) -> bool:
        """Record the accepted drafts of a sequence; return whether it pauses drafting."""
        drafting = sequence.drafting
        assert drafting is not None
        drafting.observe(drafted, accepted)
        self._prior.observe(drafted, accepted)
        _, verify = self.steps(lanes)
        if self.always or not self.times.measured(verify) or 1 + drafting.expected(self.tokens) > self.cost(lanes):
            return False
        drafting.pause(sequence.sampled)
        return True

    def _propose(self, sequence: ActiveSequence) -> tuple[int, ...]:
        drafting = sequence.drafting
        if drafting is None or not drafting.should_draft(sequence.sampled):
            return ()
        limit = min(self.tokens, sequence.max_sampled - sequence.sampled - 1)
        drafts = drafting.propose(sequence.generated, limit, self._vocab_size)
        return drafts if sequence.grammar is None else drafts[: sequence.grammar.allowed(drafts)]

    def _pays(self, lanes: Sequence[ActiveSequence | None], proposed: list[tuple[int, ...]], cost: float) -> bool:
        alive = [(s, drafts) for s, drafts in zip(lanes, proposed, strict=True) if s is not None]
        expected = sum(1 + (s.drafting.expected(len(drafts)) if s.drafting is not None else 0) for s, drafts in alive)
        return expected > MIN_SPEEDUP * cost * len(alive)
