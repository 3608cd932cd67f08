"""An engine without a model: the real scheduler and pool, and steps that compute nothing."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridlm.engine.reading import QueuedText, Reading
from hybridlm.engine.scheduler import Scheduler
from hybridlm.programs.runner import Tallies
from hybridlm.programs.shapes import Shape
from hybridlm.rows.pool import RowPool
from hybridlm.scoring.shared_prefixes import texts_to_read
from hybridlm.steps.operands import StepInputs
from hybridlm.steps.structure import Rows


class UnreadText(QueuedText):
    """A text without results."""

    def __init__(self, *arguments: Any, question: None = None, query: None = None, **fields: Any):
        super().__init__(*arguments, **fields)

    def take(self, outputs: Any, lane: int, first: int, count: int) -> None:
        """Store nothing."""


class ReadingEngine:
    """What a scheduler of texts needs of an engine.

    Args:
        lanes: rows of the pool.
        prefill_lanes: lanes of a step.
        widths: widths of steps, descending.

    Attributes:
        tokens, places: of all steps; `computed` are the places of lanes with a text.
    """

    prefix_cache = None

    def __init__(self, lanes: int, prefill_lanes: int, widths: tuple[int, ...]):
        self.lanes, self.prefill_lanes, self.widths = lanes, prefill_lanes, widths
        self.placement = SimpleNamespace(data=1)
        self.pool = RowPool(Rows((), jnp.zeros((lanes, 1), jnp.int32)))
        self.queues: weakref.WeakSet[Any] = weakref.WeakSet()
        self.given_up: deque[Any] = deque()
        self.stats, self.decisions = Tallies(), None
        self.moves, self.runner = self, SimpleNamespace(forget=lambda owner: None)
        self.tokens = self.places = self.computed = 0

    def run(self, shape: Shape, pool: RowPool, rows: Any, inputs: StepInputs, owners: Any, counts: np.ndarray) -> None:
        """Count a step."""
        self.tokens += int(counts.sum())
        self.places += shape.lanes * shape.tokens
        self.computed += int((counts > 0).sum()) * shape.tokens

    def decide(self, make: Callable[[], Any]) -> Any:
        """Return the decision of a single process."""
        return make()

    def make_room(self, positions: int) -> list[int]:
        """Return the devices with a free row; there are no cached states."""
        return self.pool.devices_for(positions)

    def read(self, outputs: None) -> None:
        """Return nothing."""

    def release(self, slot: Any) -> None:
        """Give a row back."""
        self.pool.release(slot)

    def take(self, pool: RowPool, slot: Any, tokens: Sequence[int], owner: Any, cached: Any) -> Any:
        """Return a state without arrays."""
        return SimpleNamespace(position=len(tokens), spans=())

    def restore(self, snapshot: Any, pool: RowPool, slot: Any, tokens: Sequence[int], owner: Any) -> int:
        """Return the position of a state."""
        return snapshot.position


def read_without_model(
    engine: Any, texts: Mapping[int, tuple[int, ...]], max_states: int
) -> Iterator[tuple[Reading[Any], list[QueuedText]]]:
    """Read texts of at least two tokens; yield the reading and the finished texts after each step.

    Args:
        engine: a `ReadingEngine`.
        max_states: maximum states of shared prefixes; 0 shares none.
    """
    reading: Reading[Any] = Reading([engine], engine.prefill_lanes, lambda batch, lanes, feeds: StepInputs(batch))
    reading.max_states = max_states
    queue = Scheduler(engine)
    queued = texts_to_read(reading, texts, UnreadText)
    queue.add_texts(reading, queued)
    while queue.unfinished:
        step = queue.next()
        assert step is not None, "everything waits for something that waits"
        held = [text for text in queued if text.index is None and (text.snapshot is not None or text.slot is not None)]
        assert len(held) == reading.states
        yield reading, reading.take(None, step.parts)
