"""Probes on an engine: states that are read from rows and changed in them, operands of steps, and what is kept of them.

States are copied out of a row, and changed in it, between steps of the model: a step ends with the token concerned.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.programs.shapes import EditShape, Shape
from hybridlm.requests.captured import CaptureWriter, StateEntry
from hybridlm.requests.places import Places
from hybridlm.requests.probes import Probe, edit_operands, probe_operands, shape_of
from hybridlm.requests.sequence import ActiveSequence, Request
from hybridlm.rows.cached_buffers import CachedBuffers
from hybridlm.rows.pool import RowPool
from hybridlm.steps.edit import StateType, edited_arrays
from hybridlm.steps.hooks import Probes, ProbeShape
from ir_passes.host.slot_owner import Slot


class StateArrays:
    """The arrays of a model's state that can be read and changed.

    Args:
        engine: of the model.

    Attributes:
        entries: the arrays, by their names in contracts.
        places: what can be read and changed.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        arrays, layout = edited_arrays(engine.programs.structure), engine.kind.layout
        types = [StateType(layout[one.place].shape, jnp.dtype(layout[one.place].dtype)) for one in arrays]
        self._places = [one.place for one in arrays]
        self.entries = [
            StateEntry(one.path, tuple(name for name, _ in one.array.sizes), *kind)
            for one, kind in zip(arrays, types, strict=True)
        ]
        states = {(one.layer, one.name): kind for one, kind in zip(arrays, types, strict=True)}
        for name in {array for _, array in states}:
            shapes = {kind.shape for (_, array), kind in states.items() if array == name}
            assert len(shapes) == 1, f"{name}: one operand holds the values of any layer, these have {shapes}"
        model = engine.row_arrays.model
        config = model.config
        self.places = Places(config.family, config.hidden_size, engine.context, model.sites(), states)

    def keep(self, pool: RowPool, slot: Slot, owner: object) -> CachedBuffers:
        """Dispatch the copy of a row's states, as the dispatched steps leave them."""
        return self._engine.moves.keep_state(pool, slot, owner)

    def read(self, kept: CachedBuffers) -> dict[str, np.ndarray]:
        """Wait for states that were kept, and return them by name."""
        arrays = self._engine.runner.read(kept.arrays)
        order = {place: i for i, place in enumerate(self._engine.moves.state_places)}
        return {
            entry.name: np.asarray(arrays[order[place]][0])
            for entry, place in zip(self.entries, self._places, strict=True)
        }

    def edit(self, pool: RowPool, lanes: Sequence[tuple[int, Probe, int]]) -> None:
        """Dispatch the changes of states that are due.

        Args:
            pool: the rows.
            lanes: row, probe, and tokens that the row has consumed.
        """
        due = [(lane, probe.edits_after(consumed)) for lane, probe, consumed in lanes]
        for turn in range(max((len(edits) for _, edits in due), default=0)):
            given = {lane: edits[turn] for lane, edits in due if turn < len(edits)}
            operand = edit_operands([given.get(lane) for lane in range(pool.size)], self.places)
            self._engine.edit(EditShape(pool.size), pool, operand)


class ReadPositions(NamedTuple):
    """Places that one step reads of one sequence.

    Attributes:
        positions: at which hidden states are read, in the order of the step's output.
        kept: the states after the last of them; None where none are read.
    """

    positions: list[int]
    kept: CachedBuffers | None


class Probing:
    """Reads and changes inside the model by the sequences of one call.

    Args:
        arrays: of the model's states.
        folder: where a file is written for each sequence; None for memory.

    Attributes:
        arrays: as given.
    """

    def __init__(self, arrays: StateArrays, folder: Path | None):
        self.arrays, self._folder = arrays, folder
        self._writers: list[CaptureWriter] = []

    def writer(self, probe: Probe | None, index: int | None, capacity: int) -> CaptureWriter | None:
        """Return the arrays that what a sequence reads is written to; None if it reads nothing.

        Args:
            probe: of the sequence.
            index: number of the sequence.
            capacity: maximum number of positions.
        """
        if probe is None or not probe.runs:
            return None
        path = None if self._folder is None else self._folder / f"{index:06}.safetensors"
        states = self.arrays.entries if probe.states else []
        made = CaptureWriter(capacity, probe.hidden_states, self.arrays.places.hidden, states, path)
        self._writers.append(made)
        return made

    def read(self, pool: RowPool, slot: Slot | None, owner: object, probe: Probe, first: int, end: int) -> Any:
        """Return the `ReadPositions` of a step that was dispatched; None for nothing.

        Args:
            pool, slot, owner: the row of the sequence.
            probe: of the sequence.
            first, end: positions of the step.
        """
        positions = probe.read_in(first, end)
        if not positions or slot is None:
            return None
        return ReadPositions(positions, self.arrays.keep(pool, slot, owner) if probe.states else None)

    def write(
        self, writer: CaptureWriter, read: ReadPositions, hidden_states: np.ndarray | None, last: bool = False
    ) -> None:
        """Store what a step has read.

        Args:
            writer: of the sequence.
            read: positions and states.
            hidden_states: float32 [place, layer, hidden]; None for none.
            last: keep the last position alone.
        """
        states = None if read.kept is None else self.arrays.read(read.kept)
        for i, position in enumerate(read.positions):
            writer.put(position, None if hidden_states is None else hidden_states[i], states, last)

    def close(self) -> None:
        """Delete files that were not finished."""
        for writer in self._writers:
            writer.close()


class RequestProbing(Probing):
    """Reads and changes by the requests of a session. Hidden states are read where a token is sampled."""

    def shape(self, shape: Shape, lanes: Sequence[ActiveSequence | None]) -> Shape:
        """Return the shape of a step of these lanes, given the one without probes."""
        found = shape_of((None if one is None else one.request.probe for one in lanes), 1)
        return shape if found == ProbeShape() else replace(shape, probes=found)

    def operands(self, shape: Shape, lanes: Sequence[ActiveSequence | None]) -> tuple[Probes, ...]:
        """Return the operand of a step, if its shape has one."""
        if shape.probes is None:
            return ()
        probes = [None if one is None else one.request.probe for one in lanes]
        return (probe_operands(probes, shape.probes, self.arrays.places.hidden, None),)

    def after_step(
        self, pool: RowPool, sequences: Sequence[tuple[ActiveSequence, int]]
    ) -> dict[int, ReadPositions | None]:
        """Dispatch what follows a step: changes of states, and copies of those that are read.

        Args:
            pool: the rows.
            sequences: those that consumed tokens, with their lanes.

        Returns:
            What was read of each lane; None for nothing.
        """
        given = [(one, lane, one.request.probe) for one, lane in sequences if one.request.probe is not None]
        self.arrays.edit(pool, [(lane, probe, one.consumed) for one, lane, probe in given])
        return {
            lane: self.read(pool, one.slot, one, probe, one.consumed - 1, one.consumed) for one, lane, probe in given
        }

    def of_request(self, request: Request, context: int) -> CaptureWriter | None:
        """Return the arrays for what is read of a request; None for nothing."""
        probe = request.probe
        most = min(request.params.max_tokens, context - len(request.prompt))
        return self.writer(probe, request.index, 1 if probe is not None and probe.last else most)

    def take(
        self, sequence: ActiveSequence, read: ReadPositions | None, hidden_states: np.ndarray | None, lane: int
    ) -> None:
        """Store what a step has read of a sequence that has sampled a token.

        Args:
            sequence: the sequence.
            read: of its lane; None for nothing.
            hidden_states: of all lanes, float32 [lane, layer, hidden]; None for none.
            lane: of the sequence.
        """
        if read is not None and sequence.writer is not None and sequence.request.probe is not None:
            hidden = None if hidden_states is None else hidden_states[lane][None]
            self.write(sequence.writer, read, hidden, sequence.request.probe.last)
