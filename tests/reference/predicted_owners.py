"""Whether what the proof says of every variable is so, in the runs of the isolation oracle."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from isolation_oracle import mapped, maps
from jaxpr_mutation import Subject

from ir_passes import SlotMap
from ir_passes.lane_proof import walk
from ir_passes.prover import Prover
from ir_passes.values import (
    Columns,
    Common,
    Counts,
    Iota,
    OneHot,
    OneLane,
    Permuted,
    PoolRows,
    Rows,
    Slot,
    Spread,
    Value,
)


def predictions(subject: Subject) -> dict[Any, tuple[Any, Value]]:
    """Variable -> its equation and what the proof says of it; those at the top level, up to the first violation."""
    outer = {id(eqn) for eqn in subject.program.jaxpr.eqns}
    found: dict[Any, tuple[Any, Value]] = {}

    def observe(eqn: Any, _: list[Value], results: list[Value]) -> None:
        if id(eqn) in outer and not prover.violations:
            found.update({var: (eqn, value) for var, value in zip(eqn.outvars, results, strict=True)})

    prover = Prover(subject.bound, observe=observe)
    walk(prover, subject.program)
    return found


class Reality:
    """The concrete side: which lanes and rows may differ in each run."""

    def __init__(self, subject: Subject):
        self.subject, self.bound, self.claims = subject, subject.bound, subject.claims
        self.count = len(self.claims.runs)
        self.lanes = np.zeros((self.count, self.bound.lanes), bool)
        for i, run in enumerate(self.claims.runs):
            self.lanes[i, list(run.lanes)] = True
            for at, leaf in zip(self.bound.inputs, run.leaves, strict=True):
                if isinstance(at.entry, SlotMap):
                    self.lanes[i, leaf == 0] = True

    def inside(self, lanes: np.ndarray) -> np.ndarray:
        """Which of these are lanes; the others are numbers of padding, `jnp.pad` gives negative ones too."""
        return (lanes >= 0) & (lanes < self.bound.lanes)

    def may_differ(self, lanes: np.ndarray) -> np.ndarray:
        """[run, index]: whether these lanes may; what lies outside is padding, which never may."""
        inside = self.inside(lanes)
        return np.where(inside, self.lanes[:, np.where(inside, lanes, 0)], False)

    def rows(self, leaf: int) -> np.ndarray:
        """[run, row]: rows of a pool that may differ from the unchanged run's."""
        entry: Any = self.bound.inputs[leaf].entry
        before = np.moveaxis(self.claims.leaves[leaf], entry.axis + 1, 1)
        may = _by_row(differing(before, before[self.claims.base]))
        for i, run in enumerate(self.claims.runs):
            base = self.claims.runs[self.claims.base[i]]
            for leaves in (run.leaves, base.leaves):
                may[i, maps(self.bound, leaves, entry.group)[1][self.lanes[i]]] = True
        if mapped(self.bound, entry.group):
            may[:, 0] = True
        return may

    def all_runs(self, var: Any) -> np.ndarray:
        value = self.subject.values[var]
        return np.broadcast_to(value, (self.count, *value.shape[1:]))


def differing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Elements that differ in any bit."""
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return np.asarray(np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits))


def _by_run(differs: np.ndarray) -> np.ndarray:
    return np.any(differs, axis=tuple(range(1, differs.ndim)))


def _by_row(differs: np.ndarray) -> np.ndarray:
    """[run, index along the first axis]."""
    return np.any(differs, axis=tuple(range(2, differs.ndim)))


def faults(subject: Subject) -> Iterator[str]:
    """Everything that the proof says and that is not so."""
    reality, found = Reality(subject), predictions(subject)
    orders = {
        value.fact.order.number: _vector(reality.all_runs(var))
        for var, (_, value) in found.items()
        if isinstance(value.fact, Permuted) and value.fact.div == 1 and not value.fact.order.inverse
    }
    numbered: dict[int, np.ndarray] = {}
    for var, (eqn, value) in found.items():
        array = reality.all_runs(var)
        for fault in _faults_of(reality, array, value, orders, numbered):
            yield f"{eqn.primitive.name} {array.shape[1:]}: {fault}; said: {value}"
        numbered.setdefault(value.number, array)


def _vector(array: np.ndarray) -> np.ndarray:
    """[run, index along the first axis], where the other dimensions are of size one."""
    return array.reshape(*array.shape[:2], -1)[:, :, 0]


def _faults_of(
    reality: Reality, array: np.ndarray, value: Value, orders: dict[int, np.ndarray], numbered: dict[int, np.ndarray]
) -> Iterator[str]:
    yield from _owner_faults(reality, array, value.owner, orders)
    if value.range is not None and array.size:
        low, high = value.range
        if array.min() < low or array.max() > high:
            yield f"holds {array.min()} to {array.max()}, outside its range"
    if value.number in numbered:
        other = numbered[value.number]
        if other.dtype == array.dtype and other.size == array.size:
            if differing(array.reshape(len(array), -1), other.reshape(len(other), -1)).any():
                yield "has the value number of an array that holds something else"
    for axis in value.uniform:
        if (array.shape[axis + 1] > 1) and differing(array, array.take([0], axis + 1)).any():
            yield f"is not the same along axis {axis}"
    match value.fact:
        case Iota(axis, div):
            index = np.arange(array.shape[axis + 1]) // div
            if (np.moveaxis(array, axis + 1, -1) != index).any():
                yield "does not count"
        case Slot(leaf, None) if isinstance(value.owner, Rows) and value.owner.order is None:
            lanes = value.owner.start + np.arange(array.shape[value.owner.axis + 1]) // value.owner.inner
            inside = reality.inside(lanes)
            rows = np.moveaxis(array, value.owner.axis + 1, -1)[..., inside]
            slots = reality.claims.leaves[leaf][:, lanes[inside]]
            if (rows != slots.reshape(len(slots), *[1] * (rows.ndim - 2), -1)).any():
                yield "is not its lane's entry in the slot map"
        case Permuted(order, 1) if order.inverse and order.number in orders:
            if (np.take_along_axis(orders[order.number], _vector(array), axis=1) != np.arange(array.shape[1])).any():
                yield "is not the inverse of its permutation"
        case Counts(key) if key in numbered:
            keys = numbered[key].reshape(len(array), -1)
            if (array != (keys[:, :, None] == np.arange(array.shape[1])).sum(1)).any():
                yield "does not count its keys"
        case Columns(columns):
            for k, column in enumerate(columns):
                if column.number in numbered:
                    other, mine = numbered[column.number].reshape(len(array), -1), array[..., k].reshape(len(array), -1)
                    if other.shape != mine.shape or differing(other, mine.astype(other.dtype)).any():
                        yield f"does not hold its column {k}"
        case OneHot(key, axis, classes) if key in numbered and array.ndim == 3:
            keys = numbered[key].reshape(len(array), -1)
            rows = np.moveaxis(array, (axis + 1, classes + 1), (1, 2))
            if (rows != (keys[:, :, None] == np.arange(rows.shape[2]))).any():
                yield "is not the one-hot form of its keys"
        case Spread(number, axis) if number in numbered:
            rows = np.moveaxis(array, axis + 1, -1)
            entries = numbered[number].reshape(len(array), *[1] * (array.ndim - 2), -1)
            if differing(rows, np.broadcast_to(entries, rows.shape)).any():
                yield "is not spread from its vector"


def _owner_faults(reality: Reality, array: np.ndarray, owner: Any, orders: dict[int, np.ndarray]) -> Iterator[str]:
    base = reality.claims.base
    match owner:
        case Common():
            changed = _by_run(differing(array, array[base]))
        case OneLane(int(lane)):
            differs = _by_run(differing(array, array[base]))
            changed = differs & ~reality.may_differ(np.array([lane]))[:, 0]
        case Rows(axis, inner, start, order):
            rows = np.moveaxis(array, axis + 1, 1)
            lane = np.arange(rows.shape[1]) // inner + start
            if order is not None:
                if order.number not in orders:
                    return
                where = orders[order.number]
                where = where if order.inverse else np.argsort(where, axis=1)
                rows = np.take_along_axis(rows, where.reshape(*where.shape, *[1] * (rows.ndim - 2)), axis=1)
            differs = _by_row(differing(rows, rows[base]))
            changed = (differs & ~reality.may_differ(lane)).any(axis=1)
        case PoolRows(leaf, _, axis, ()):
            rows = np.moveaxis(array, axis + 1, 1)
            differs = _by_row(differing(rows, rows[base]))
            changed = (differs & ~reality.rows(leaf)).any(axis=1)
        case _:
            return
    if changed.any():
        yield f"changed by {reality.claims.runs[int(np.argmax(changed))].change}"
