"""Decode steps and their pages: one token per sequence, or verified drafts (speculative decoding).

A sampling step is dispatched before the previous tokens have been read; a verifying step waits for them, as drafts
depend on them. Without free pages, states of the prefix cache are evicted, then the last joined sequence is preempted.

A device's first sequence is never preempted, and requests for more pages than a device has are refused: one sequence
can always continue.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from hybridlm.drafting.step_times import StepTiming
from hybridlm.engine.engine import Engine
from hybridlm.engine.probing import Probing, StepReads
from hybridlm.engine.reading import QueuedText, TextPart
from hybridlm.engine.speculation import Speculation
from hybridlm.programs.shapes import Shape
from hybridlm.requests.sequence import ActiveSequence, logit_changes, most_logprobs, sampling_arrays
from hybridlm.rows.pool import LaneMap, RowPool
from hybridlm.sampling.sampling import LogitsProcessor
from hybridlm.steps.generate import LAST_SAMPLED, SampledTokens
from hybridlm.steps.operands import Batch, Feed, StepInputs, blocks_for
from ir_passes.files.user_warnings import warn_user
from ir_passes.host.slot_faults import SlotError, SlotFault

Q = TypeVar("Q", bound=ActiveSequence | QueuedText)


class DispatchedStep(NamedTuple):
    """A dispatched step: pending outputs, and sequences with lanes.

    Attributes:
        accepted: accepted tokens per lane of a verifying step.
        reads: values inside the model, by lane.
    """

    sampled: Any
    sequences: list[tuple[ActiveSequence, int]]
    accepted: jax.Array | None = None
    timing: StepTiming | None = None
    reads: Mapping[int, StepReads] = MappingProxyType({})
    parts: Sequence[TextPart[Any]] = ()


class Decoding:
    """Dispatches the steps of decoding sequences.

    Args:
        processor: changes the logits of each lane before sampling.
    """

    def __init__(
        self,
        engine: Engine,
        processor: LogitsProcessor | None,
        speculation: Speculation | None,
    ):
        self._engine, self._processor, self._speculation = engine, processor, speculation
        self._drafted: list[int] = []
        self._warned = False
        self._steady: tuple[list[ActiveSequence | None], np.ndarray, StepInputs] | None = None

    def short(self, sequences: Sequence[ActiveSequence], pool: RowPool) -> list[ActiveSequence]:
        slots = [sequence.slot for sequence in sequences if sequence.slot is not None]
        counts = pool.missing(slots, [self._positions_to_decode(sequence) for sequence in sequences])
        short = (sequence for sequence, count in zip(sequences, counts, strict=True) if count)
        return sorted(short, key=lambda sequence: sequence.order)

    def grow(self, sequence: ActiveSequence, pool: RowPool) -> bool:
        """Reserve pages for the next decode step of a sequence; False without free pages."""
        assert sequence.slot is not None
        positions = self._positions_to_decode(sequence)
        (device,), (count,) = pool.devices_of([sequence.slot]), pool.missing([sequence.slot], [positions])
        if count > pool.free_pages(device):
            cache = self._engine.prefix_cache
            if cache is None or not cache.make_room(pool, device, count):
                return False
        pool.reserve(sequence.slot, positions)
        return True

    def last(self, sequence: ActiveSequence, joined: Sequence[Q], pool: RowPool) -> Q:
        """Return the sequence or text to preempt for a sequence: the last of its device.

        Raises:
            SlotsExhausted: no other sequence is on this device.
        """
        assert sequence.slot is not None
        (device,), engine = pool.devices_of([sequence.slot]), self._engine
        slots = [other.slot_of(engine) if isinstance(other, QueuedText) else other.slot for other in joined]
        neighbours = [
            other
            for other, slot in zip(joined, slots, strict=True)
            if slot is not None and pool.devices_of([slot]) == [device]
        ]
        if len(neighbours) == 1:
            pool.reserve(sequence.slot, self._positions_to_decode(sequence))
        return max(neighbours, key=lambda other: other.order)

    def warn_of_preemption(self, sequence: ActiveSequence | QueuedText) -> None:
        if not self._warned:
            self._warned = True
            warn_user(
                f"{sequence.subject} was preempted after {sequence.consumed} tokens, because all "
                f"{self._engine.cache_positions:,} positions of the KV cache are in use: it waits, and its tokens are "
                "read again. load(cache=) with more, or fewer lanes, avoids this; lm.stats['preemptions'] counts it",
            )

    def _positions_to_decode(self, sequence: ActiveSequence) -> int:
        """Return a decoding sequence's positions after its next step, with drafts."""
        ahead = 0 if self._speculation is None else self._speculation.ahead
        return min(sequence.consumed + 1 + ahead, sequence.limit)

    def needs_tokens(self, sequences: list[ActiveSequence]) -> bool:
        """True if the next step needs all sampled tokens (drafts, masks, changes of logits)."""
        return self._drafts(sequences) or any(
            sequence.grammar is not None or sequence.request.params.changes_logits for sequence in sequences
        )

    def _drafts(self, sequences: list[ActiveSequence]) -> bool:
        return self._speculation is not None and self._speculation.should_draft(sequences)

    def step(
        self,
        pool: RowPool,
        lanes: list[ActiveSequence | None],
        lane_map: LaneMap,
        probing: Probing | None,
    ) -> DispatchedStep:
        """Dispatch the next step."""
        top, speculation = most_logprobs(lanes), self._speculation
        if speculation is not None:
            if self._drafts([sequence for sequence in lanes if sequence is not None]):
                drafts = speculation.drafts(lanes)
                if drafts is not None:
                    return self._verify(speculation, pool, lanes, lane_map, drafts, top)
            else:
                speculation.skip()
        mtp_drafts = 0 if speculation is None else speculation.mtp_draft_count(lanes, verifying=False)
        return self._generate(pool, lanes, lane_map, top, mtp_drafts, probing)

    def settle(self, pool: RowPool, dispatched: DispatchedStep, accepted: np.ndarray) -> None:
        """Process the accepted tokens per lane of a verifying step, int32 [N].

        Raises:
            SlotError: a number below 1, or above the lane's drafts plus 1.
        """
        engine, speculation = self._engine, self._speculation
        assert speculation is not None
        for sequence, lane in dispatched.sequences:
            count, drafted = int(accepted[lane]), self._drafted[lane]
            if sequence.slot is None:  # it left or was preempted meanwhile
                sequence.consumed += count
                continue
            if not 1 <= count <= drafted + 1:
                message = f"expected 1 to {drafted + 1} accepted tokens of {drafted} drafts, got {count}"
                raise SlotError(SlotFault.ACCEPTED.fault(f"lane {lane}, {sequence.slot!r}", message))
            pool.settle(sequence.slot, count)
            sequence.consumed += count
            if drafted:
                engine.stats.add("drafted_tokens", drafted)
                engine.stats.add("accepted_tokens", count - 1)
                pauses = speculation.observe(sequence, len(accepted), drafted, count - 1)
                engine.stats.add("speculation_pauses", pauses)

    def _generate(
        self,
        pool: RowPool,
        lanes: list[ActiveSequence | None],
        lane_map: LaneMap,
        top: int | None,
        mtp_drafts: int,
        probing: Probing | None,
    ) -> DispatchedStep:
        engine = self._engine
        consumed = [0 if sequence is None else sequence.consumed for sequence in lanes]
        end = min(max(consumed) + 1 + mtp_drafts, engine.context)
        positions, blocks = np.array(consumed, np.int32), blocks_for(end)
        if self._steady is None or self._steady[0] != lanes:
            tokens = np.full((len(lanes), 1), LAST_SAMPLED, np.int32)
            active = np.array([sequence is not None for sequence in lanes], np.int32)
            probes = None if probing is None else probing.inputs(lanes)
            batch = Batch(tokens, active, positions, lane_map.slots, blocks, lane_map.pages)
            inputs = StepInputs(batch, None, *sampling_arrays(lanes), probes=probes)
            self._steady = lanes, active, engine.placement.ahead(inputs)
        _, counts, placed = self._steady
        batch = Batch(placed.batch.tokens, placed.batch.lengths, positions, lane_map.slots, blocks, lane_map.pages)
        changes = logit_changes(lanes, engine.vocab_size)
        # `_replace` takes twice the time.
        inputs = StepInputs(batch, None, placed.sampling, placed.sampling_mode, changes, probes=placed.probes)
        shape = Shape.of(inputs, pool.size, pool.pages, top, self._processor, mtp_drafts)
        timing = self._time(shape)
        sampled = engine.run(shape, pool, lane_map.rows, inputs, owners=lanes, counts=counts)
        if timing is not None:
            timing.dispatched(sampled.token)
        sequences = _active_lanes(lanes)
        for sequence, _ in sequences:
            sequence.consumed += 1
        stepped = [(lane, sequence, 1) for sequence, lane in sequences]
        reads = {} if probing is None else probing.after_step(pool, lane_map, stepped)
        return DispatchedStep(sampled, sequences, timing=timing, reads=reads)

    def _verify(
        self,
        speculation: Speculation,
        pool: RowPool,
        lanes: list[ActiveSequence | None],
        lane_map: LaneMap,
        drafts: list[tuple[int, ...]],
        top: int | None,
    ) -> DispatchedStep:
        engine, tokens = self._engine, speculation.tokens + 1
        feeds = [
            None if s is None else Feed((LAST_SAMPLED, *draft), s.consumed)
            for s, draft in zip(lanes, drafts, strict=True)
        ]
        mtp_drafts = speculation.mtp_draft_count(lanes, verifying=True)
        batch = Batch.of(feeds, tokens, lane_map.slots, lane_map.pages)
        end = max(feed.position + len(feed.tokens) for feed in feeds if feed is not None)
        batch = batch._replace(kv_blocks=blocks_for(min(end + mtp_drafts, engine.context)))  # no draft is used later
        self._drafted = [len(draft) for draft in drafts]
        changes = logit_changes(lanes, engine.vocab_size, drafts, tokens)
        inputs = StepInputs(batch, np.array(self._drafted, np.int32), *sampling_arrays(lanes), changes)
        shape = Shape.of(inputs, pool.size, pool.pages, top, self._processor, mtp_drafts)
        timing = self._time(shape)
        accepted, sampled = engine.run(shape, pool, lane_map.rows, inputs, owners=lanes, counts=None)
        engine.stats.add("verify_steps")
        if timing is not None:
            timing.dispatched(sampled.token)
        return DispatchedStep(sampled, _active_lanes(lanes), accepted, timing)

    def _time(self, shape: Shape) -> StepTiming | None:
        engine = self._engine
        if self._speculation is None or not engine.runner.start_timing(shape, engine.example_arguments):
            return None
        return self._speculation.times.start((shape.step, shape.lanes, shape.mtp_drafts))


def _active_lanes(lanes: list[ActiveSequence | None]) -> list[tuple[ActiveSequence, int]]:
    return [(sequence, lane) for lane, sequence in enumerate(lanes) if sequence is not None]


def append_token(sequence: ActiveSequence, sampled: SampledTokens, place: tuple[int, ...]) -> None:
    """Append outputs at [lane] or [lane, token]."""
    count = sequence.request.params.logprobs
    sequence.generated.append(int(sampled.token[place]))
    if count is not None and sampled.logprob is not None:
        sequence.logprobs.append(float(sampled.logprob[place]))
    if count and sampled.top_tokens is not None and sampled.top_logprobs is not None:
        best = zip(
            sampled.top_tokens[place][:count].tolist(), sampled.top_logprobs[place][:count].tolist(), strict=True
        )
        sequence.top_logprobs.append(dict(best))
