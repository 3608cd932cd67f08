"""Requests and active sequences, and their settings as inputs of a step."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from hybridlm.grammars import TokenState, token_masks
from hybridlm.requests.captured import Recorder
from hybridlm.requests.probes import Probe
from hybridlm.requests.sampling_params import PlainSettings
from hybridlm.rows.snapshot import Snapshot
from hybridlm.sampling.logit_changes import LogitChanges, mask_words
from hybridlm.sampling.sampling import BESIDE_GREEDY, FILTERED, GREEDY, SAMPLED, Sampling
from hybridlm.steps.operands import Feed
from ir_passes.host.slot_owner import Slot

if TYPE_CHECKING:
    from hybridlm.drafting.acceptance import Drafting

MIN_CHANGES, CHANGES_STEP = 64, 8
"""Changes of a lane in the smallest step, and the factor to the next step."""
FinishReason = Literal["stop", "length", "cancelled"]
ARRIVALS = itertools.count()
"""Numbers of sequences and texts in the order of their arrival."""


@dataclass(frozen=True, kw_only=True)
class ResolvedParams(PlainSettings):
    """`SamplingParams` checked against a model, with stop strings and stop token ids in two fields.

    Attributes:
        grammar: of structured outputs, in llguidance's format.
    """

    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    grammar: str | None = None

    @cached_property
    def changes_logits(self) -> bool:
        """Whether penalties, biases or bans change logits, by all sampled tokens."""
        changes = self.presence_penalty, self.frequency_penalty, self.logit_bias, self.min_tokens, self.bad_words
        return self.repetition_penalty != 1 or any(changes)


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


@dataclass(eq=False)
class ActiveSequence:
    """A request that has joined, and the tokens generated so far.

    Steps run one ahead of the read tokens.

    Attributes:
        prompt: tokens to read before sampling; after a preemption with all generated before.
        order: its place, of priority and arrival: the least joins first, and is preempted last.
        limit, max_sampled: most positions in its row, with MTP drafts, and most sampled tokens; set by the scheduler.
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
    limit: int = 0
    max_sampled: int = 0
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

    def begin_again(self) -> None:
        """Read prompt and generated tokens again in an empty row, after a preemption.

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

    def feed(self, width: int) -> Feed:
        """Return the prompt tokens of the next step, at most `width`, up to a stop."""
        end = min([self.consumed + width, *(stop for stop in self.stops if stop > self.consumed)])
        if self.probe is not None:
            end = self.probe.stop(self.consumed, end)
        return Feed(self.prompt[self.consumed : end], self.consumed)

    @property
    def prefilling(self) -> bool:
        return self.consumed < len(self.prompt)

    @property
    def sampled(self) -> int:
        """Number of tokens sampled by dispatched steps."""
        decoded = self.consumed - len(self.request.prompt) + 1
        return max(len(self.prompt) - len(self.request.prompt), decoded)


def most_logprobs(lanes: Sequence[ActiveSequence | None]) -> int | None:
    """Return the most reported log-probabilities of a lane's token; None without any."""
    counts = (sequence.request.params.logprobs for sequence in lanes if sequence is not None)
    return max((count for count in counts if count is not None), default=None)


def sampling_arrays(lanes: Sequence[ActiveSequence | None]) -> tuple[Sampling, np.ndarray]:
    """Return the lanes' sampling settings, and the mode (int32 [], see `sample_tokens`)."""
    idle = ResolvedParams()
    params = [idle if sequence is None else sequence.request.params for sequence in lanes]
    requests = [None if sequence is None else sequence.request for sequence in lanes]
    indices = [0 if r is None else r.index if r.sampling_index is None else r.sampling_index for r in requests]
    sampling = Sampling(
        np.array([p.temperature for p in params], np.float32),
        np.array([p.top_k for p in params], np.int32),
        np.array([p.top_p for p in params], np.float32),
        np.array([p.min_p for p in params], np.float32),
        np.array([[p.seed >> 32, p.seed & 0xFFFFFFFF] for p in params], np.uint32),
        np.array(indices, np.uint32),
    )
    sampled = [p for p in params if p.temperature != 0]
    filtered = any(p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in sampled)
    sampling_mode = GREEDY if not sampled else FILTERED if filtered else SAMPLED
    if sampling_mode != GREEDY and any(
        sequence is not None and sequence.request.params.temperature == 0 for sequence in lanes
    ):
        sampling_mode += BESIDE_GREEDY
    return sampling, np.array(sampling_mode, np.int32)


def logit_changes(
    lanes: Sequence[ActiveSequence | None],
    vocab_size: int,
    drafts: Sequence[Sequence[int]] | None = None,
    tokens: int = 1,
) -> LogitChanges | None:
    """Return the logit changes of all lanes, padded to a bucket; None without changes.

    All their sampled tokens must have been read; `drafts` are of a verifying step.
    """
    lane_changes = [_changes(s) if s is not None and s.request.params.changes_logits else None for s in lanes]
    grammars = [None if s is None else s.grammar for s in lanes]
    if all(change is None for change in (*lane_changes, *grammars)):
        return None
    masks = token_masks(grammars, mask_words(vocab_size), drafts, tokens)
    count = bucket(max((lane_change[0].size for lane_change in lane_changes if lane_change is not None), default=0))
    changes = LogitChanges(
        np.full((len(lanes), count), vocab_size, np.int32),
        np.zeros((len(lanes), count), np.float32),
        np.ones((len(lanes), count), np.float32),
        np.zeros((len(lanes), count), np.float32),
        masks,
    )
    for lane, lane_change in enumerate(lane_changes):
        if lane_change is not None:
            for target, part in zip(changes[:-1], lane_change, strict=True):
                assert isinstance(target, np.ndarray)
                target[lane, : part.size] = part
    return changes


def empty_changes(lanes: int, count: int, mask: tuple[int, ...] | None = None) -> LogitChanges:
    """Return an operand without changes; `mask` is the shape after the lanes."""
    bias, repetition, penalty = (np.zeros((lanes, count), np.float32) for _ in range(3))
    masks = None if mask is None else np.zeros((lanes, *mask), np.uint32)
    return LogitChanges(np.zeros((lanes, count), np.int32), bias, repetition, penalty, masks)


def bucket(count: int) -> int:
    size = MIN_CHANGES
    while size < count:
        size *= CHANGES_STEP
    return size


def _changes(sequence: ActiveSequence) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    request, params = sequence.request, sequence.request.params
    generated = np.array(sequence.output, np.int32)
    if len(sequence.generated) != sequence.sampled:
        raise AssertionError(f"request {request.index}: a step with penalties needs all of its sampled tokens")
    history = (*request.prompt, *sequence.generated)
    bias = dict(params.logit_bias)
    banned = params.stop_token_ids if generated.size < params.min_tokens else frozenset[int]()
    banned |= {word[-1] for word in params.bad_words if history[len(history) - len(word) + 1 :] == word[:-1]}
    repeated, counted = np.empty(0, np.int32), np.empty(0, np.int32)
    counts = np.empty(0, np.int64)
    if params.repetition_penalty != 1:
        repeated = np.unique(np.array(history, np.int32))
    if params.presence_penalty or params.frequency_penalty:
        counted, counts = np.unique(generated, return_counts=True)
    biased = np.array([*bias, *banned], np.int32)
    tokens = np.unique(np.concatenate([biased, repeated, counted])).astype(np.int32)
    changes = np.zeros(tokens.size, np.float32), np.ones(tokens.size, np.float32), np.zeros(tokens.size, np.float32)
    for token, value in bias.items():
        changes[0][np.searchsorted(tokens, token)] = value
    changes[0][np.searchsorted(tokens, np.array(sorted(banned), np.int32))] = -np.inf
    changes[1][np.searchsorted(tokens, repeated)] = params.repetition_penalty
    penalty = params.presence_penalty + params.frequency_penalty * counts
    changes[2][np.searchsorted(tokens, counted)] = penalty
    return tokens, *changes
