"""Probes on an engine: states that are read from rows and changed in them, operands of steps, and what is kept of them.

States are copied out of a row, and changed in it, between steps of the model: a step ends with the token concerned.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from hybridlm.checkpoint.model import family_of_model
from hybridlm.engine.engine import Engine
from hybridlm.programs.shapes import EditShape
from hybridlm.requests.captured import CaptureWriter, StateEntry
from hybridlm.requests.captured_table import CaptureTable, TableWriter
from hybridlm.requests.places import Edit, Places
from hybridlm.requests.probes import Probe, edit_operands, probe_operands, shape_of
from hybridlm.requests.sequence import ActiveSequence, Request
from hybridlm.rows.cached_buffers import CachedBuffers
from hybridlm.rows.pool import RowPool
from hybridlm.steps.edit import StateType, edited_arrays
from hybridlm.steps.hooks import Probes, ProbeShape
from ir_passes.host.slot_owner import Slot
from models import DecoderConfig
from models.state.state import StateArray


class StateArrays:
    """The arrays of a model's state that can be read and changed.

    Attributes:
        entries: the arrays, by their names in contracts.
        places: what can be read and changed.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        arrays, layout = edited_arrays(engine.programs.structure), engine.kind.layout
        self._types = {
            one.name: StateType(layout[one.place].shape, np.dtype(layout[one.place].dtype)) for one in arrays
        }
        devices, self._places = engine.placement.devices, [one.place for one in arrays]
        whole = [one.array for one in arrays] if devices.model == 1 else _whole_arrays(engine.config, self._places)
        self._splits = {
            (one.layer, one.name): _Split(array.sharded_dim.dim - 1, array.sharded_dim.order(devices.model))
            for one, array in zip(arrays, whole, strict=True)
            if devices.model > 1 and array.sharded_dim is not None
        }
        self.entries = [
            StateEntry(
                one.path,
                tuple(name for name, _ in array.sizes),
                array.of(1, 1, engine.row_arrays.dtype).shape[1:],
                self._types[one.name].dtype,
            )
            for one, array in zip(arrays, whole, strict=True)
        ]
        states = {
            (one.layer, one.name): StateType(entry.shape, entry.dtype, one.array.role)
            for one, entry in zip(arrays, self.entries, strict=True)
        }
        for name in {array for _, array in states}:
            shapes = {kind.shape for (_, array), kind in states.items() if array == name}
            assert len(shapes) == 1, f"{name}: one operand holds the values of any layer, these have {shapes}"
        sites = tuple(
            {kind: count if kind == "expert" else count * devices.model for kind, count in each.items()}
            for each in engine.row_arrays.model.sites()
        )
        self.places = Places(engine.config.family, engine.hidden_size, engine.context, sites, states)

    def keep(self, pool: RowPool, slot: Slot, owner: object) -> CachedBuffers:
        """Dispatch the copy of a row's states, as the dispatched steps leave them."""
        return self._engine.moves.keep_state(pool, slot, owner)

    def read(self, kept: CachedBuffers) -> dict[str, np.ndarray]:
        """Wait for states that were kept, and return them by name."""
        arrays = self._engine.runner.read(kept.arrays)
        order = {place: i for i, place in enumerate(self._engine.moves.state_places)}
        found = {}
        for entry, place, key in zip(self.entries, self._places, self.places.states, strict=True):
            array, split = np.asarray(arrays[order[place]][0]), self._splits.get(key)
            found[entry.name] = array if split is None else split.joined(array, entry.shape)
        return found

    def edit(self, pool: RowPool, lanes: Sequence[tuple[int, Probe, int]]) -> None:
        """Dispatch the changes of states that are due.

        Args:
            pool: the rows.
            lanes: row, probe, and tokens that the row has consumed.
        """
        due = [(lane, probe.edits_after(consumed)) for lane, probe, consumed in lanes]
        for turn in range(max((len(edits) for _, edits in due), default=0)):
            given = {lane: self._split(edits[turn]) for lane, edits in due if turn < len(edits)}
            operand = edit_operands([given.get(lane) for lane in range(pool.size)], self._types)
            self._engine.edit(EditShape(pool.size), pool, operand)

    def _split(self, edit: Edit) -> Edit:
        """Return a change of a whole array as one of what the devices hold of it, one after another."""
        split = self._splits.get((edit.layer, edit.array))
        if split is None:
            return edit
        value = None if edit.value is None else np.take(edit.value, split.order, axis=split.axis)
        return edit._replace(value=value, units=edit.units[split.order] if split.axis == 0 else edit.units)


class _Split(NamedTuple):
    """A dimension of a sequence's state that is split over devices, and its entries as the devices hold them."""

    axis: int
    order: np.ndarray

    def joined(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return the whole array of what the devices hold."""
        whole = np.empty(shape, array.dtype)
        np.moveaxis(whole, self.axis, 0)[self.order] = np.moveaxis(array, self.axis, 0)
        return whole


def _whole_arrays(config: DecoderConfig, places: Sequence[int]) -> list[StateArray]:
    """Return the descriptions of arrays of a whole model's state, by their indices among all."""
    leaves = jax.tree.leaves(family_of_model(config).abstract(config).state_arrays())
    return [leaves[place] for place in places]


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
        target: folder where a file is written for each sequence, or a table for all; None for memory.

    Attributes:
        arrays: as given.
    """

    def __init__(self, arrays: StateArrays, target: Path | CaptureTable | None):
        self.arrays, self._target = arrays, target
        self._writers: list[CaptureWriter] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.finish()
        self.close()

    def writer(self, probe: Probe | None, index: int | None, capacity: int) -> CaptureWriter | TableWriter | None:
        """Return the arrays that what a sequence reads is written to; None if it reads nothing."""
        if probe is None or not probe.runs:
            return None
        if isinstance(self._target, CaptureTable):
            assert index is not None
            return TableWriter(self._target, index, probe.hidden_states)
        path = None if self._target is None else self._target / f"{index:06}.safetensors"
        states = self.arrays.entries if probe.states else []
        made = CaptureWriter(capacity, probe.hidden_states, self.arrays.places.hidden, states, path)
        self._writers = [one for one in self._writers if not one.finished] + [made]
        return made

    def read(self, pool: RowPool, slot: Slot | None, owner: object, probe: Probe, first: int, end: int) -> Any:
        """Return the `ReadPositions` of a step that was dispatched; None for nothing."""
        positions = probe.read_in(first, end)
        if not positions or slot is None:
            return None
        return ReadPositions(positions, self.arrays.keep(pool, slot, owner) if probe.states else None)

    def write(
        self,
        writer: CaptureWriter | TableWriter,
        probe: Probe,
        read: ReadPositions,
        hidden_states: Sequence[np.ndarray] | None,
        lane: int,
    ) -> int | None:
        """Store values from a step; return the first position without finite numbers.

        Args:
            writer, probe: of the sequence.
            read: positions and states.
            hidden_states: of the step, [lane, places*hidden] by slot; None for none.
            lane: of the sequence.
        """
        states = None if read.kept is None else self.arrays.read(read.kept)
        hidden = self.arrays.places.hidden
        # A step without slots reads states alone; one for other lanes may have more of them.
        named = dict(zip(probe.hidden_states, hidden_states or (), strict=False))
        wrong = None
        for i, position in enumerate(read.positions):
            own = {index: rows[lane, i * hidden : (i + 1) * hidden] for index, rows in named.items()}
            writer.put(position, own, states, probe.last)
            arrays = [*own.values(), *(() if states is None else states.values())]
            if wrong is None and not all(np.isfinite(array).all() for array in arrays):
                wrong = position
        return wrong

    def finish(self) -> None:
        """Give a table its name, once all sequences have ended."""
        if isinstance(self._target, CaptureTable):
            self._target.finish()

    def close(self) -> None:
        """Delete files that were not finished."""
        for writer in self._writers:
            writer.close()
        if isinstance(self._target, CaptureTable):
            self._target.close()


class RequestProbing(Probing):
    """Reads and changes by the requests of a session. Hidden states are read where a token is sampled."""

    def operand(self, lanes: Sequence[ActiveSequence | None]) -> Probes | None:
        """Return the probes of a step of these lanes; None if no lane has any."""
        probes = [None if sequence is None else sequence.request.probe for sequence in lanes]
        shape = shape_of(probes, 1)
        return None if shape == ProbeShape() else probe_operands(probes, shape, self.arrays.places.hidden, None)

    def after_step(
        self, pool: RowPool, sequences: Sequence[tuple[ActiveSequence, int]]
    ) -> dict[int, ReadPositions | None]:
        """Dispatch what follows a step: changes of states, and copies of those that are read.

        Returns:
            Lane -> the positions and states that were read; None for none.
        """
        given = [(one, lane, one.request.probe) for one, lane in sequences if one.request.probe is not None]
        self.arrays.edit(pool, [(lane, probe, one.consumed) for one, lane, probe in given])
        return {
            lane: self.read(pool, one.slot, one, probe, one.consumed - 1, one.consumed) for one, lane, probe in given
        }

    def of_request(self, request: Request, context: int) -> CaptureWriter | TableWriter | None:
        """Return the arrays for what is read of a request; None for nothing."""
        probe = request.probe
        most = min(request.params.max_tokens, context - len(request.prompt))
        return self.writer(probe, request.index, 1 if probe is not None and probe.last else most)

    def take(
        self,
        sequence: ActiveSequence,
        read: ReadPositions | None,
        hidden_states: Sequence[np.ndarray] | None,
        lane: int,
    ) -> int | None:
        """Store values of a sequence with a new token; return as `write`.

        Args:
            sequence: the sequence.
            read: of its lane; None for nothing.
            hidden_states: of all lanes, [lane, hidden] by slot; None for none.
            lane: of the sequence.
        """
        probe = sequence.request.probe
        if read is not None and sequence.writer is not None and probe is not None:
            return self.write(sequence.writer, probe, read, hidden_states, lane)
        return None
