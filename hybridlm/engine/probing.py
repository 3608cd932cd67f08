"""Probes on an engine: inputs of steps, reads and changes between them.

States are copied and changed between steps: a step ends with the token concerned.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.state_order import shard_orders, whole_state_arrays
from hybridlm.programs.shapes import EditShape
from hybridlm.requests.captured import Recorder
from hybridlm.requests.captured_table import CaptureTable
from hybridlm.requests.probes import Probe, edit_inputs, probe_inputs, shape_of, slots
from hybridlm.requests.sites import ProbeSites
from hybridlm.rows.cached_buffers import CachedBuffers
from hybridlm.rows.pool import LaneMap, RowPool
from hybridlm.steps.edit import state_sites, types_in
from hybridlm.steps.hooks import ProbeInputs, ProbeShape
from hybridlm.steps.operands import Feed


def probe_sites(engine: Engine, method: str) -> ProbeSites:
    """Return the sites of a model; raises ValueError if it is loaded without edits."""
    engine.runner.require_edits(f"{method}: hidden_states, states and interventions")
    devices = engine.placement.devices.model
    sites, leaves = state_sites(engine.programs.structure), None
    if devices > 1:
        leaves = whole_state_arrays(engine.config)
    states = {}
    for site in sites:
        state = site.state if leaves is None else leaves[site.place]
        dtype = engine.row_arrays.dtype if state.dtype is None else state.dtype
        states[site.layer, site.array] = site._replace(state=replace(state, dtype=jnp.dtype(dtype)))
    for array in {array for _, array in states}:
        shapes = {site.shape for site in states.values() if site.array == array}
        assert len(shapes) == 1, f"{array}: one input holds the values of any layer, these have {shapes}"
    units = tuple(
        {kind: count if kind == "expert" else count * devices for kind, count in counts.items()}
        for counts in engine.row_arrays.model.sites()
    )
    return ProbeSites(engine.config.family, engine.residual_size, engine.context, units, states)


StepReads = tuple[list[int], CachedBuffers | None]
"""Values that one step reads of one sequence: positions in the order of the step's output, and copies of the row's
arrays after the last one."""


class Probing(AbstractContextManager["Probing"]):
    """Reads and changes inside the model by the sequences of one call or session.

    Requests read hidden states where a token is sampled.

    Args:
        target: folder for a file per sequence, or a table; None for memory.
    """

    def __init__(self, engine: Engine, sites: ProbeSites, target: Path | CaptureTable | None):
        self.sites, self._engine, self._target = sites, engine, target
        self._types = types_in(engine.programs.structure, engine.row_arrays.abstract(1, 1))
        orders = shard_orders(engine)
        self._orders = {key: order for key, site in sites.states.items() if (order := orders[site.place]) is not None}
        self._recorders: list[Recorder] = []

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.finish()
        self.close()

    def recorder(self, probe: Probe | None, index: int, capacity: int) -> Recorder | None:
        """Return the recorder of a sequence with `capacity` positions; None without reads."""
        if probe is None or not probe.runs:
            return None
        path = add = None
        if isinstance(self._target, CaptureTable):
            add = partial(self._target.add, index)
        elif self._target is not None:
            path = self._target / f"{index:06}.safetensors"
        states, capacity = list(self.sites.states.values()) if probe.states else [], 1 if probe.last else capacity
        recorder = Recorder(capacity, probe.hidden_states, self.sites.hidden, states, path, add)
        self._recorders = [other for other in self._recorders if not other.finished] + [recorder]
        return recorder

    def inputs(self, lanes: Sequence[Any]) -> ProbeInputs | None:
        """Return the probe inputs of a step of requests; None without probes."""
        probes = [None if sequence is None else sequence.probe for sequence in lanes]
        shape = shape_of(probes, 1)
        return None if shape == ProbeShape() else probe_inputs(probes, shape, self.sites.hidden, None)

    def after_step(
        self, pool: RowPool, lane_map: LaneMap, stepped: Sequence[tuple[int, Any, int]]
    ) -> dict[int, StepReads]:
        """Dispatch changes of states after a step, then copies; return reads by lane.

        Args:
            stepped: lane, sequence, consumed tokens.
        """
        probed = [entry for entry in stepped if entry[1].probe is not None]
        self._edit(
            pool, lane_map, {lane: sequence.probe.edits_after(sequence.consumed) for lane, sequence, _ in probed}
        )
        reads = {}
        for lane, sequence, count in probed:
            positions = sequence.probe.read_in(sequence.consumed - count, sequence.consumed)
            if positions and sequence.slot is not None:
                keeps = sequence.probe.states
                states = self._engine.moves.keep_state(pool, sequence.slot, sequence) if keeps else None
                reads[lane] = positions, states
        return reads

    def _edit(self, pool: RowPool, lane_map: LaneMap, edits: dict[int, list[Any]]) -> None:
        shape = EditShape(len(lane_map.slots), pool.size, pool.pages)
        for turn in range(max(map(len, edits.values()), default=0)):
            changes = [edits.get(lane, [])[turn : turn + 1] for lane in range(shape.lanes)]
            inputs = edit_inputs([next(iter(change), None) for change in changes], self._types, self._orders)
            self._engine.runner.edit(shape, self._engine.example_arguments, pool, (lane_map.slots, inputs))

    def take(
        self, sequence: Any, reads: StepReads | None, hidden_states: Sequence[np.ndarray] | None, lane: int
    ) -> int | None:
        """Record the values of a step; return the first position without finite numbers.

        Args:
            hidden_states: [lane, places*hidden] by slot.
        """
        probe: Probe | None = sequence.probe
        if reads is None or sequence.recorder is None or probe is None:
            return None
        positions, buffers = reads
        states = None if buffers is None else self._read(buffers)
        hidden = self.sites.hidden
        # A step without slots reads states alone; one for other lanes may have more hidden states.
        named = dict(zip(probe.hidden_states, hidden_states or (), strict=False))
        wrong = None
        for i, position in enumerate(positions):
            values = {index: rows[lane, i * hidden : (i + 1) * hidden] for index, rows in named.items()}
            sequence.recorder.put(position, values, states, probe.last)
            arrays = [*values.values(), *(() if states is None else states.values())]
            if wrong is None and not all(np.isfinite(array).all() for array in arrays):
                wrong = position
        return wrong

    def _read(self, states: CachedBuffers) -> dict[str, np.ndarray]:
        arrays = self._engine.runner.read(states.arrays)
        index = {place: i for i, place in enumerate(self._engine.moves.state_places)}
        named = {}
        for key, site in self.sites.states.items():
            array = np.asarray(arrays[index[site.place]][0])
            if key in self._orders:
                dim, order = self._orders[key]
                shards, array = array, np.empty(site.shape, array.dtype)
                np.moveaxis(array, dim, 0)[order] = np.moveaxis(shards, dim, 0)
            named[site.name] = array
        return named

    def finish(self) -> None:
        if isinstance(self._target, CaptureTable):
            self._target.finish()

    def close(self) -> None:
        for recorder in self._recorders:
            recorder.close()
        if isinstance(self._target, CaptureTable):
            self._target.close()


class TextProbing(Probing):
    """Reads and changes inside the model by the texts of one call.

    The slots follow from all texts.

    Attributes:
        one_by_one: whether every step consumes one token of a text.
    """

    def __init__(
        self,
        engine: Engine,
        sites: ProbeSites,
        target: Path | CaptureTable | None,
        probes: Sequence[Probe | None],
        lengths: Sequence[int],
    ):
        super().__init__(engine, sites, target)
        self.probes = probes
        self.one_by_one = all(
            probe is not None and probe.one_by_one(length) for probe, length in zip(probes, lengths, strict=True)
        )
        places = slots(sum(map(len, probe.runs)) for probe in probes if probe is not None)
        self._shape = shape_of(probes, min(places, 1 if self.one_by_one else engine.chunk))

    def text_inputs(self, lanes: Sequence[Any], feeds: Sequence[Feed | None], tokens: int) -> ProbeInputs | None:
        """Return the probe inputs of a step of texts; None without probes."""
        probes = [None if text is None else text.probe for text in lanes]
        active = [probe for probe in probes if probe is not None]
        reads = [
            [] if probe is None or feed is None else probe.read_in(feed.position, feed.position + len(feed.tokens))
            for probe, feed in zip(probes, feeds, strict=True)
        ]
        shape = self._shape._replace(places=min(self._shape.places, tokens))
        if not any(reads):
            shape = shape._replace(hidden_states=0, places=0)
        if not any(probe.vectors for probe in active):
            shape = shape._replace(vectors=0)
        if not any(probe.ablations for probe in active):
            shape = shape._replace(ablations=0)
        if shape == ProbeShape():
            return None
        places: Any = None
        if shape.places:
            places = np.full((len(lanes), shape.places), tokens, np.int32)
            for lane, (positions, feed) in enumerate(zip(reads, feeds, strict=True)):
                if feed is not None:
                    places[lane, : len(positions)] = np.array(positions, np.int32) - feed.position
        return probe_inputs(probes, shape, self.sites.hidden, places)
