"""Check the proof's claims about idle lanes' elements.

The proof walks a program a second time for a lane whose length is 0, or that is idle by a mask or a count. Its claims
in the second walk (ranges, facts, unchanged rows) hold for the elements of such lanes alone; the first walk gives
their owners.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from isolation_oracle import maps
from jaxpr_mutation import Subject
from predicted_owners import Prediction, Reality, differing, predictions, used_once
from xla_equations import apply

from ir_passes import SlotMap
from ir_passes.jaxpr import ir
from ir_passes.proof.owners import Common, LaneRows, OneLane, PoolRows
from ir_passes.proof.values import Iota, SlotEntry, UnchangedRows, Value
from ir_passes.proof.views import View

Checked = dict[str, int]


ROLES = "length", "active", "active_count"


def idle_lanes(reality: Reality, role: str = "length") -> np.ndarray:
    """[run, lane]: idle by this role's input and off the null row."""
    idle = np.ones_like(reality.lanes)
    for index, leaf in zip(reality.bound.inputs, reality.claims.leaves, strict=True):
        if getattr(index.entry, "role", None) == role:
            idle &= np.arange(idle.shape[1]) >= leaf[:, None] if role == "active_count" else leaf == 0
        elif isinstance(index.entry, SlotMap) and not index.entry.disjoint:
            idle &= leaf != 0
    return idle


def idle_faults(subject: Subject, checked: Checked | None = None) -> Iterator[str]:
    """Yield false claims about idle lanes.

    Args:
        subject: the program.
        checked: counts the elements that each kind of statement was compared for.
    """
    checked = {} if checked is None else checked
    roles = {getattr(item.entry, "role", None) for item in subject.bound.inputs}
    for role in ROLES:
        if role in roles:
            yield from _faults_by(subject, checked, role)


def _faults_by(subject: Subject, checked: Checked, role: str) -> Iterator[str]:
    reality, counted = Reality(subject), role == "active_count"
    idle, views = idle_lanes(reality, role), Views(subject)
    busy, mapping = predictions(subject, counted=counted), predictions(subject, role, counted)
    numbered: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for var, item in mapping.items():
        if isinstance(var, ir.DropVar) or var not in busy:
            continue
        inner = subject.turns.get(var, []) if item.body else [(subject.values[var], np.ones(1, bool))]
        for turn, (result, runs) in enumerate(inner):
            array = reality.all_runs(result)
            actual = _elements(reality, idle, busy[var].value.owner, array.shape)
            actual &= np.broadcast_to(runs, reality.count).reshape(-1, *[1] * (array.ndim - 1))
            where = views.turn(item.body, turn)
            views.learn(item, bool(item.body))
            table = {} if item.body else numbered
            for fault in _faults_of(reality, array, actual, item.value, table, views, where, checked):
                primitive, value = item.equation.primitive.name, item.value
                yield f"{primitive} {array.shape[1:]}: {fault}; claim: {value}, {value.intact}"
            if not item.body:
                numbered.setdefault(item.value.number, (array, actual))


def _elements(reality: Reality, idle: np.ndarray, owner: Any, shape: tuple[int, ...]) -> np.ndarray:
    """[run, ...]: elements of idle lanes, by owner."""
    array = np.zeros(shape, bool)
    match owner:
        case Common():
            array[:] = True
        case OneLane(int(lane)) if 0 <= lane < idle.shape[1]:
            array[idle[:, lane]] = True
        case LaneRows(axis, inner, start, None):
            lanes = start + np.arange(shape[axis + 1]) // inner
            nested = reality.inside(lanes)
            rows = np.where(nested, idle[:, np.where(nested, lanes, 0)], False)
            array |= np.expand_dims(rows, [d for d in range(1, len(shape)) if d != axis + 1])
        case PoolRows(_, group, axis):
            rows = np.zeros((shape[0], shape[axis + 1] // owner.inner), bool)
            for i, run in enumerate(reality.claims.runs):
                _, write = maps(reality.bound, run.leaves, group)
                rows[i, write[idle[i]]] = True
            rows = np.repeat(rows, owner.inner, axis=1)
            array |= np.expand_dims(rows, [d for d in range(1, len(shape)) if d != axis + 1])
    return array


def _changes(reality: Reality, array: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Elements that differ from the unchanged run's, of lanes that are idle in both."""
    base = reality.claims.base
    return differing(array, array[base]) & actual & actual[base]


def _may_differ(reality: Reality, owner: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """[run, ...]: elements that may differ from the unchanged run; None if unknown."""
    match owner:
        case Common():
            return np.zeros(shape, bool)
        case OneLane(int(lane)):
            may = reality.may_differ(np.array([lane]))
        case LaneRows(axis, inner, start, None):
            may = reality.may_differ(start + np.arange(shape[axis + 1]) // inner)
            return np.expand_dims(may, [d for d in range(1, len(shape)) if d != axis + 1])
        case _:
            return None
    return may.reshape(-1, *[1] * (len(shape) - 1))


def _faults_of(
    reality: Reality,
    array: np.ndarray,
    actual: np.ndarray,
    value: Value,
    numbered: dict[int, tuple[np.ndarray, np.ndarray]],
    views: "Views",
    where: int | None,
    checked: Checked,
) -> Iterator[str]:
    """Yield wrong predictions about one variable.

    Args:
        reality: all runs.
        array: values of the variable, [run, ...].
        actual: mask of the elements of idle lanes.
        value: the claims about them.
        numbered: arrays with a value number, and their elements of idle lanes.
        views: of the pools.
        where: index of the surrounding loop; None without exactly one loop.
        checked: counts of compared claims.
    """

    def look(label: str, wrong: np.ndarray) -> bool:
        checked[label] = checked.get(label, 0) + int(actual.sum())
        return bool((wrong & actual).any())

    if value.range is not None and look("range", (array < value.range[0]) | (array > value.range[1])):
        yield f"holds {array[actual].min()} to {array[actual].max()} for idle lanes, outside its range"
    if isinstance(value.fact, Iota):
        index = np.arange(array.shape[value.fact.axis + 1]) // value.fact.div
        if look("iota", np.moveaxis(np.moveaxis(array, value.fact.axis + 1, -1) != index, -1, value.fact.axis + 1)):
            yield "does not count for idle lanes"
    if isinstance(value.fact, SlotEntry) and value.fact.guard is None and isinstance(value.owner, LaneRows):
        axis, lanes = value.owner.axis, value.owner.start + np.arange(array.shape[value.owner.axis + 1])
        lanes = np.where(reality.inside(lanes // value.owner.inner), lanes // value.owner.inner, 0)
        slots = reality.claims.leaves[value.fact.leaf][:, lanes]
        slots = np.expand_dims(slots, [d for d in range(1, array.ndim) if d != axis + 1])
        if value.owner.order is None and look("slot", array // value.fact.stride != slots):
            yield "is not its lane's entry in the slot map for idle lanes"
    may = _may_differ(reality, value.owner, array.shape)
    if may is not None and look("owner", _changes(reality, array, actual) & ~may):
        yield "is changed by another lane where its own is idle"
    if value.number in numbered:
        other, rest = numbered[value.number]
        if other.dtype == array.dtype and other.size == array.size:
            pair = rest.reshape(array.shape)
            if look("number", differing(array, other.reshape(array.shape)) & pair):
                yield "has the value number of an array that holds something else for idle lanes"
    if value.intact is not None:
        selection = views.taken(value.intact, where, lane=getattr(value.owner, "lane", None))
        if selection is None:
            checked["kept by a view that is not followed"] = checked.get("kept by a view that is not followed", 0) + 1
        elif selection.shape != array.shape or selection.dtype != array.dtype:
            yield f"is said to be kept, and its view is {selection.dtype}{selection.shape[1:]}"
        elif look("kept", differing(array, selection)):
            yield "is not what the rows of idle lanes were"


def _with_calls(jaxpr: ir.Jaxpr) -> list[ir.Jaxpr]:
    """Return a body and the bodies of its calls."""
    called = [body.jaxpr for body in map(ir.body_of, jaxpr.eqns) if body is not None]
    return [jaxpr, *(inner for item in called for inner in _with_calls(item))]


class Views:
    """Arrays taken from a pool by the steps of a view."""

    def __init__(self, subject: Subject):
        self.subject, self.claims = subject, subject.claims
        self.reads: dict[tuple[np.dtype, View, Any], Callable[[np.ndarray], np.ndarray]] = {}
        loops: dict[int, dict[str, Any]] = {}
        for eqn in subject.program.jaxpr.eqns:
            if eqn.primitive.name == "scan":
                body = ir.closed(eqn.params["jaxpr"]).jaxpr
                loops.update({id(call): eqn.params for call in _with_calls(body)})
        self.scans = {
            k: loops[id(jaxpr)] for k, jaxpr in enumerate(used_once(subject.program.jaxpr), 1) if id(jaxpr) in loops
        }

    def learn(self, prediction: Prediction, nested: bool) -> None:
        """Record a run-time read when its view step is first seen."""
        initial = prediction.operands[0].intact if prediction.operands else None
        final, name = prediction.value.intact, prediction.equation.primitive.name
        if nested or initial is None or final is None or name not in ("gather", "dynamic_slice"):
            return
        steps = final.view[len(initial.view) :]
        if steps and final.view[: len(initial.view)] == initial.view:
            rest = self.subject.read(prediction.equation.invars)[1:]
            dtype = np.dtype(prediction.equation.invars[0].aval.dtype)
            self.reads.setdefault(
                (dtype, steps, getattr(prediction.value.owner, "lane", None)),
                lambda array: apply(prediction.equation, [array, *rest])[0],
            )

    def _known_read(self, steps: list[Any], array: np.ndarray, lane: Any) -> tuple[np.ndarray, list[Any]] | None:
        """The array after a read that was met before, and the steps after it."""
        for count in range(len(steps), 0, -1):
            read = self.reads.get((array.dtype, tuple(steps[:count]), lane))
            if read is not None:
                return read(array), steps[count:]
        return None

    def turn(self, body: int, turn: int) -> int | None:
        """Return the first-axis index of a top-level loop's current turn."""
        if body not in self.scans:
            return None
        params = self.scans[body]
        return params["length"] - 1 - turn if params["reverse"] else turn

    def taken(self, intact: UnchangedRows, turn: int | None, device: Any = None, lane: Any = None) -> np.ndarray | None:
        """Return the array [run, ...], or None after an unsupported step.

        Args:
            intact: the pool and its view.
            turn: the index of a loop.
            device: the owner of the part of an array that is split over devices.
            lane: the lane with the array, if it is one lane's.
        """
        array = self.claims.leaves[intact.leaf]
        steps: list[Any] = list(intact.view)
        while steps:
            table = self._known_read(steps, array, lane)
            if table is not None:
                array, steps = table
                continue
            match steps.pop(0):
                case ("reshape", _, after):
                    array = array.reshape(len(array), *after)
                case ("transpose", permutation):
                    array = array.transpose(0, *(axis + 1 for axis in permutation))
                case ("slice", full, cut):
                    rank = len(full)
                    starts, sizes, strides = (cut[k * rank : (k + 1) * rank] for k in range(3))
                    ends = [start + n * by for start, n, by in zip(starts, sizes, strides, strict=True)]
                    array = array[(slice(None), *map(slice, starts, ends, strides))]
                case ("part", -1, full, sizes, places) if all(isinstance(start, int) for _, start in places):
                    starts = [0] * len(full)
                    for axis, start in places:
                        starts[axis] = min(max(start, 0), full[axis] - sizes[axis])
                    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
                    array = array[(slice(None), *map(slice, starts, ends))]
                case ("widened" | "narrowed", _, after):
                    with np.errstate(invalid="ignore"):
                        array = array.astype(after)
                case ("device", axes, _) if device is not None:
                    array = device.cut(array, axes)
                case ("scan", _) if turn is not None:
                    array, turn = array[:, turn], None
                case ("rows", dim, _, sizes, (window, ()), index_axes, ()) if steps and len(index_axes) <= 1:
                    step, *steps = steps
                    if step[0] != "by slot" or not isinstance(step[1], SlotEntry) or step[1].guard is not None:
                        return None
                    if [size for d, size in enumerate(sizes) if d != dim] != [
                        size for d, size in enumerate(array.shape[1:]) if d != dim
                    ]:
                        return None
                    result = self._by_slot(array, dim, dict(window), index_axes, step[1].leaf)
                    if result is None:
                        return None
                    array = result
                case _:
                    return None
        return array

    def _by_slot(self, pool: np.ndarray, dim: int, window: dict[int, int], index: tuple[int, ...], leaf: int) -> Any:
        """Rows of a pool, all of each, by the whole of its slot map."""
        if not index:
            return None
        slots = self.claims.leaves[leaf]
        rows = np.moveaxis(pool, dim + 1, 1)
        result = np.take_along_axis(rows, slots.reshape(*slots.shape, *[1] * (rows.ndim - 2)), axis=1)
        intact = [d for d in range(pool.ndim - 1) if d != dim]
        if any(d not in window for d in intact):
            return None
        order = {index[0]: 0, **{window[d]: k + 1 for k, d in enumerate(intact)}}
        if dim in window:
            result = np.expand_dims(result, result.ndim)
            order[window[dim]] = result.ndim - 2
        return result.transpose(0, *(order[axis] + 1 for axis in range(len(order))))
