"""Texts to score, or to read residual streams or a state from.

A text's step widths follow from its number of tokens, so its results do not depend on other texts and requests.

More than 300 lines: a text and its steps refer to one another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.prefix import Prefix
from hybridlm.engine.probing import StepReads, TextProbing
from hybridlm.engine.widths import next_width
from hybridlm.programs.shapes import Shape
from hybridlm.requests.captured import Recorder
from hybridlm.requests.probes import Probe
from hybridlm.requests.results import first_not_finite
from hybridlm.rows.pool import LaneMap
from hybridlm.rows.snapshot import Snapshot
from hybridlm.steps.operands import Batch, Feed, StepInputs
from ir_passes.host.slot_owner import Slot


@dataclass(eq=False)
class QueuedText:
    """A text or shared prefix, with a row while it is prefilled.

    Attributes:
        index: None for a shared prefix.
        tokens: with `prefix`; the last is not prefilled.
        prefix: results begin after it.
        parent: shared prefix with the first tokens' results.
        consumed: tokens of the state after all dispatched steps.
        snapshot: state after its last step, if `keeps_state`.
        first_wrong: first token without finite results.
        order: place in the queue, as `ActiveSequence.order`.
    """

    index: int | None
    tokens: tuple[int, ...]
    prefix: Prefix | None = None
    parent: Self | None = None
    consumed: int = 0
    slot: Slot | None = None
    keeps_state: bool = False
    snapshot: Snapshot | None = None
    children: list[Self] = field(default_factory=list)
    probe: Probe | None = None
    recorder: Recorder | None = None
    first_wrong: int | None = None
    stepped: bool = field(default=False, init=False)
    restarts: int = field(default=0, init=False)
    reading: "Reading[Any]" = field(init=False)
    order: tuple[int, ...] = field(init=False)

    @property
    def subject(self) -> str:
        return "a shared prefix" if self.index is None else f"text {self.index}"

    @property
    def copies(self) -> "Sequence[QueuedText]":
        """The text in the rows of each model."""
        return (self,)

    def slot_of(self, engine: Engine) -> Slot | None:
        return next(copy.slot for each, copy in zip(self.reading.engines, self.copies, strict=True) if each is engine)

    @property
    def before(self) -> int:
        return 0 if self.prefix is None else len(self.prefix)

    @property
    def end(self) -> int:
        """Tokens to prefill: without the last, unless the probe reads it."""
        last = len(self.tokens) - 1
        return last + 1 if self.probe is not None and self.probe.reads(last) else last

    @property
    def done(self) -> bool:
        return self.consumed >= self.end

    @property
    def start(self) -> Snapshot | None:
        if self.parent is not None:
            return self.parent.snapshot
        return None if self.prefix is None else self.prefix.snapshot

    def begin_again(self) -> None:
        """Drop the results and read from the first token."""
        self.parent, self.consumed, self.recorder, self.first_wrong = None, 0, None, None
        self.restarts += 1
        self.__post_init__()

    def __post_init__(self) -> None:
        """Allocate empty results."""

    @property
    def width(self) -> int:
        return next_width(self.end - self.consumed, self.reading.widths)

    def feed(self, width: int) -> Feed:
        end = min(self.end, self.consumed + width)
        if self.probe is not None:
            end = self.probe.stop(self.consumed, end)
        return Feed(self.tokens[self.consumed : end], self.consumed)

    def take(self, outputs: Any, lane: int, first: int, count: int) -> None:
        """Store a step's results for `count` tokens."""
        raise NotImplementedError

    def results(self) -> dict[str, np.ndarray]:
        """Return the arrays of results by name."""
        raise NotImplementedError

    def finish(self) -> None:
        """Copy the first tokens' results from the shared prefix."""
        if self.parent is not None and self.parent.first_wrong is not None:
            self.first_wrong = self.parent.first_wrong

    def check(self, arrays: Sequence[Any], first: int) -> None:
        """Record the first token without finite results in arrays [token, ..] from `first` on."""
        wrong = first_not_finite(arrays)
        self.mark_wrong(None if wrong is None else first + wrong)

    def mark_wrong(self, token: int | None) -> None:
        if token is not None and (self.first_wrong is None or token < self.first_wrong):
            self.first_wrong = token


T = TypeVar("T", bound=QueuedText)
V = TypeVar("V")


class TextPart(NamedTuple, Generic[T]):
    """Part of a text in one step: `count` predicted tokens from `first` on."""

    lane: int
    text: T
    first: int
    count: int
    reads: StepReads | None
    last: bool
    restarts: int


class Reading(Generic[T]):
    """The texts of one call, and their steps.

    Args:
        inputs: (batch, texts in lanes, feeds) -> inputs.
        top: most likely tokens to report.
        widths: descending; None for the first engine's.

    Attributes:
        max_states: states of shared prefixes at a time, one reserved for nested prefixes. Texts overtake prefixes
            without room, and release states when they begin: there is no deadlock.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        lanes: int,
        inputs: Callable[[Batch, Sequence[T | None], Sequence[Feed | None]], StepInputs],
        top: int | None = None,
        combine: Callable[[Sequence[Any]], Any] | None = None,
        widths: tuple[int, ...] | None = None,
        probing: TextProbing | None = None,
        counter: str = "scored_tokens",
    ):
        self.engines, self.lanes, self._inputs, self._top, self._combine = engines, lanes, inputs, top, combine
        one_by_one = probing is not None and probing.one_by_one
        self.widths = (1,) if one_by_one else engines[0].widths if widths is None else widths
        self._probing, self._counter = probing, counter
        self.max_states = 0 if probing is not None else max_states(lanes)
        self.states = 0

    def has_lane(self, text: T, joined: Sequence[QueuedText]) -> bool:
        """Whether a text may begin next to the texts of any reading with a row."""
        room = self.max_states - (text.parent is None)  # one state is reserved for nested prefixes
        free = sum(other.reading is self for other in joined) < self.lanes
        return free and (text.index is not None or self.states < room)

    def devices(self, text: T, joined: Sequence[QueuedText]) -> list[int]:
        """Return the devices with room for a text in each model, most free rows first.

        Cached states are evicted for pages.
        """
        pool, each = self.engines[0].pool, self.lanes // self.engines[0].placement.data
        used = pool.devices_of([other.slot for other in joined if other.reading is self])
        pairs = zip(self.engines, text.copies, strict=True)
        devices, *lists = (engine.make_room(copy.end) for engine, copy in pairs)
        return [device for device in devices if used.count(device) < each and all(device in other for other in lists)]

    def begin(self, text: T, device: int | None) -> None:
        """Acquire a text's row of each model, and restore its state."""
        self.states += text.index is None
        for engine, copy in zip(self.engines, text.copies, strict=True):
            copy.slot = engine.pool.acquire(copy.end, device)
            if copy.start is not None:
                copy.consumed = engine.moves.restore(copy.start, engine.pool, copy.slot, copy.tokens, owner=copy)
        if self._probing is not None and text.probe is not None and text.index is not None:
            capacity = len(text.probe.read_in(0, len(text.tokens)))
            text.recorder = self._probing.recorder(text.probe, text.index, capacity)
        self.detach(text)

    def detach(self, text: T) -> None:
        """Stop waiting for the shared prefix; the last text releases the state."""
        parent = text.parent
        if parent is not None and text in parent.children:
            parent.children.remove(text)
            if not parent.children and parent.done:
                for copy in parent.copies:
                    copy.snapshot = None
                self.states -= 1

    def end(self, text: T) -> None:
        """Release a text's rows after its last step; keep the state of a prefix."""
        for engine, copy in zip(self.engines, text.copies, strict=True):
            if copy.slot is not None and (text.children or text.keeps_state):
                spans = () if copy.start is None else copy.start.spans
                copy.snapshot = engine.moves.take(engine.pool, copy.slot, copy.tokens[:-1], owner=copy, cached=spans)
            if text.index is None:
                # Each restore adds the whole prefix to the statistic, but it was computed once.
                engine.stats.add("prefix_tokens_saved", -copy.consumed)
        self.release(text)
        self.states += text.index is None and bool(text.children)

    def release(self, text: T) -> None:
        self.states -= text.index is None
        for engine, copy in zip(self.engines, text.copies, strict=True):
            if copy.slot is not None:
                engine.release(copy.slot)
                copy.slot = None
                engine.runner.forget(copy)

    def dispatch(self, texts: Sequence[T], width: int) -> tuple[Any, list[TextPart[T]]]:
        """Dispatch a step of texts; return its pending outputs and its parts.

        Args:
            texts: all with probes or all without, which keep the bits of the plain step.
        """
        feeds, places, maps, outputs = [text.feed(width) for text in texts], None, list[LaneMap](), list[Any]()
        probing = None if texts[0].probe is None else self._probing

        def by_lane(values: Sequence[V]) -> list[V | None]:
            value_of = dict(zip(places or (), values, strict=True))
            return [value_of.get(lane) for lane in range(self.lanes)]

        for i, engine in enumerate(self.engines):
            places, lane_map = engine.pool.arrange([text.copies[i].slot for text in texts], self.lanes, places)
            batch = Batch.of(by_lane(feeds), width, lane_map.slots, lane_map.pages)
            inputs = self._inputs(batch, by_lane(texts), by_lane(feeds))
            if probing is not None:
                inputs = inputs._replace(probes=probing.text_inputs(by_lane(texts), by_lane(feeds), width))
            shape = Shape.of(inputs, engine.pool.size, engine.pool.pages, self._top)
            owners, counts = by_lane([text.copies[i] for text in texts]), np.asarray(batch.lengths)
            outputs.append(engine.run(shape, engine.pool, lane_map.rows, inputs, owners=owners, counts=counts))
            maps.append(lane_map)
        stepped = [(lane, text, len(feed.tokens)) for lane, text, feed in zip(places or (), texts, feeds, strict=True)]
        for _, text, count in stepped:
            for copy in text.copies:
                copy.consumed += count
        reads = {} if probing is None else probing.after_step(self.engines[0].pool, maps[0], stepped)
        parts: list[TextPart[T]] = []
        for lane, text, count in stepped:
            first = text.consumed - count + 1
            count = min(count, len(text.tokens) - first)
            parts.append(TextPart(lane, text, first, count, reads.get(lane), text.done, text.restarts))
        return outputs[0] if self._combine is None else self._combine(outputs), parts

    def take(self, results: Any, parts: Sequence[TextPart[T]]) -> list[T]:
        finished = list[T]()
        for lane, text, first, count, reads, last, restarts in parts:
            if restarts != text.restarts:
                continue  # it was preempted
            text.take(results, lane, first, count)
            if self._probing is not None:
                text.mark_wrong(self._probing.take(text, reads, results.hidden_states, lane))
            self.engines[0].stats.add(self._counter, count)
            if last:
                text.finish()
                if text.index is not None:
                    finished.append(text)
        return finished


def max_states(lanes: int) -> int:
    """Return the most states of shared prefixes: one per lane, and a nested one.

    It does not depend on free memory: the steps of a text follow from texts and settings.
    """
    return lanes + 1
