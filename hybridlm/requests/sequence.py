"""Requests and active sequences: tokens, dispatched progress, and finish reason."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from hybridlm.grammars import GrammarSource, TokenState
from hybridlm.requests.captured import Recorder
from hybridlm.requests.probes import Probe
from hybridlm.requests.sampling_params import PlainSettings
from hybridlm.rows.snapshot import Snapshot
from ir_passes.host.slot_owner import Slot

if TYPE_CHECKING:
    from hybridlm.drafting.acceptance import Drafting

FinishReason = Literal["stop", "length", "cancelled"]
ARRIVALS = itertools.count()
"""Numbers of sequences and texts in the order of their arrival."""


@dataclass(frozen=True, kw_only=True)
class ResolvedParams(PlainSettings):
    """`SamplingParams` checked against a model; stop strings apart from stop ids."""

    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    grammar: GrammarSource | None = None

    @cached_property
    def masked(self) -> bool:
        """Whether a grammar or `allowed_token_ids` rule tokens out."""
        return self.grammar is not None or self.allowed_token_ids is not None

    @cached_property
    def changes_logits(self) -> bool:
        """Whether penalties, biases or bans change logits, by all sampled tokens."""
        changes = self.presence_penalty, self.frequency_penalty, self.logit_bias, self.min_tokens, self.bad_words
        return self.repetition_penalty != 1 or any(changes)

    @cached_property
    def needs_output(self) -> bool:
        return self.changes_logits or self.masked


@dataclass(frozen=True)
class Request:
    """A prompt to be completed.

    Attributes:
        sampling_index: part of the random key; None for the index.
        start: state after the first tokens of the prompt.
        completed: last tokens of the prompt that belong to the completion, from before the end of thoughts was set.
    """

    index: int
    prompt: tuple[int, ...]
    params: ResolvedParams
    priority: int = 0
    sampling_index: int | None = None
    start: Snapshot | None = None
    completed: int = 0
    probe: Probe | None = None

    @property
    def given(self) -> tuple[int, ...]:
        return self.prompt[: len(self.prompt) - self.completed]

    @property
    def key_index(self) -> int:
        return self.index if self.sampling_index is None else self.sampling_index


@dataclass(eq=False)
class ActiveSequence:
    """A request that has joined, and the tokens generated so far.

    Steps run one ahead of the read tokens.

    Attributes:
        prompt: tokens to read before sampling; after a preemption with all generated before.
        order: its place, of priority and arrival: the least joins first, and is preempted last.
        consumed: tokens in its state after the dispatched steps.
        slot: None while it waits and after its last step was dispatched.
        stepped: it has had a step in its row.
        generated: tokens sampled and read.
        grammar: next tokens by grammar or `allowed_token_ids`.
        stops: prompt positions that end a step, because the state is cached there.
        probe: remaining reads, and changes inside the model.
    """

    request: Request
    prompt: tuple[int, ...] = field(init=False)
    order: tuple[int, ...] = field(init=False)
    consumed: int = 0
    slot: Slot | None = None
    stepped: bool = False
    generated: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    drafting: "Drafting | None" = None
    grammar: TokenState | None = None
    stops: tuple[int, ...] = ()
    probe: Probe | None = field(init=False)
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        self.prompt, self.probe = self.request.prompt, self.request.probe
        self.order = -self.request.priority, next(ARRIVALS)

    def begin(self) -> None:
        """Read the prompt (and generated tokens) from its beginning, in an empty row.

        All tokens of dispatched steps have been read. The random key has the next token's position, so this token stays
        the same.
        """
        self.prompt, self.consumed = (*self.request.prompt, *self.generated), 0
        if self.generated and self.probe is not None:
            self.probe = self.probe.reading_from(len(self.prompt) - 1)

    @property
    def subject(self) -> str:
        return f"request {self.request.index}"

    @property
    def shares_states(self) -> bool:
        """Whether states depend on tokens alone, for the prefix cache."""
        return self.probe is None or not self.probe.intervenes

    @property
    def output(self) -> list[int]:
        return [*self.request.prompt[len(self.request.given) :], *self.generated]

    def next_chunk(self, chunk: int) -> tuple[int, ...]:
        """Return the prompt tokens of the next step, at most `chunk`, up to a stop."""
        end = min([self.consumed + chunk, *(stop for stop in self.stops if stop > self.consumed)])
        if self.probe is not None:
            end = self.probe.stop(self.consumed, end)
        return self.prompt[self.consumed : end]

    @property
    def prefilling(self) -> bool:
        return self.consumed < len(self.prompt)

    @property
    def sampled(self) -> int:
        """Number of tokens sampled by dispatched steps."""
        decoded = self.consumed - len(self.request.prompt) + 1
        return max(len(self.prompt) - len(self.request.prompt), decoded)

    def remaining(self, context: int) -> int:
        return min(self.request.params.max_tokens, context - len(self.request.prompt)) - self.sampled


def slots_of(sequences: Sequence[Any]) -> list[Slot]:
    return [sequence.slot for sequence in sequences if sequence.slot is not None]
