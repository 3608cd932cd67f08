"""The scheduler: continuous batching. Sequences join, prefill, decode and leave at any step.

A sequence has one row from admission to its end, a text while it is prefilled. All sessions and calls share one pool.
Prefill steps come first, because a decode step costs the same with idle lanes; after `MAX_PREFILL_RUN` of them the
decoding sequences get one step. Every second prefill step has the first sequence or text without a step.

More than 300 lines: one class moves each sequence from the queue through prefill to decoding.
"""

import heapq
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import numpy as np

from hybridlm.engine.decoding import Decoding, DispatchedStep
from hybridlm.engine.engine import TURN_LOCK, Engine, holds_turn
from hybridlm.engine.probing import Probing
from hybridlm.engine.reading import QueuedText, Reading, T
from hybridlm.engine.speculation import Speculation
from hybridlm.engine.widths import cheapest_step
from hybridlm.prefix_cache.cache import PrefixCache
from hybridlm.programs.shapes import Shape
from hybridlm.requests.sequence import (
    ARRIVALS,
    MIN_CHANGES,
    ActiveSequence,
    logit_changes,
    most_logprobs,
    sampling_arrays,
)
from hybridlm.rows.pool import LaneMap, RowPool
from hybridlm.sampling.sampling import LogitsProcessor
from hybridlm.steps.operands import Batch, StepInputs
from ir_passes.contract.statements import Statement
from ir_passes.host.slot_faults import SlotError, SlotFault
from models import KV_BLOCK

MAX_PREFILL_RUN = 2
"""Consecutive prefill steps after which decoding sequences get a step."""
SHRINK_PLACES = 256
"""Idle places, lanes times remaining steps, that pay for compiling a decode step with fewer lanes."""
IDLE_TURNS = 8
"""Turns of others on the same thread until a session without a turn is idle."""
IDLE_SECONDS = 10.0
"""Seconds without a turn until a session is idle for other threads."""
WAIT_SECONDS = 0.001
"""Pause of a turn without a row, while others have all rows."""

ROOM = KV_BLOCK
"""Reserved positions after a joining sequence's prompt."""
_TURNS = itertools.count(1)

Queued = ActiveSequence | QueuedText


class Scheduler:
    """Scheduler of one session's sequences, or one call's texts, in the engine's pool.

    Sequences of idle sessions are preempted for rows or pages (`IDLE_TURNS`, `IDLE_SECONDS`).

    Args:
        engines: all that read texts in lockstep.

    Attributes:
        prefilling, decoding: sequences before and after the end of their prompts, in the order they joined.
        reading: texts with a row, the last step's at the end.
        awaited: sequences of the session that are added once their prompts are scored.
        turn, thread, seconds: of the last call of `next`; turns count for all schedulers.
    """

    def __init__(
        self,
        engine: Engine,
        processor: LogitsProcessor | None = None,
        speculation: Speculation | None = None,
        probing: Probing | None = None,
        engines: Sequence[Engine] = (),
    ):
        assert probing is None or speculation is None, "nothing is drafted where probes may be"
        self._engine, self._processor, self._speculation, self._probing = engine, processor, speculation, probing
        self._engines = engines or (engine,)
        self._heaps: dict[Hashable, list[tuple[tuple[int, ...], Queued]]] = {}
        self.prefilling: list[ActiveSequence] = []
        self.decoding: list[ActiveSequence] = []
        self.reading: list[QueuedText] = []
        self.awaited: set[ActiveSequence] = set()
        self.turn, self._turns = 0, deque([0] * IDLE_TURNS, IDLE_TURNS)
        self.thread, self.seconds = threading.get_ident(), time.monotonic()
        self._probed_turn, self._prefill_run, self._led_by_new = False, 0, False
        self._pool: RowPool | None = None
        self._decode_lanes = 0
        with TURN_LOCK:
            for each in self._engines:
                each.queues.add(self)
        groups = self.prefilling, self.decoding, self.reading
        self._finalizer = weakref.finalize(self, engine.given_up.append, partial(_give_up, groups))
        self._finalizer.atexit = False

    def read_and_change(self, probing: Probing) -> None:
        """Enable reads and changes inside the model; raises ValueError if the session drafts."""
        if self._speculation is not None:
            raise ValueError(
                "hidden_states, states, interventions: expected a session that drafts nothing; open it with "
                "session(speculate=None)"
            )
        self._probing = probing

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold `TURN_LOCK` while queues or pools change.

        Ctrl-C may end a change between a row and its sequence: the pool then reclaims rows without one.
        """
        with TURN_LOCK:
            try:
                yield
            except KeyboardInterrupt:
                for engine in self._engines:
                    engine.interrupted = True
                raise

    @cached_property
    def _decoding(self) -> Decoding:
        return Decoding(self._engine, self._processor, self._speculation)

    @property
    def waiting(self) -> list[tuple[tuple[int, ...], Queued]]:
        """(order, sequence or text without a row); an unread prefix has its texts as `children`."""
        return [entry for heap in self._heaps.values() for entry in heap]

    @property
    def joined(self) -> list[Queued]:
        return [*self.prefilling, *self.decoding, *self.reading]

    @property
    def unfinished(self) -> int:
        """Number of sequences and texts; texts after an unread prefix count as one."""
        return sum(map(len, self._heaps.values())) + len(self.joined)

    @property
    def requests(self) -> int:
        """Number of unfinished requests, or of texts without a request."""
        sequences = [each for _, each in self.waiting] + self.joined
        return sum(isinstance(each, ActiveSequence) for each in sequences) + len(self.awaited) or self.unfinished

    def add(self, sequence: ActiveSequence) -> None:
        """Add a sequence to the queue."""
        engine, request, speculation = self._engine, sequence.request, self._speculation
        sequence.max_sampled = min(request.params.max_tokens, engine.context - len(request.prompt))
        positions = len(request.prompt) + sequence.max_sampled - 1
        drafts = 0 if speculation is None else speculation.head_drafts
        sequence.limit = min(positions + drafts, engine.blocks * KV_BLOCK)
        with self._changing():
            self.awaited.discard(sequence)
            # Changes of logits after a draft depend on the draft.
            if speculation is not None and not request.params.changes_logits:
                sequence.drafting = speculation.begin(request.prompt)
            self._wait(sequence)

    def add_texts(self, reading: Reading[Any], texts: Sequence[QueuedText], priority: int = 0) -> None:
        """Add the texts of a reading to the queue, each after its shared prefix."""
        with self._changing():
            arrival = next(ARRIVALS)
            for i, text in enumerate(texts):
                text.reading = reading
                if text.parent is None:
                    text.order = (-priority, arrival, i)
                    self._wait(text)
                else:
                    text.order = (*text.parent.order, i)
                    text.parent.children.append(text)

    def _wait(self, sequence: Queued) -> None:
        # Texts, nested prefixes and other prefixes of a reading have separate heaps: they do not block one another.
        kind = None
        if isinstance(sequence, QueuedText):
            kind = sequence.reading, sequence.index is None, sequence.parent is None
        heapq.heappush(self._heaps.setdefault(kind, []), (sequence.order, sequence))

    def leave(self, sequence: Queued) -> None:
        """Remove a sequence or text; a step in flight may write its row."""
        with self._changing():
            for kind, heap in list(self._heaps.items()):
                if any(entry[1] is sequence for entry in heap):
                    heap[:] = [entry for entry in heap if entry[1] is not sequence]
                    heapq.heapify(heap)
                    if not heap:
                        del self._heaps[kind]
            if isinstance(sequence, QueuedText):
                parent = sequence.parent
                sequence.reading.detach(sequence)
                if parent is not None and not parent.children and not parent.done:
                    self.leave(parent)
            elif sequence.finish_reason == "stop" and sequence in self.decoding and self._pool is not None:
                self._cache_state(sequence, self._pool)  # the next turn of a conversation continues it
            else:
                self.awaited.discard(sequence)
            self._release(sequence)
            self._engine.runner.forget(sequence)

    def next(self, unread: bool = False) -> DispatchedStep | None:
        """Dispatch the next step.

        Args:
            unread: tokens of a step in flight have not been read.

        Returns:
            None without work or rows, or if the step needs unread tokens.
        """
        with self._changing():
            self.turn, self.thread, self.seconds = next(_TURNS), threading.get_ident(), time.monotonic()
            if self._heaps or self.joined:
                self._pool, *_ = [engine.pool for engine in self._engines]
            self._admit()
            self._turns.append(self.turn)
            if self._heaps and not self.joined:
                TURN_LOCK.wait(WAIT_SECONDS)  # others have all rows
            if self.decoding and (self._prefill_run >= MAX_PREFILL_RUN or not (self.prefilling or self.reading)):
                if unread and self._decoding.needs_tokens(self.decoding):
                    return None
                self._grow()
                if self.decoding:  # not all were preempted
                    self._prefill_run = 0
                    return self._decode_step()
            prefills: list[Queued] = [*self.prefilling, *self.reading]
            if not prefills:
                self._prefill_run = 0
                return None
            self._prefill_run += 1
            new = [sequence for sequence in prefills if not sequence.stepped]
            self._led_by_new = bool(new) and not self._led_by_new
            leader = min(new if self._led_by_new else prefills, key=lambda sequence: sequence.order)
            return self._read_texts(leader) if isinstance(leader, QueuedText) else self._prefill(leader)

    def settle(self, dispatched: DispatchedStep, accepted: np.ndarray) -> None:
        """Process the accepted tokens per lane of a verifying step."""
        with self._changing():
            self._decoding.settle(self._engine.pool, dispatched, accepted)
            self._release_finished(dispatched)

    def invalidate(self, sequence: ActiveSequence) -> None:
        with self._changing():
            if self._engine.prefix_cache is not None:
                self._engine.prefix_cache.invalidate((*sequence.request.prompt, *sequence.generated))

    def lose_rows(self) -> None:
        for sequence in self.joined:
            self._requeue(sequence)
        self._pool = None

    def close(self) -> None:
        self.awaited.clear()
        if holds_turn():  # Python collects an iterator within another queue's turn, which must not see rows go
            self._heaps.clear()
            self._finalizer()
            return
        with self._changing():
            self._finalizer.detach()
            self._heaps.clear()
            for sequence in self.joined:
                self._release(sequence)
            self._pool = None

    def check_integrity(self) -> None:
        """Check that rows have at most one sequence each, and sequences one queue; raises SlotError."""
        with self._changing():
            faults: list[Statement] = []
            pool, joined = self._pool, self.joined
            without = [sequence.subject for sequence in joined if sequence.slot is None]
            if without or (joined and pool is None):
                message = (
                    f"{', '.join(without)} have no row" if without else f"{len(joined)} sequences have rows of no pool"
                )
                faults.append(SlotFault.NO_ROW.fault("", message))
            elif pool is not None:
                pool.check_integrity()
                pool.rows_of([sequence.slot for sequence in joined])
                count = sum(len(queue.joined) for queue in self._engine.queues)
                if len(pool.owner.held) != count:
                    message = f"{len(pool.owner.held)} of {pool.size} rows are held by {count} sequences"
                    faults.append(SlotFault.STATES.fault("", message))
            if len(set(map(id, joined))) != len(joined) or any(entry[1].slot is not None for entry in self.waiting):
                faults.append(SlotFault.STATES.fault("", "a sequence is in two states"))
            if len(joined) > self._engine.lanes:
                message = f"{len(joined)} sequences have joined, expected at most {self._engine.lanes}"
                faults.append(SlotFault.STATES.fault("", message))
            if faults:
                raise SlotError(*faults)
            if self._engine.prefix_cache is not None:
                self._engine.prefix_cache.check_integrity()

    def _admit(self) -> None:
        """Give rows and pages to waiting sequences and texts.

        A sequence waits while another one prefills their common prefix, a text for a lane of its reading. Texts
        overtake shared prefixes that wait for a state. Nothing overtakes a sequence or text that waits for a row, for
        pages, or after a preemption for tokens in flight.
        """
        engine, pool, delayed, blocked = self._engine, self._pool, list[ActiveSequence](), set[Hashable]()
        # New texts have the widest steps ahead; lanes at narrower steps would be idle meanwhile.
        narrow = {text.reading for text in self.reading if text.width < text.reading.widths[0]}
        while pool is not None and len(self.joined) + len(delayed) < engine.lanes:
            heads = [(*heap[0], kind) for kind, heap in self._heaps.items() if kind not in blocked]
            if not heads:
                break
            _, sequence, kind = min(heads, key=lambda head: head[0])
            device = None
            if isinstance(sequence, QueuedText):
                if sequence.reading in narrow or not sequence.reading.has_lane(sequence, self.reading):
                    blocked.add(kind)
                    continue
                device = self._device_for(sequence)
                if device is None:
                    break
            elif sequence.consumed and len(sequence.generated) != sequence.sampled:
                break  # preempted, with tokens in flight
            heapq.heappop(self._heaps[kind])
            if not self._heaps[kind]:
                del self._heaps[kind]
            if isinstance(sequence, QueuedText):
                self.reading.append(sequence)
                sequence.stepped = False
                sequence.reading.begin(sequence, device)
                continue
            if sequence.consumed:
                sequence.begin_again()
            cache = engine.prefix_cache
            if cache is not None and not sequence.shares_states:
                cache = None
            if cache is not None and cache.should_wait(sequence.prompt, self.prefilling):
                delayed.append(sequence)
            elif not self._join(sequence, pool, cache):
                delayed.append(sequence)
                break
        for sequence in delayed:
            self._wait(sequence)

    def _device_for(self, text: QueuedText) -> int | None:
        """Return a device with a free row and pages for a waiting text, or None.

        Without rows in use this is the first device.
        """
        engines = text.reading.engines
        while not (devices := text.reading.devices(text, self.reading)):
            if not self._preempt_idle(engines):
                return None if _with_rows(engines) else 0
        return devices[0]

    def _preempt_idle(self, engines: Sequence[Engine]) -> bool:
        """Preempt the last idle sequence or text of others; False without any."""
        last = {queue: max(queue.joined, key=lambda joined: joined.order) for queue in _with_rows(engines)}
        queues = sorted(last, key=lambda queue: last[queue].order, reverse=True)
        # Threads and clocks of other processes differ.
        index = self._engine.decide(lambda: next((i for i, queue in enumerate(queues) if self._sees_idle(queue)), None))
        if index is None:
            return False
        queues[index]._preempt(last[queues[index]])
        return True

    def _sees_idle(self, queue: "Scheduler") -> bool:
        if queue.thread == self.thread:
            return queue.turn < self._turns[0]
        return self.seconds - queue.seconds > IDLE_SECONDS

    def _join(self, sequence: ActiveSequence, pool: RowPool, cache: PrefixCache | None) -> bool:
        """Give a sequence a row with its deepest cached state, and pages.

        The pages hold its prompt and `ROOM`. A row on the device of the state shares its pages. Returns False without
        free pages.

        Raises:
            SlotsExhausted: no other sequence has pages.
        """
        engine, moves, start = self._engine, self._engine.moves, sequence.request.start
        positions, cacheless = min(len(sequence.prompt) + ROOM, sequence.limit), False
        while True:
            with nullcontext(start) if cache is None or cacheless else cache.pinned(sequence.prompt, start) as snapshot:
                shared = [] if snapshot is None else moves.shareable(snapshot)
                has_room = pool.devices_for(positions, shared) or engine.make_room(positions, shared)
                if has_room or (snapshot is start and not _with_rows([engine])):
                    slot = pool.acquire(positions, shared=shared)
                    sequence.slot, sequence.stepped = slot, False
                    self.prefilling.append(sequence)
                    if cache is not None:
                        begin = 0 if snapshot is None else snapshot.position
                        sequence.stops = cache.stops(sequence.prompt, begin)
                        sequence.consumed = cache.restore(snapshot, start, pool, slot, sequence.prompt, owner=sequence)
                    elif snapshot is not None:
                        sequence.consumed = moves.restore(snapshot, pool, slot, sequence.prompt, owner=sequence)
                    return True
            if not self._preempt_idle([engine]):
                if cacheless or _with_rows([engine]):
                    return False
                cacheless = True  # a pinned page that is only copied in part may take the last free page

    def _grow(self) -> None:
        pool = self._pool
        if pool is None:
            return
        for sequence in self._decoding.short(self.decoding, pool):
            while sequence.slot is not None and not self._decoding.grow(sequence, pool):
                queue_of = {joined: queue for queue in _with_rows([self._engine]) for joined in queue.joined}
                last = self._decoding.last(sequence, list(queue_of), pool)
                queue_of[last]._preempt(last)
                self._decoding.warn_of_preemption(last)

    def _preempt(self, sequence: Queued) -> None:
        if isinstance(sequence, ActiveSequence):
            self._cache_state(sequence, self._engine.pool)
        self._requeue(sequence)
        self._engine.stats.add("preemptions")

    def _requeue(self, sequence: Queued) -> None:
        self._release(sequence)
        self._engine.runner.forget(sequence)
        if isinstance(sequence, QueuedText):
            sequence.begin_again()
        self._wait(sequence)

    def _read_texts(self, leader: QueuedText) -> DispatchedStep:
        """Dispatch the next step of the leader's call, texts with the widest step first."""

        def kind(text: QueuedText) -> tuple[Reading[Any], bool]:
            return text.reading, text.probe is None

        alike = [text for text in self.reading if kind(text) == kind(leader)]
        width = max(text.width for text in alike)
        texts = [text for text in alike if text.width == width]
        self.reading[:] = [text for text in self.reading if text not in texts] + texts
        outputs, parts = texts[0].reading.dispatch(texts, width)
        for text in texts:
            text.stepped = True
            if text.done:
                text.reading.end(text)
                self.reading.remove(text)
                for child in text.children:
                    self._wait(child)
        return DispatchedStep(outputs, [], parts=parts)

    def _prefill(self, leader: ActiveSequence) -> DispatchedStep:
        """Dispatch the leader's next chunk and others; complete prompts decode next."""
        engine, pool, by_new = self._engine, self._pool, self._led_by_new
        assert pool is not None
        alike = [sequence for sequence in self.prefilling if (sequence.probe is None) == (leader.probe is None)]
        alike.sort(key=lambda sequence: (sequence is not leader, by_new and sequence.stepped, sequence.order))
        new = sum(not sequence.stepped for sequence in alike) if by_new else 0
        # Two chunks show whether a prompt leaves tokens to later steps.
        counts = [len(sequence.feed(2 * engine.chunk).tokens) for sequence in alike]
        devices, platform = pool.devices_of([s.slot for s in alike]), engine.placement.platform
        chosen, size, width = cheapest_step(
            counts, devices, engine.prefill_sizes, engine.widths, platform, new, pool.devices
        )
        sequences = [alike[index] for index in chosen]
        lanes, lane_map = self._by_lane(pool, sequences, size)
        feeds = [None if s is None else s.feed(width) for s in lanes]
        batch = Batch.of(feeds, width, lane_map.slots, lane_map.pages)
        changes = logit_changes(lanes, engine.vocab_size)
        probes = None if self._probing is None else self._probing.inputs(lanes)
        inputs = StepInputs(batch, None, *sampling_arrays(lanes), changes, probes=probes)
        top = most_logprobs(lanes)
        shape = Shape.of(inputs, pool.size, pool.pages, top, self._processor)
        if not self._decode_lanes and engine.runner.compiles_ahead and self._speculation is None:
            self._compile_ahead(top)
        sampled = engine.run(shape, pool, lane_map.rows, inputs, owners=lanes, counts=np.asarray(batch.lengths))
        sampling: list[tuple[ActiveSequence, int]] = []
        stepped: list[tuple[int, ActiveSequence, int]] = []
        for lane, (sequence, feed) in enumerate(zip(lanes, feeds, strict=True)):
            if sequence is not None and feed is not None:
                sequence.stepped = True
                sequence.consumed += len(feed.tokens)
                engine.stats.add("prompt_tokens", len(feed.tokens))
                stepped.append((lane, sequence, len(feed.tokens)))
                if sequence.consumed in sequence.stops:
                    self._cache_state(sequence, pool)
                if not sequence.prefilling:
                    sampling.append((sequence, lane))
        reads = {} if self._probing is None else self._probing.after_step(pool, lane_map, stepped)
        for sequence, _ in sampling:
            self._start_decoding(sequence)
        return DispatchedStep(sampled, sampling, reads=reads)

    def _compile_ahead(self, top: int | None) -> None:
        """Compile the decode step after a prefill, in a thread.

        With drafts the next step is known once there are tokens.
        """
        engine, waiting = self._engine, [sequence for _, sequence in self._heaps.get(None, ())]
        sequences: list[Any] = [*self.prefilling, *self.decoding, *waiting]
        changes, masked = dict[str, Any](), any(sequence.grammar is not None for sequence in sequences)
        if masked or any(sequence.request.params.changes_logits for sequence in sequences):
            changes = {"changes": MIN_CHANGES, "masked": masked}
        step = len(sequences), top, self._processor, *changes.values()
        if step in engine.programs.prepared or any(sequence.probe is not None for sequence in sequences):
            return
        if any(sequence.max_sampled - sequence.sampled > 1 for sequence in sequences):
            engine.programs.prepared.add(step)
            lanes = engine.bucket(len(sequences), engine.lanes)
            shape = engine.shape("generate", lanes, 1, top=top, processor=self._processor, **changes)
            engine.programs.prepare((shape,), engine.example_arguments)

    def _one_kind(self, sequences: list[ActiveSequence]) -> list[ActiveSequence]:
        """Return the sequences of the next decode step: with and without probes in turn.

        Requests without probes keep the bits of the plain step.
        """
        probed = [sequence for sequence in sequences if sequence.probe is not None]
        if not probed or len(probed) == len(sequences):
            return sequences
        self._probed_turn = not self._probed_turn
        return probed if self._probed_turn else [sequence for sequence in sequences if sequence.probe is None]

    def _cache_state(self, sequence: ActiveSequence, pool: RowPool) -> None:
        cache, tokens = self._engine.prefix_cache, (*sequence.request.prompt, *sequence.generated)
        if cache is None or sequence.slot is None or not pool.settled(sequence.slot) or not sequence.shares_states:
            return
        # A state beyond the known tokens contains drafts accepted after the end.
        if 0 < sequence.consumed <= len(tokens):
            cache.keep(pool, sequence.slot, tokens[: sequence.consumed], owner=sequence)

    def _start_decoding(self, sequence: ActiveSequence) -> None:
        if sequence.sampled == sequence.max_sampled:
            self._release(sequence)
            return
        expected = self._engine.bucket(self.unfinished, self._engine.lanes)
        self._decode_lanes = max(self._decode_lanes, expected)
        self.prefilling.remove(sequence)
        self.decoding.append(sequence)

    def _decode_step(self) -> DispatchedStep:
        pool, sequences = self._pool, self._one_kind(self.decoding)
        assert pool is not None
        self._decode_lanes = self._fit_decode_lanes(pool)
        lanes, lane_map = self._by_lane(pool, sequences, self._decode_lanes)
        dispatched = self._decoding.step(pool, lanes, lane_map, self._probing)
        if dispatched.accepted is None:
            self._release_finished(dispatched)
        return dispatched

    def _release_finished(self, dispatched: DispatchedStep) -> None:
        for sequence, _ in dispatched.sequences:
            if sequence.slot is not None and sequence.sampled == sequence.max_sampled:
                self._release(sequence)

    def _fit_decode_lanes(self, pool: RowPool) -> int:
        engine, lanes = self._engine, self._decode_lanes
        needed = engine.bucket(pool.lanes_for([sequence.slot for sequence in self.decoding]), engine.lanes)
        if needed >= lanes:
            return needed
        steps = max(sequence.max_sampled - sequence.sampled for sequence in self.decoding)
        busy = self.prefilling or self._heaps
        return lanes if busy or (lanes - needed) * steps < SHRINK_PLACES else needed

    def _release(self, sequence: Queued) -> None:
        if isinstance(sequence, QueuedText):
            if sequence in self.reading:
                self.reading.remove(sequence)
                sequence.reading.release(sequence)
            return
        for sequences in (self.prefilling, self.decoding):
            if sequence in sequences:
                sequences.remove(sequence)
                assert sequence.slot is not None
                self._engine.release(sequence.slot)
                sequence.slot = None

    def _by_lane(
        self, pool: RowPool, sequences: list[ActiveSequence], count: int
    ) -> tuple[list[ActiveSequence | None], LaneMap]:
        lanes: list[ActiveSequence | None] = [None] * count
        places, lane_map = pool.arrange([sequence.slot for sequence in sequences], count)
        for lane, sequence in zip(places, sequences, strict=True):
            lanes[lane] = sequence
        return lanes, lane_map


def read_all(reading: Reading[T], texts: Sequence[T]) -> Iterator[T]:
    """Read the texts of a call; yield each after its last step has been read."""
    engine, in_flight = reading.engines[0], deque[DispatchedStep]()
    queue = Scheduler(engine, engines=reading.engines)
    queue.add_texts(reading, texts)
    try:
        while in_flight or queue.unfinished:
            if engine.decisions is not None:
                engine.decisions.checkpoint()
            dispatched = queue.next()
            if dispatched is not None:
                in_flight.append(dispatched)
            while len(in_flight) > (dispatched is not None):
                step = in_flight.popleft()
                yield from reading.take(engine.read(step.sampled), step.parts)
    finally:
        queue.close()


def _with_rows(engines: Sequence[Engine]) -> set[Scheduler]:
    return {queue for engine in engines for queue in engine.queues if queue.joined}


def _give_up(groups: Sequence[list[Any]], engine: Engine) -> None:
    for sequence in itertools.chain(*groups):
        if isinstance(sequence, QueuedText):
            sequence.reading.release(sequence)
        elif sequence.slot is not None:
            engine.release(sequence.slot)
    for group in groups:
        group.clear()
