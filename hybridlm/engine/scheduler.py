"""The scheduler: continuous batching. Sequences join, prefill, decode and leave at any step.

A sequence waits for admission, then has one row of the pool until it ends: its prompt is prefilled in it chunk by chunk
(chunked prefill), then it decodes. A step has lanes for its own sequences alone. A prefill step has priority over a
decode step, because a decode step costs the same with idle lanes; after `MAX_PREFILL_RUN` prefill steps the decoding
sequences get one step, so that a long prompt does not stall them. `Admission` decides by the pages of the KV cache who
joins and who is preempted. Steps are dispatched before the previous step's tokens have been read: the token a lane
sampled last is in its row.

More than 300 lines: one class moves each sequence from waiting over prefilling to decoding.
"""

import heapq
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np

from hybridlm.engine.admission import Admission
from hybridlm.engine.decoding import Decoding, DispatchedStep
from hybridlm.engine.engine import Engine
from hybridlm.engine.probing import Probing
from hybridlm.engine.speculation import Speculation
from hybridlm.engine.widths import cheapest_step
from hybridlm.programs.shapes import Shape
from hybridlm.requests.sampling_operands import sampling_inputs
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.rows.pool import LaneMap, RowPool
from hybridlm.rows.snapshot import Snapshot
from hybridlm.sampling.sampling import LogitsProcessor
from hybridlm.steps.operands import Batch, Feed
from ir_passes.contract.statements import Statement
from ir_passes.host.slot_owner import Slot, SlotError, SlotFault

MAX_PREFILL_RUN = 8
"""Consecutive prefill steps after which decoding sequences get a step."""
SHRINK_PLACES = 256
"""A decode step gets fewer lanes if this saves so many idle places: idle lanes times steps that are left. With fewer,
compiling the smaller step costs more time."""


class Scheduler:
    """The sequences of one run and the pool with their rows.

    Args:
        engine: runs the steps.
        processor: changes the logits of each lane before sampling.
        speculation: the choice of drafts; None never drafts.
        probing: reads and changes inside the model; None without any.

    Attributes:
        waiting: sequences without a row, as a heap of (-priority, order of arrival, sequence).
        prefilling, decoding: sequences with a row, before and after the end of their prompts, in the order they joined.
    """

    def __init__(
        self,
        engine: Engine,
        processor: LogitsProcessor | None = None,
        speculation: Speculation | None = None,
        probing: Probing | None = None,
    ):
        self._engine, self._processor, self._probing = engine, processor, probing
        self._decoding = Decoding(engine, processor, speculation, probing)
        self._admission = Admission(engine, speculation)
        self.waiting: list[tuple[int, int, ActiveSequence]] = []
        self.prefilling: list[ActiveSequence] = []
        self.decoding: list[ActiveSequence] = []
        self._arrived, self._probed_turn, self._prefill_run = 0, False, 0
        self._pool: RowPool | None = None
        self._decode_lanes = 0
        engine.queues.add(self)

    def read_and_change(self, probing: Probing) -> None:
        """Enable reads and changes inside the model; raise ValueError if the session drafts."""
        self._decoding.read_and_change(probing)
        self._probing = probing

    @property
    def joined(self) -> list[ActiveSequence]:
        """Sequences with a row."""
        return self.prefilling + self.decoding

    def add(self, sequence: ActiveSequence) -> None:
        """Add a sequence to the queue."""
        self._decoding.begin(sequence)
        sequence.arrival = self._arrived
        self._arrived += 1
        self._wait(sequence)

    def _wait(self, sequence: ActiveSequence) -> None:
        """Put a sequence into its place of the queue."""
        heapq.heappush(self.waiting, (*sequence.order, sequence))

    def leave(self, sequence: ActiveSequence) -> None:
        """Remove a sequence that ends; a step in flight may still write its row."""
        self.waiting = [entry for entry in self.waiting if entry[2] is not sequence]
        heapq.heapify(self.waiting)
        if sequence.finish_reason == "stop" and sequence in self.decoding and self._pool is not None:
            self._cache_state(sequence, self._pool)  # the next turn of a conversation continues it
        self._release(sequence)
        self._engine.runner.forget(sequence)

    def next(self) -> DispatchedStep | None:
        """Dispatch the next step; None if no sequence has anything left to compute."""
        self._admit()
        if not self._prefills_next:
            self._grow()
        if self._prefills_next:
            self._prefill_run += 1
            return self._prefill()
        self._prefill_run = 0
        return self._decode_step() if self.decoding else None

    @property
    def _prefills_next(self) -> bool:
        """Whether the next step is a prefill step."""
        return bool(self.prefilling) and (not self.decoding or self._prefill_run < MAX_PREFILL_RUN)

    @property
    def needs_tokens(self) -> bool:
        """Whether the next step depends on tokens that are not read yet."""
        return not self._prefills_next and self._decoding.needs_tokens(self.decoding)

    def settle(self, dispatched: DispatchedStep, accepted: np.ndarray) -> None:
        """Process the number of accepted tokens per lane of a step that verified."""
        assert self._pool is not None
        self._decoding.settle(self._pool, dispatched, accepted)
        self._release_finished(dispatched)

    def invalidate(self, sequence: ActiveSequence) -> None:
        """Remove the cached states of a sequence with wrong results."""
        if self._engine.prefix_cache is not None:
            self._engine.prefix_cache.invalidate((*sequence.request.prompt, *sequence.generated))

    def lose_rows(self) -> None:
        """Drop the arrays of the pool after a failed step on the device."""
        if self._pool is not None and self._pool.whole:
            self._pool.take()

    def close(self) -> None:
        """End every sequence and give the pool back."""
        self.waiting.clear()
        for sequence in self.joined:
            self._release(sequence)
        if self._pool is not None:
            self._engine.give_back(self._pool)
        self._pool = None

    def check_integrity(self) -> None:
        """Check that each row has at most one sequence and each sequence one queue.

        Raises:
            SlotError: with everything that is wrong.
        """
        faults: list[Statement] = []
        pool, joined = self._pool, self.joined
        without = [sequence.request.index for sequence in joined if sequence.slot is None]
        if without or (joined and pool is None):
            message = f"requests {without} have no row" if without else f"{len(joined)} sequences have rows of no pool"
            faults.append(SlotFault.NO_ROW.fault("", message))
        elif pool is not None:
            pool.check_integrity()
            pool.rows_of(_slots(joined))
            if len(pool.owner.held) != len(joined):
                message = f"{len(pool.owner.held)} of {pool.size} rows are held by {len(joined)} sequences"
                faults.append(SlotFault.STATES.fault("", message))
        if len({id(s) for s in self.joined}) != len(self.joined) or any(s[2].slot is not None for s in self.waiting):
            faults.append(SlotFault.STATES.fault("", "a sequence is in two states"))
        if len(self.joined) > self._engine.lanes:
            message = f"{len(self.joined)} sequences have joined, expected at most {self._engine.lanes}"
            faults.append(SlotFault.STATES.fault("", message))
        if faults:
            raise SlotError(*faults)
        if self._engine.prefix_cache is not None:
            self._engine.prefix_cache.check_integrity()

    def _admit(self) -> None:
        """Give rows and pages to waiting sequences."""
        engine = self._engine
        room = engine.lanes - len(self.joined)
        if not self.waiting or not room:
            return
        pool = self._pool = engine.borrow(engine.rows, cached=True) if self._pool is None else self._pool
        self._join(pool, min(room, len(self.waiting)))

    def _join(self, pool: RowPool, limit: int) -> None:
        """Let the next sequences join, each with a row from the deepest cached state of its prompt on.

        A sequence is held back while one of these is prefilling a prefix that both have in common. None overtakes a
        sequence that waits for pages, or for its tokens of a step in flight after a preemption.
        """
        delayed = list[ActiveSequence]()
        for _ in range(min(limit, self._engine.prefill_lanes - len(self.prefilling))):
            *_, sequence = heapq.heappop(self.waiting)
            if not sequence.all_read:
                delayed.append(sequence)
                break
            sequence.begin()
            cache = self._engine.prefix_cache if sequence.shares_states else None
            if cache is not None and cache.should_wait(sequence.prompt, self.prefilling):
                delayed.append(sequence)
                continue
            start = sequence.request.start
            with nullcontext(start) if cache is None else cache.pinned(sequence.prompt, start) as snapshot:
                joined = self._enter(sequence, snapshot, pool)
            # A pinned page, of which a part is copied, may take the last room.
            if not joined and (self.joined or not self._enter(sequence, start, pool)):
                delayed.append(sequence)
                break
        for sequence in delayed:
            self._wait(sequence)

    def _enter(self, sequence: ActiveSequence, snapshot: Snapshot | None, pool: RowPool) -> bool:
        """Give a sequence a row that begins with this state.

        Returns:
            False without pages for its prompt.

        Raises:
            SlotsExhausted: no other sequence has pages; the request should have been refused.
        """
        moves, cache, start = self._engine.moves, self._engine.prefix_cache, sequence.request.start
        may_wait = bool(self.joined) or snapshot is not start
        slot = self._admission.enter(sequence, moves.shareable(snapshot, pool), pool, may_wait)
        if slot is None:
            return False
        sequence.slot = slot
        self.prefilling.append(sequence)
        if cache is not None and sequence.shares_states:
            begin = 0 if snapshot is None else snapshot.label.position
            sequence.stops = cache.stops(sequence.prompt, begin)
            sequence.consumed = cache.restore(snapshot, start, pool, slot, sequence.prompt, owner=sequence)
        elif snapshot is not None:
            sequence.consumed = moves.restore(snapshot, pool, slot, sequence.prompt, owner=sequence)
        return True

    def _grow(self) -> None:
        """Reserve pages for the next decode step; preempt sequences if there are too few."""
        pool = self._pool
        if pool is None:
            return
        for sequence in self._admission.short(self.decoding, pool):
            while sequence.slot is not None and not self._admission.grow(sequence, pool):
                self._preempt(self._admission.last(sequence, self.joined, pool), pool)

    def _preempt(self, sequence: ActiveSequence, pool: RowPool) -> None:
        """Take row and pages of a sequence; it waits in its old place."""
        self._cache_state(sequence, pool)
        self._release(sequence)
        self._engine.runner.forget(sequence)
        self._wait(sequence)
        self._admission.count(sequence)

    def _prefill(self) -> DispatchedStep:
        """Dispatch the next chunk of every prompt; a sequence with its whole prompt decodes next."""
        engine, pool = self._engine, self._pool
        assert pool is not None
        sequences, size, width = self._next_prefill(pool)
        lanes, lane_map = self._by_lane(pool, sequences, size)
        feeds = [None if s is None else Feed(s.next_chunk(width), s.consumed) for s in lanes]
        batch = Batch.of(feeds, width, lane_map.slots, lane_map.pages)
        inputs = sampling_inputs(batch, lanes, engine.vocab_size)
        if self._probing is not None:
            inputs = inputs._replace(probes=self._probing.inputs(lanes))
        shape = Shape.of(inputs, pool.size, pool.pages, self._top(sequences), self._processor)
        if not self._decode_lanes:
            self._decoding.prepare(self.joined + [entry[2] for entry in self.waiting], shape.top)
        sampled = engine.run(shape, pool, lane_map.rows, inputs, owners=lanes, counts=np.asarray(batch.lengths))
        sampling: list[tuple[ActiveSequence, int]] = []
        stepped: list[tuple[int, ActiveSequence, int]] = []
        for lane, (sequence, feed) in enumerate(zip(lanes, feeds, strict=True)):
            if sequence is not None and feed is not None:
                sequence.consumed += len(feed.tokens)
                engine.stats["prompt_tokens"] += len(feed.tokens)
                stepped.append((lane, sequence, len(feed.tokens)))
                if sequence.consumed in sequence.stops:
                    self._cache_state(sequence, pool)
                if not sequence.prefilling:
                    sampling.append((sequence, lane))
        reads = {} if self._probing is None else self._probing.after_step(pool, lane_map, stepped)
        for sequence, _ in sampling:
            self._start_decoding(sequence)
        return DispatchedStep(sampled, sampling, reads=reads)

    def _next_prefill(self, pool: RowPool) -> tuple[list[ActiveSequence], int, int]:
        """Return sequences in order of joining, lanes and width of the next prefill step."""
        engine, candidates = self._engine, self._one_kind(self.prefilling)
        slots = _slots(candidates)

        def fitting(order: Sequence[int], lanes: int) -> list[int]:
            fits = pool.fitting([slots[index] for index in order], lanes)
            return [index for index in order if slots[index] in fits]

        # Two chunks tell what a prompt leaves to later steps.
        counts = [len(sequence.next_chunk(2 * engine.chunk)) for sequence in candidates]
        platform = engine.placement.platform
        chosen, lanes, width = cheapest_step(counts, fitting, engine.prefill_sizes, engine.widths, platform)
        return [candidates[index] for index in chosen], lanes, width

    def _one_kind(self, sequences: list[ActiveSequence]) -> list[ActiveSequence]:
        """Return the sequences of the next step: with probes or without, in turn.

        Requests without probes keep the bits of the plain step in this way. The other lanes are idle meanwhile.
        """
        probed = [sequence for sequence in sequences if sequence.probe is not None]
        if not probed or len(probed) == len(sequences):
            return sequences
        self._probed_turn = not self._probed_turn
        return probed if self._probed_turn else [sequence for sequence in sequences if sequence.probe is None]

    def _cache_state(self, sequence: ActiveSequence, pool: RowPool) -> None:
        """Cache the state of a sequence's row after the dispatched steps."""
        cache, tokens = self._engine.prefix_cache, (*sequence.request.prompt, *sequence.generated)
        if cache is None or sequence.slot is None or not pool.settled(sequence.slot) or not sequence.shares_states:
            return
        # A state beyond the known tokens contains drafts that were accepted after the end.
        if sequence.consumed <= len(tokens):
            cache.keep(pool, sequence.slot, tokens[: sequence.consumed], owner=sequence)

    def _start_decoding(self, sequence: ActiveSequence) -> None:
        """Let a sequence decode in its row, or release that after its only token."""
        if not sequence.remaining(self._engine.context):
            self._release(sequence)
            return
        expected = self._engine.bucket(len(self.joined) + len(self.waiting), self._engine.lanes)
        self._decode_lanes = max(self._decode_lanes, expected)
        self.prefilling.remove(sequence)
        self.decoding.append(sequence)

    def _decode_step(self) -> DispatchedStep:
        """Dispatch a step that samples one token per decoding sequence, or verifies drafts."""
        pool, sequences = self._pool, self._one_kind(self.decoding)
        assert pool is not None
        self._decode_lanes = self._fit_decode_lanes(pool)
        lanes, lane_map = self._by_lane(pool, sequences, self._decode_lanes)
        dispatched = self._decoding.step(pool, lanes, lane_map, self._top(sequences))
        if dispatched.accepted is None:
            self._release_finished(dispatched)
        return dispatched

    def _release_finished(self, dispatched: DispatchedStep) -> None:
        """Release the rows of sequences that have nothing left to sample."""
        for sequence, _ in dispatched.sequences:
            if sequence.slot is not None and not sequence.remaining(self._engine.context):
                self._release(sequence)

    def _fit_decode_lanes(self, pool: RowPool) -> int:
        """Return the lanes of the next decode step.

        These are the needed lanes, or the lanes of the step before if fewer lanes save little.
        """
        engine, lanes = self._engine, self._decode_lanes
        needed = engine.bucket(pool.lanes_for(_slots(self.decoding)), engine.lanes)
        if needed >= lanes:
            return needed
        steps = max(sequence.remaining(engine.context) for sequence in self.decoding)
        busy = self.prefilling or self.waiting
        return lanes if busy or (lanes - needed) * steps < SHRINK_PLACES else needed

    def _release(self, sequence: ActiveSequence) -> None:
        """Release the row of a sequence, if it has one."""
        for sequences in (self.prefilling, self.decoding):
            if sequence in sequences:
                sequences.remove(sequence)
                assert self._pool is not None and sequence.slot is not None
                self._pool.release(sequence.slot)
                sequence.slot = None

    def _by_lane(
        self, pool: RowPool, sequences: list[ActiveSequence], count: int
    ) -> tuple[list[ActiveSequence | None], LaneMap]:
        """Return the sequences by lane in a step of `count` lanes, and their rows."""
        lanes: list[ActiveSequence | None] = [None] * count
        places, lane_map = pool.arrange(_slots(sequences), count)
        for lane, sequence in zip(places, sequences, strict=True):
            lanes[lane] = sequence
        return lanes, lane_map

    def _top(self, sequences: list[ActiveSequence]) -> int | None:
        """Return the largest number of log-probabilities that a sequence requests; None if none does."""
        return max(
            (s.request.params.logprobs for s in sequences if s.request.params.logprobs is not None), default=None
        )


def _slots(sequences: Sequence[ActiveSequence]) -> list[Slot]:
    return [sequence.slot for sequence in sequences if sequence.slot is not None]
