"""The scheduler: continuous batching. Sequences join, prefill, decode and leave at any step.

A sequence waits for admission, then is prefilled in a row of the prefill pool, then decodes in a row of the decode pool
until it ends. Prompts are prefilled chunk by chunk (chunked prefill). A prefill step has priority over a decode step,
because a decode step costs the same with idle lanes; after `MAX_PREFILL_RUN` prefill steps the decoding sequences get
one step, so that a long prompt does not stall them. Nothing is preempted: a row holds the whole context of its
sequence. Steps are dispatched before the previous step's tokens have been read: the token a lane sampled last is in its
row.

More than 300 lines: one class moves each sequence from waiting over prefilling to decoding.
"""

import heapq
from contextlib import nullcontext

import numpy as np

from hybridlm.engine.decoding import Decoding, DispatchedStep
from hybridlm.engine.engine import Engine
from hybridlm.engine.probing import Probing
from hybridlm.engine.speculation import Speculation
from hybridlm.engine.widths import cheapest_width
from hybridlm.programs.shapes import Shape
from hybridlm.requests.sampling_operands import sampling_inputs
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.rows.pool import RowPool
from hybridlm.sampling.sampling import LogitsProcessor
from hybridlm.steps.operands import Batch, Feed
from ir_passes.contract.statements import Statement
from ir_passes.host.slot_owner import SlotError, SlotFault

MAX_PREFILL_RUN = 8
"""Consecutive prefill steps after which decoding sequences get a step."""
SHRINK_PLACES = 512
"""A decode pool shrinks if this saves so many idle places: idle lanes times steps that are left. With fewer, compiling
the smaller step and moving the rows costs more time."""


class Scheduler:
    """The sequences of one run and the pools they are in.

    Args:
        engine: runs the steps.
        processor: changes the logits of each lane before sampling.
        speculation: the choice of drafts; None never drafts.
        probing: reads and changes inside the model; None without any.

    Attributes:
        waiting: sequences without a row, as a heap of (-priority, order of arrival, sequence).
        prefilling, decoding: sequences with a row of the prefill and of the decode pool, in the order they joined.
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
        self.waiting: list[tuple[int, int, ActiveSequence]] = []
        self.prefilling: list[ActiveSequence] = []
        self.decoding: list[ActiveSequence] = []
        self._arrived, self._probed_turn, self._prefill_run = 0, False, 0
        self._prefill_pool: RowPool | None = None
        self._decode_pool: RowPool | None = None
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
        heapq.heappush(self.waiting, (-sequence.request.priority, self._arrived, sequence))
        self._arrived += 1

    def leave(self, sequence: ActiveSequence) -> None:
        """Remove a sequence that ends; a step in flight may still write its row."""
        self.waiting = [entry for entry in self.waiting if entry[2] is not sequence]
        heapq.heapify(self.waiting)
        if sequence.finish_reason == "stop" and sequence in self.decoding and self._decode_pool is not None:
            self._cache_state(sequence, self._decode_pool)  # the next turn of a conversation continues it
        self._release(sequence)
        self._engine.runner.forget(sequence)

    def next(self) -> DispatchedStep | None:
        """Dispatch the next step; None if no sequence has anything left to compute."""
        self._admit()
        if self._prefills_next:
            self._prefill_run += 1
            return self._prefill()
        self._prefill_run = 0
        if not self.prefilling:
            self._shrink()
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
        assert self._decode_pool is not None
        self._decoding.settle(self._decode_pool, dispatched, accepted)
        self._release_finished(dispatched)

    def invalidate(self, sequence: ActiveSequence) -> None:
        """Remove the cached states of a sequence with wrong results."""
        if self._engine.prefix_cache is not None:
            self._engine.prefix_cache.invalidate((*sequence.request.prompt, *sequence.generated))

    def close(self) -> None:
        """End every sequence and give the pools back."""
        self.waiting.clear()
        for sequence in self.joined:
            self._release(sequence)
        if self._prefill_pool is not None:
            self._engine.give_back("prefill", self._prefill_pool)
        if self._decode_pool is not None:
            self._engine.give_back("decode", self._decode_pool)
        self._prefill_pool = self._decode_pool = None

    def check_integrity(self) -> None:
        """Check that each row has at most one sequence and each sequence one queue.

        Raises:
            SlotError: with everything that is wrong.
        """
        faults: list[Statement] = []
        for name, pool, sequences in (
            ("prefill", self._prefill_pool, self.prefilling),
            ("decode", self._decode_pool, self.decoding),
        ):
            slots = [sequence.slot for sequence in sequences]
            if None in slots:
                message = f"request {sequences[slots.index(None)].request.index} has no row"
                faults.append(SlotFault.NO_ROW.fault(name, message))
                continue
            if pool is None:
                if slots:
                    faults.append(SlotFault.NO_ROW.fault(name, f"{len(slots)} sequences have rows of no pool"))
                continue
            pool.owner.check_integrity()
            pool.lanes([slot for slot in slots if slot is not None])
            if pool.owner.free + len(slots) != pool.size:
                message = f"free {pool.owner.free} + held {len(slots)} rows are not all {pool.size}"
                faults.append(SlotFault.STATES.fault(name, message))
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
        """Give rows of the prefill pool to waiting sequences, up to the free decode lanes."""
        engine = self._engine
        room = engine.lanes - len(self.joined)
        if not self.waiting or not room:
            return
        joining = self._next_waiting(min(room, len(self.waiting)))
        if not joining:
            return
        pool = self._fit_prefill_pool(len(joining) + len(self.prefilling))
        for sequence in joining:
            sequence.slot = pool.acquire()
            self.prefilling.append(sequence)
            self._restore_prefix(sequence, pool)

    def _fit_prefill_pool(self, count: int) -> RowPool:
        """Return the prefill pool, resized for `count` sequences: idle rows cost time."""
        engine, pool, size = self._engine, self._prefill_pool, self._engine.prefill_size(count)
        if pool is not None and pool.size != size and not self.prefilling:
            engine.give_back("prefill", pool)
            pool = None
        if pool is None:
            pool = engine.borrow("prefill", size)
        elif pool.size != size:
            pool = self._moved(pool, size, self.prefilling)
        self._prefill_pool = pool
        return pool

    def _next_waiting(self, limit: int) -> list[ActiveSequence]:
        """Return the sequences that join next.

        A sequence is held back while one of these is prefilling a prefix that both have in common.
        """
        cache, joining, delayed = self._engine.prefix_cache, list[ActiveSequence](), []
        for _ in range(min(limit, self._engine.prefill_rows - len(self.prefilling))):
            entry = heapq.heappop(self.waiting)
            request = entry[2].request
            if cache is None or not entry[2].shares_states:
                joining.append(entry[2])
            elif cache.should_wait(request.prompt, self.prefilling + joining):
                delayed.append(entry)
            else:
                entry[2].stops = cache.stops(request.prompt, cache.cached_length(request.prompt, request.start))
                joining.append(entry[2])
        for entry in delayed:
            heapq.heappush(self.waiting, entry)
        return joining

    def _restore_prefix(self, sequence: ActiveSequence, prefill_pool: RowPool) -> None:
        """Start a sequence from the deepest cached state of its prompt."""
        engine, cache = self._engine, self._engine.prefix_cache
        prompt, start = sequence.request.prompt, sequence.request.start
        assert sequence.slot is not None
        cache = cache if sequence.shares_states else None
        with nullcontext(start) if cache is None else cache.pinned(prompt, start) as start:
            if start is not None:
                sequence.consumed = engine.moves.restore(start, prefill_pool, sequence.slot, prompt, owner=sequence)

    def _prefill(self) -> DispatchedStep:
        """Dispatch the next chunk of every prompt; move finished prompts to the decode pool."""
        engine, pool = self._engine, self._fit_prefill_pool(len(self.prefilling))
        sequences = self._one_kind(self.prefilling)
        lanes = self._by_lane(pool, sequences)
        counts = [len(sequence.next_chunk(engine.chunk)) for sequence in sequences]
        width = cheapest_width(counts, pool.size, engine.widths, engine.placement.platform)
        feeds = [None if s is None else Feed(s.next_chunk(width), s.consumed) for s in lanes]
        batch = Batch.of(feeds, width)
        inputs = sampling_inputs(batch, lanes, engine.vocab_size)
        if self._probing is not None:
            inputs = inputs._replace(probes=self._probing.inputs(lanes))
        shape = Shape.of(inputs, self._top(sequences), self._processor)
        if self._decode_pool is None:
            self._decoding.prepare(pool.size, self.joined + [entry[2] for entry in self.waiting], shape.top)
        sampled = engine.run(shape, pool, inputs, owners=lanes, counts=np.asarray(batch.lengths))
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
        reads = {} if self._probing is None else self._probing.after_step(pool, stepped)
        for sequence, _ in sampling:
            self._start_decoding(sequence, pool)
        return DispatchedStep(sampled, sampling, reads=reads)

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
        if cache is None or sequence.slot is None or not pool.settled or not sequence.shares_states:
            return
        # A state beyond the known tokens contains drafts that were accepted after the end.
        if sequence.consumed <= len(tokens):
            cache.keep(pool, sequence.slot, tokens[: sequence.consumed], owner=sequence)

    def _start_decoding(self, sequence: ActiveSequence, prefill_pool: RowPool) -> None:
        """Move a sequence to the decode pool, or release it after its only token."""
        if not sequence.remaining(self._engine.context):
            self._release(sequence)
            return
        self._grow(len(self.joined) + len(self.waiting))
        assert self._decode_pool is not None and sequence.slot is not None
        slot = self._decode_pool.acquire()
        self._engine.copy(prefill_pool, sequence.slot, self._decode_pool, slot)
        self._release(sequence)
        sequence.slot = slot
        self.decoding.append(sequence)

    def _decode_step(self) -> DispatchedStep:
        """Dispatch a step that samples one token per decoding sequence, or verifies drafts."""
        pool, sequences = self._decode_pool, self._one_kind(self.decoding)
        assert pool is not None
        dispatched = self._decoding.step(pool, self._by_lane(pool, sequences), self._top(sequences))
        if dispatched.accepted is None:
            self._release_finished(dispatched)
        return dispatched

    def _release_finished(self, dispatched: DispatchedStep) -> None:
        """Release the rows of sequences that have nothing left to sample."""
        for sequence, _ in dispatched.sequences:
            if sequence.slot is not None and not sequence.remaining(self._engine.context):
                self._release(sequence)

    def _grow(self, count: int) -> None:
        """Make the decode pool large enough for `count` sequences."""
        size = self._engine.bucket(count, self._engine.lanes)
        if self._decode_pool is None:
            self._decode_pool = self._engine.borrow("decode", size)
        elif self._decode_pool.size < size:
            self._resize(size)

    def _shrink(self) -> None:
        """Move to a smaller decode pool if the remaining steps save enough."""
        pool, size = self._decode_pool, self._engine.bucket(len(self.decoding), self._engine.lanes)
        if pool is None or not self.decoding or self.waiting or size == pool.size:
            return
        steps = max(sequence.remaining(self._engine.context) for sequence in self.decoding)
        if (pool.size - size) * steps >= SHRINK_PLACES:
            self._resize(size)

    def _resize(self, size: int) -> None:
        """Move every decoding sequence to a pool of another size."""
        assert self._decode_pool is not None
        self._decode_pool = self._moved(self._decode_pool, size, self.decoding)

    def _moved(self, pool: RowPool, size: int, sequences: list[ActiveSequence]) -> RowPool:
        """Move the sequences of a pool to a new pool of `size` rows."""
        new = self._engine.new_pool(size)
        for sequence in sequences:
            assert sequence.slot is not None
            slot = new.acquire()
            self._engine.copy(pool, sequence.slot, new, slot)
            pool.owner.release(sequence.slot)
            sequence.slot = slot
        return new

    def _release(self, sequence: ActiveSequence) -> None:
        """Release the row of a sequence, if it has one."""
        for pool, sequences in ((self._prefill_pool, self.prefilling), (self._decode_pool, self.decoding)):
            if sequence in sequences:
                sequences.remove(sequence)
                assert pool is not None and sequence.slot is not None
                pool.owner.release(sequence.slot)
                sequence.slot = None

    def _by_lane(self, pool: RowPool, sequences: list[ActiveSequence]) -> list[ActiveSequence | None]:
        lanes: list[ActiveSequence | None] = [None] * pool.size
        for lane, sequence in zip(pool.lanes([s.slot for s in sequences if s.slot]), sequences, strict=True):
            lanes[lane] = sequence
        return lanes

    def _top(self, sequences: list[ActiveSequence]) -> int | None:
        """Return the largest number of log-probabilities that a sequence requests; None if none does."""
        return max(
            (s.request.params.logprobs for s in sequences if s.request.params.logprobs is not None), default=None
        )
