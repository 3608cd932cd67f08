"""Probes: what is read and changed inside the model in one sequence, as the steps of the sequence ask for it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hybridlm.requests.interventions import Intervention, PositionRange
from hybridlm.requests.places import Ablation, Edit, Places, ResidualVector
from hybridlm.steps.edit import StateEdit, StateType, no_edits
from hybridlm.steps.hooks import EMPTY_SLOT, Ablations, Probes, ProbeShape, Vectors, site_of

MAX_SLOTS = 64
"""Maximum number of vectors, and of ablations, of one sequence; a run of consecutive positions counts as one."""


@dataclass(frozen=True, eq=False)
class Probe:
    """Reads and changes inside the model for one sequence.

    Attributes:
        hidden_states: indices of the hidden states that are read.
        states: whether states are read.
        runs: positions at which they are read.
        last: keep only what is read at the last of them.
        vectors, ablations, edits: what is changed.
    """

    hidden_states: tuple[int, ...] = ()
    states: bool = False
    runs: tuple[PositionRange, ...] = ()
    last: bool = False
    vectors: tuple[ResidualVector, ...] = ()
    ablations: tuple[Ablation, ...] = ()
    edits: tuple[Edit, ...] = ()

    @property
    def intervenes(self) -> bool:
        """Whether anything is changed: the state of the sequence is not that of its tokens."""
        return bool(self.vectors or self.ablations or self.edits)

    def reads(self, position: int) -> bool:
        """Whether something is read at a position."""
        return any(run.first <= position < run.end for run in self.runs)

    def read_in(self, first: int, end: int) -> list[int]:
        """Return the positions from `first` on and before `end` at which something is read."""
        return [at for run in self.runs for at in range(max(first, run.first), min(end, run.end))]

    def stop(self, consumed: int, end: int) -> int:
        """Return how many tokens the sequence has consumed after its next step, at most `end`.

        A step ends with every token whose state is read or changed.
        """
        runs = [run for edit in self.edits for run in edit.runs] + list(self.runs if self.states else ())
        stops = (max(run.first, consumed) + 1 for run in runs if consumed < run.end)
        return min([end, *stops])

    def one_by_one(self, length: int) -> bool:
        """Whether each of the sequence's tokens is a step of its own."""
        return all(self.stop(consumed, length) == consumed + 1 for consumed in range(length))

    def edits_after(self, consumed: int) -> list[Edit]:
        """Return the changes of the state after the last of `consumed` tokens, in order."""
        return [one for one in self.edits if any(run.first < consumed <= run.end for run in one.runs)]


class CaptureSettings(NamedTuple):
    """Arguments of `score` and `generate` about what is read, checked against a model.

    Attributes:
        hidden_states: indices.
        states: whether states are read.
    """

    hidden_states: tuple[int, ...] = ()
    states: bool = False

    @property
    def given(self) -> bool:
        """Whether anything is read."""
        return bool(self.hidden_states) or self.states


def check_capture(hidden_states: Any, states: Any, places: Places) -> CaptureSettings:
    """Return checked settings.

    Raises:
        TypeError, ValueError: one is wrong, or the model has no states.
    """
    if not isinstance(states, bool):
        raise TypeError(f"states: expected True or False, got {states!r}")
    if states and not places.states:
        raise ValueError(
            f"states: {places.family} as configured has no state of a recurrence or convolution, which are those read"
        )
    if isinstance(hidden_states, str) or not isinstance(hidden_states, Sequence | np.ndarray):
        raise TypeError(f"hidden_states: expected a list of indices, got {hidden_states!r}")
    most = len(places.sites)
    wrong = [one for one in hidden_states if isinstance(one, bool) or not isinstance(one, int | np.integer)]
    wrong = wrong or [one for one in hidden_states if not 0 <= one <= most]
    if wrong:
        raise ValueError(f"hidden_states: expected indices 0..{most}, got {wrong[0]!r}")
    return CaptureSettings(tuple(sorted({int(one) for one in hidden_states})), states)


def runs_of(positions: Any, first: int, lowest: int, length: int, where: str) -> tuple[PositionRange, ...]:
    """Return the positions of one text at which something is read.

    Args:
        positions: "last", "all", indices, or a bool for each token.
        first: index of the first token of "all".
        lowest: index of the first token that is read at all.
        length: number of tokens.
        where: name of the argument in messages.

    Raises:
        TypeError, ValueError: it does not fit the text.
    """
    if isinstance(positions, str):
        if positions not in ("last", "all"):
            raise ValueError(f"{where}: expected last, all, indices or a mask, got {positions!r}")
        return (PositionRange(length - 1 if positions == "last" else first, length),)
    array = np.asarray(positions)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "bi"):
        raise TypeError(f"{where}: expected last, all, indices or a mask, got {positions!r}"[:300])
    if array.dtype.kind == "b":
        if len(array) != length:
            raise ValueError(f"{where}: expected a mask of {length} tokens, got {len(array)}")
        array = np.flatnonzero(array)
    if array.size and not lowest <= array.min() <= array.max() < length:
        raise ValueError(f"{where}: expected positions {lowest}..{length - 1}, got {array.min()}..{array.max()}")
    found: list[PositionRange] = []
    for at in sorted(set(array.tolist())):
        if found and found[-1].end == at:
            found[-1] = PositionRange(found[-1].first, at + 1)
        else:
            found.append(PositionRange(at, at + 1))
    return tuple(found)


def interventions_of(given: Any, count: int, what: str) -> list[list[Intervention]]:
    """Return the interventions of each of `count` sequences: a list for all of them, or one for each.

    Raises:
        TypeError, ValueError: it is neither.
    """
    if given is None:
        return [[] for _ in range(count)]
    if isinstance(given, Intervention):
        given = [given]
    if not isinstance(given, list | tuple):
        raise TypeError(f"interventions: expected a list of interventions, got {type(given)}")
    if not any(isinstance(one, list | tuple) or one is None for one in given):
        return [list(given) for _ in range(count)]
    if len(given) != count:
        raise ValueError(f"interventions: expected one list for each of {count} {what}, got {len(given)}")
    return [[] if one is None else [one] if isinstance(one, Intervention) else list(one) for one in given]


def probe(
    places: Places,
    capture: CaptureSettings,
    runs: tuple[PositionRange, ...],
    interventions: Sequence[Intervention],
    length: int,
    where: str,
    last: bool = False,
) -> Probe | None:
    """Return the probe of one sequence; None if it reads and changes nothing.

    Args:
        places: of the model.
        capture, runs, last: what is read, and where.
        interventions: what is changed.
        length: positions of the sequence, those to be generated included.
        where: name of the interventions in messages.

    Raises:
        TypeError, ValueError: an intervention is wrong, or there are too many.
    """
    found = [one for i, given in enumerate(interventions) for one in places.resolve(given, f"{where}[{i}]", length)]
    vectors = tuple(one for one in found if isinstance(one, ResidualVector))
    ablations = tuple(one for one in found if isinstance(one, Ablation))
    for what, count in (("vectors", len(vectors)), ("ablations", len(ablations))):
        if count > MAX_SLOTS:
            raise ValueError(
                f"{where}: expected at most {MAX_SLOTS} {what} of a sequence, one for a run of positions, got {count}"
            )
    edits = tuple(one for one in found if isinstance(one, Edit))
    if not found and not (capture.given and runs):
        return None
    runs = runs if capture.given else ()
    return Probe(capture.hidden_states, capture.states, runs, last, vectors, ablations, edits)


def slots(counts: Iterable[int]) -> int:
    """Return the slots of a step for the largest of these counts: the next power of two, or 0."""
    most = max(counts, default=0)
    return 1 << (most - 1).bit_length() if most else 0


def shape_of(probes: Iterable[Probe | None], places: int) -> ProbeShape:
    """Return the shape of a step that reads and changes all that is asked of sequences.

    Args:
        probes: of each sequence.
        places: number of tokens of a lane whose hidden states are read, if any are.
    """
    given = [one for one in probes if one is not None]
    hidden = slots(len(one.hidden_states) for one in given)
    vectors, ablations = slots(len(one.vectors) for one in given), slots(len(one.ablations) for one in given)
    return ProbeShape(hidden, places if hidden else 0, vectors, ablations)


def probe_operands(probes: Sequence[Probe | None], shape: ProbeShape, hidden: int, places: np.ndarray | None) -> Probes:
    """Return the operands of a step.

    Args:
        probes: of each lane.
        shape: of the step.
        hidden: width of the residual stream.
        places: tokens of each lane whose hidden states are returned, int32 [N, P].
    """
    lanes = len(probes)

    def empty(count: int, fill: int) -> np.ndarray:
        return np.full((lanes, count), fill, np.int32)

    layers = vectors = ablations = None
    if shape.hidden_states:
        layers = empty(shape.hidden_states, EMPTY_SLOT)
        for lane, one in enumerate(probes):
            if one is not None:
                layers[lane, : len(one.hidden_states)] = one.hidden_states
    if shape.vectors:
        count = shape.vectors
        vector, replaces = np.zeros((lanes, count, hidden), np.float32), np.zeros((lanes, count), bool)
        vectors = Vectors(empty(count, EMPTY_SLOT), empty(count, 0), empty(count, 0), replaces, vector)
        for lane, one in enumerate(probes):
            for slot, given in enumerate(() if one is None else one.vectors):
                _set(vectors, (lane, slot), (given.index, *given.run, given.replaces, given.vector))
    if shape.ablations:
        count = shape.ablations
        ablations = Ablations(empty(count, EMPTY_SLOT), empty(count, 0), empty(count, 0), empty(count, 0))
        for lane, one in enumerate(probes):
            for slot, ablated in enumerate(() if one is None else one.ablations):
                _set(ablations, (lane, slot), (site_of(ablated.layer, ablated.kind), ablated.unit, *ablated.run))
    return Probes(places, layers, vectors, ablations)


def _set(arrays: Sequence[Any], at: tuple[int, int], values: Sequence[Any]) -> None:
    for array, value in zip(arrays, values, strict=True):
        array[at] = value


def edit_operands(edits: Sequence[Edit | None], types: Mapping[str, StateType]) -> dict[str, StateEdit]:
    """Return the operand of a step that changes states.

    Args:
        edits: of each row; None for one that keeps its state.
        types: of the arrays of each name, as all devices hold them.
    """
    found: Any = no_edits(len(edits), types)
    for lane, one in enumerate(edits):
        if one is not None:
            edit = found[one.array]
            edit.layer[lane], edit.unit[lane], edit.factor[lane] = one.layer, one.units, one.factor
            if one.value is not None:
                edit.replaced[lane], edit.value[lane] = True, one.value
    return found
