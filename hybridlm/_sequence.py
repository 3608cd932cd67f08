"""A sequence while it is alive: its tokens, how far they have been consumed, and what ended it."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class SamplingParams:
    """How a request draws its tokens; see `LM.generate`."""

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    logprobs: int | None = None


@dataclass(frozen=True)
class Request:
    """A prompt to be continued.

    Attributes:
        index: number of the request in its call; part of the key of its draws.
        prompt: token ids, at least one.
        params: how to draw.
    """

    index: int
    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass
class Sequence:
    """A request that owns a lane, and what it has generated so far.

    Attributes:
        request: what was asked for.
        consumed: tokens that the lane's state has seen.
        generated: tokens drawn.
        logprobs, top_logprobs: of the tokens drawn, where asked for.
        finish_reason: why it ended; None while it is alive.
    """

    request: Request
    consumed: int = 0
    generated: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def prefilling(self) -> bool:
        """Whether some of the prompt has not been consumed yet."""
        return self.consumed < len(self.request.prompt)

    def pending(self, limit: int) -> tuple[int, ...]:
        """The next tokens to consume, at most `limit`: of the prompt, then the token drawn last."""
        if self.prefilling:
            return self.request.prompt[self.consumed : self.consumed + limit]
        return (self.generated[-1],)
