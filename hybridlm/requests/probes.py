"""Probes: reads and changes inside the model in one sequence, and inputs of steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from hybridlm.requests.interventions import Intervention, consecutive
from hybridlm.steps.edit import StateEdit, no_edits
from hybridlm.steps.hooks import EMPTY_SLOT, Ablations, ProbeInputs, ProbeShape, Vectors, site_of

MAX_SLOTS = 64
"""Maximum vectors, and ablations, of a sequence; consecutive positions count once."""
VECTORS = ("add", "replace_hidden_state")
ABLATIONS = ("ablate_head", "ablate_expert")
EDITS = ("scale_state", "replace_state")


@dataclass(frozen=True, eq=False)
class Probe:
    """Reads and changes inside the model for one sequence.

    Attributes:
        last: keep the last position alone.
        interventions: resolved by `ProbeSites`.
    """

    hidden_states: tuple[int, ...] = ()
    states: bool = False
    runs: tuple[range, ...] = ()
    last: bool = False
    interventions: tuple[Intervention, ...] = ()

    @property
    def captures(self) -> bool:
        return bool(self.hidden_states) or self.states

    @property
    def intervenes(self) -> bool:
        """Whether it changes anything; states then depend on more than the tokens."""
        return bool(self.interventions)

    @property
    def vectors(self) -> list[tuple[Intervention, range]]:
        return self._of(VECTORS)

    @property
    def ablations(self) -> list[tuple[Intervention, range]]:
        return self._of(ABLATIONS)

    @property
    def edits(self) -> list[tuple[Intervention, range]]:
        return self._of(EDITS)

    def _of(self, kinds: tuple[str, ...]) -> list[tuple[Intervention, range]]:
        return [(change, run) for change in self.interventions if change.kind in kinds for run in change.runs or ()]

    def reads(self, position: int) -> bool:
        return any(position in run for run in self.runs)

    def read_in(self, first: int, end: int) -> list[int]:
        """Return the captured positions in [first, end)."""
        return [position for run in self.runs for position in range(max(first, run.start), min(end, run.stop))]

    def stop(self, consumed: int, end: int) -> int:
        """Return the end of the next step: a read or changed token, or `end`."""
        runs = [run for _, run in self.edits] + list(self.runs if self.states else ())
        stops = (max(run.start, consumed) + 1 for run in runs if consumed < run.stop)
        return min([end, *stops])

    def one_by_one(self, length: int) -> bool:
        return all(self.stop(consumed, length) == consumed + 1 for consumed in range(length))

    def reading_from(self, position: int) -> "Probe":
        """Return the probe without reads before a position; changes stay."""
        runs = (range(max(run.start, position), run.stop) for run in self.runs)
        return replace(self, runs=tuple(run for run in runs if run))

    def edits_after(self, consumed: int) -> list[Intervention]:
        return [change for change, run in self.edits if consumed - 1 in run]


def runs_of(positions: Any, span: range, lowest: int, where: str) -> tuple[range, ...]:
    """Return the captured positions of one text; raises TypeError or ValueError.

    Args:
        span: for "all".
        lowest: first readable token.
    """
    length = span.stop
    if isinstance(positions, str):
        if positions not in ("last", "all"):
            raise ValueError(f"{where}: expected last, all, indices or a mask, got {positions!r}")
        return (range(length - 1, length) if positions == "last" else span,)
    array = np.asarray(positions)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "bi"):
        raise TypeError(f"{where}: expected last, all, indices or a mask, got {positions!r}"[:300])
    if array.dtype.kind == "b":
        if len(array) != length:
            raise ValueError(f"{where}: expected a mask of {length} tokens, got {len(array)}")
        array = np.flatnonzero(array)
    if array.size and not lowest <= array.min() <= array.max() < length:
        raise ValueError(f"{where}: expected positions {lowest}..{length - 1}, got {array.min()}..{array.max()}")
    return consecutive(array.tolist())


def interventions_of(value: Any, count: int, sequences: str) -> list[list[Intervention]]:
    """Return each sequence's interventions, from one list or one per sequence.

    Raises:
        TypeError, ValueError: it is neither.
    """
    if value is None:
        return [[] for _ in range(count)]
    if isinstance(value, Intervention):
        value = [value]
    if not isinstance(value, list | tuple):
        raise TypeError(f"interventions: expected a list of interventions, got {type(value)}")
    if not any(isinstance(entry, list | tuple) or entry is None for entry in value):
        return [list(value) for _ in range(count)]
    if len(value) != count:
        raise ValueError(f"interventions: expected one list for each of {count} {sequences}, got {len(value)}")
    return [[entry] if isinstance(entry, Intervention) else list(entry or ()) for entry in value]


def slots(counts: Iterable[int]) -> int:
    """Return the largest count, rounded to a power of two."""
    largest = max(counts, default=0)
    return 1 << (largest - 1).bit_length() if largest else 0


def shape_of(probes: Iterable[Probe | None], places: int) -> ProbeShape:
    """Return the shape for probes; `places` tokens of a lane return hidden states."""
    active = [probe for probe in probes if probe is not None]
    hidden = slots(len(probe.hidden_states) for probe in active)
    vectors, ablations = (
        slots(len(probe.vectors) for probe in active),
        slots(len(probe.ablations) for probe in active),
    )
    return ProbeShape(hidden, places if hidden else 0, vectors, ablations)


def probe_inputs(
    probes: Sequence[Probe | None], shape: ProbeShape, hidden: int, places: np.ndarray | None
) -> ProbeInputs:
    """Return the inputs of a step; `places` (int32 [N, P]) return hidden states."""
    lanes = len(probes)
    active = [(lane, probe) for lane, probe in enumerate(probes) if probe is not None]

    def filled(count: int, value: int) -> np.ndarray:
        return np.full((lanes, count), value, np.int32)

    layers = vectors = ablations = None
    if shape.hidden_states:
        layers = filled(shape.hidden_states, EMPTY_SLOT)
        for lane, probe in active:
            layers[lane, : len(probe.hidden_states)] = probe.hidden_states
    if count := shape.vectors:
        vector, replaces = np.zeros((lanes, count, hidden), np.float32), np.zeros((lanes, count), bool)
        vectors = Vectors(filled(count, EMPTY_SLOT), filled(count, 0), filled(count, 0), replaces, vector)
        for lane, probe in active:
            for slot, (change, run) in enumerate(probe.vectors):
                replaces = change.kind == "replace_hidden_state"
                _set(vectors, (lane, slot), (change.layer, run.start, run.stop, replaces, change.value))
    if count := shape.ablations:
        ablations = Ablations(filled(count, EMPTY_SLOT), filled(count, 0), filled(count, 0), filled(count, 0))
        for lane, probe in active:
            for slot, (change, run) in enumerate(probe.ablations):
                site = site_of(change.layer, str(change.mixer))
                _set(ablations, (lane, slot), (site, change.unit, run.start, run.stop))
    return ProbeInputs(places, layers, vectors, ablations)


def _set(arrays: Sequence[Any], index: tuple[int, int], values: Sequence[Any]) -> None:
    for array, value in zip(arrays, values, strict=True):
        array[index] = value


def edit_inputs(
    edits: Sequence[Intervention | None],
    types: Mapping[str, jax.ShapeDtypeStruct],
    orders: Mapping[tuple[int, str], tuple[int, np.ndarray]],
) -> dict[str, StateEdit]:
    """Return the input of a step that changes states.

    Args:
        edits: by row; None keeps the state.
        types: over all devices, by name.
        orders: sharded dimension and its entries in order, by (layer, array).
    """
    inputs: Any = no_edits(len(edits), types)
    for lane, change in enumerate(edits):
        if change is None:
            continue
        edit, value = inputs[change.array], change.value
        dim, order = orders.get((change.layer, change.array), (0, np.arange(edit.unit.shape[1])))
        edit.layer[lane], edit.factor[lane] = change.layer, change.factor
        units = order if dim == 0 else np.arange(edit.unit.shape[1])
        edit.unit[lane] = True if change.unit is None else units == change.unit
        if value is not None:
            edit.replaced[lane], edit.value[lane] = True, np.take(value, order, axis=dim)
    return inputs
