"""Probes of the texts of one call, as inputs of each step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridlm.engine.probing import Probing, ReadPositions
from hybridlm.requests.probes import Probe, probe_operands, shape_of, slots
from hybridlm.rows.pool import RowPool
from hybridlm.scoring.text import QueuedText
from hybridlm.steps.hooks import Probes, ProbeShape
from hybridlm.steps.operands import Feed


class TextProbing:
    """Reads and changes inside the model by the texts of one call.

    The slots of a step follow from all texts of the call. A step in which no text asks for anything is the plain one.

    Args:
        probing: files and states.
        probes: of each text; None for one that asks for nothing.
        lengths: tokens of each text.
        chunk: maximum number of tokens of a text in a step.

    Attributes:
        probing, probes: as given.
        one_by_one: whether each token of every text is a step of its own.
    """

    def __init__(self, probing: Probing, probes: Sequence[Probe | None], lengths: Sequence[int], chunk: int):
        self.probing, self.probes = probing, probes
        self.one_by_one = all(
            probe is not None and probe.one_by_one(length) for probe, length in zip(probes, lengths, strict=True)
        )
        given = [probe for probe in probes if probe is not None]
        most = slots(sum(run.end - run.first for run in probe.runs) for probe in given)
        self._shape = shape_of(probes, min(most, 1 if self.one_by_one else chunk))

    def begin(self, text: QueuedText) -> None:
        """Make the arrays for what is read of a text."""
        if text.probe is not None:
            capacity = len(text.probe.read_in(0, len(text.tokens)))
            text.writer = self.probing.writer(text.probe, text.index, capacity)

    def operand(self, lanes: Sequence[QueuedText | None], feeds: Sequence[Feed | None], tokens: int) -> Probes | None:
        """Return the probes of a step; None if no lane has any.

        Args:
            lanes, feeds: the text in each lane, and its tokens.
            tokens: maximum number of tokens of a text in the step.
        """
        probes = [None if text is None else text.probe for text in lanes]
        given = [probe for probe in probes if probe is not None]
        read = [
            [] if probe is None or feed is None else probe.read_in(feed.position, feed.position + len(feed.tokens))
            for probe, feed in zip(probes, feeds, strict=True)
        ]
        own = self._shape._replace(places=min(self._shape.places, tokens))
        if not any(read):
            own = own._replace(hidden_states=0, places=0)
        if not any(probe.vectors for probe in given):
            own = own._replace(vectors=0)
        if not any(probe.ablations for probe in given):
            own = own._replace(ablations=0)
        if own == ProbeShape():
            return None
        places: Any = None
        if own.places:
            places = np.full((len(lanes), own.places), tokens, np.int32)
            for lane, (positions, feed) in enumerate(zip(read, feeds, strict=True)):
                if feed is not None:
                    places[lane, : len(positions)] = np.array(positions, np.int32) - feed.position
        return probe_operands(probes, own, self.probing.arrays.places.hidden, places)

    def edit(self, pool: RowPool, lanes: Sequence[QueuedText | None]) -> None:
        """Dispatch the changes of states that are due after a step."""
        due = [(lane, text.probe, text.consumed) for lane, text in enumerate(lanes) if text and text.probe is not None]
        self.probing.arrays.edit(pool, due)

    def read(self, pool: RowPool, text: QueuedText, feed: Feed) -> ReadPositions | None:
        """Return what a step that was dispatched reads of a text; None for nothing."""
        if text.probe is None:
            return None
        return self.probing.read(pool, text.slot, text, text.probe, feed.position, feed.position + len(feed.tokens))

    def take(
        self, text: QueuedText, read: ReadPositions | None, hidden_states: Sequence[np.ndarray] | None, lane: int
    ) -> None:
        """Store what a step has read of a text.

        Args:
            text: the text.
            read: positions and states; None for nothing.
            hidden_states: of all lanes, [lane, places*hidden] by slot; None for none.
            lane: of the text.
        """
        if read is not None and text.writer is not None and text.probe is not None:
            wrong = self.probing.write(text.writer, text.probe, read, hidden_states, lane)
            if wrong is not None and (text.first_wrong is None or wrong < text.first_wrong):
                text.first_wrong = wrong
