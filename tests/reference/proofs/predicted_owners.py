"""Check the proof's claims about every variable in the isolation oracle's runs.

More than 300 lines: one comparison for each fact.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from facts.fact_sums import evaluated, sum_or_mask_holds, symbol_of
from isolation_oracle import mapped, maps, null_rows, owned, pages, second_rows, segments
from jaxpr_mutation import Subject

from ir_passes import PageTable, SlotMap
from ir_passes.jaxpr import ir
from ir_passes.proof.lane_proof import walk
from ir_passes.proof.owners import Common, LaneRows, OneLane, PoolRows, Symbol
from ir_passes.proof.prover import Prover
from ir_passes.proof.values import (
    BroadcastVector,
    Columns,
    Counts,
    Finite,
    Implies,
    IndexSum,
    Iota,
    Mask,
    MaskedOut,
    Negative,
    NotAbove,
    OneHot,
    OwnTokens,
    PageEntry,
    Permuted,
    PlusConstant,
    RowPlaces,
    SameLane,
    SegmentIds,
    SharedElsewhere,
    ShiftedIds,
    SlotEntry,
    Tiles,
    TokenAt,
    TokenOfLane,
    TokenSpan,
    Value,
    WithinLane,
)


class Prediction(NamedTuple):
    """The abstract value that the proof gives a variable.

    Attributes:
        equation: that gives it.
        operands: the proof's claims about the equation's operands.
        value: its claim about the variable.
        body: which loop or branch it stands in; 0 at the top level.
    """

    equation: Any
    operands: list[Value]
    value: Value
    body: int


def predictions(subject: Subject, idle: str = "", counted: bool = False) -> dict[Any, Prediction]:
    """Map each variable to the proof's claim about it.

    Those at the top level up to the first violation; those inside loops and branches, in the last round of the loop,
    where there is no violation.

    Args:
        subject: the program.
        idle: the claims about elements of a lane that is idle by the input of this role.
        counted: as of `Prover`.
    """
    outer = {id(eqn) for eqn in subject.program.jaxpr.eqns}
    bodies = {id(eqn): k for k, jaxpr in enumerate(used_once(subject.program.jaxpr), 1) for eqn in jaxpr.eqns}
    result: dict[Any, Prediction] = {}
    inner: dict[Any, Prediction] = {}

    def observe(eqn: Any, operands: list[Value], results: list[Value]) -> None:
        body = bodies.get(id(eqn), 0)
        new = {var: Prediction(eqn, operands, value, body) for var, value in zip(eqn.outvars, results, strict=True)}
        if body:
            inner.update(new)
        elif id(eqn) in outer and not prover.violations:
            result.update(new)

    prover = Prover(subject.bound, idle=idle, counted=counted, observe=observe)
    walk(prover, subject.program)
    return result if prover.violations else result | inner


def used_once(jaxpr: ir.Jaxpr) -> list[ir.Jaxpr]:
    """Bodies used once, so that claims are not overwritten."""
    bodies = [inner for eqn in ir.all_eqns(jaxpr) for inner in ir.sub_jaxprs(eqn)]
    counts = Counter(map(id, bodies))
    return [body for body in bodies if counts[id(body)] == 1]


class Reality:
    """The concrete side: lanes and rows that may differ per run."""

    def __init__(self, subject: Subject):
        self.subject, self.bound, self.claims = subject, subject.bound, subject.claims
        self.count = len(self.claims.runs)
        self.lanes = np.zeros((self.count, self.bound.lanes), bool)
        self.segments: dict[str, np.ndarray] = {}
        for name in self.bound.layouts:
            rows = [segments(self.bound, run.leaves, name) for run in self.claims.runs]
            if rows[0] is not None:
                self.segments[name] = np.stack([row for row in rows if row is not None])
        self.picked: dict[Any, np.ndarray] = {}
        for i, run in enumerate(self.claims.runs):
            self.lanes[i, list(run.lanes)] = True
            for index, leaf in zip(self.bound.inputs, run.leaves, strict=True):
                if isinstance(index.entry, SlotMap):
                    self.lanes[i, leaf == 0] = True

    def inside(self, lanes: np.ndarray) -> np.ndarray:
        """True where numbers are lanes; others, negative ones too, are padding."""
        return (lanes >= 0) & (lanes < self.bound.lanes)

    def may_differ(self, lanes: np.ndarray) -> np.ndarray:
        """[run, index]: True if these lanes may differ; padding never may.

        For packed tokens the number of lanes means padding, which may depend on anything.
        """
        inner = self.inside(lanes)
        junk = (lanes == self.bound.lanes) & bool(self.segments)
        return np.where(inner, self.lanes[:, np.where(inner, lanes, 0)], junk)

    def tokens_may_differ(self, tokens: np.ndarray, layout: str) -> np.ndarray:
        """[run, index]: True if these tokens may differ; padding always may."""
        segment = self.segments[layout]
        mask = (tokens >= 0) & (tokens < segment.shape[1])
        lanes = np.where(mask, segment[:, np.where(mask, tokens, 0)], self.bound.lanes)
        return np.take_along_axis(np.pad(self.lanes, ((0, 0), (0, 1)), constant_values=True), lanes, axis=1)

    def lanes_of(self, owner: LaneRows) -> np.ndarray:
        """[run, index]: the lane at each index of an axis of tokens or lanes."""
        lanes = np.broadcast_to(np.arange(self.bound.lanes), self.lanes.shape)
        return self.segments[owner.packed] if owner.packed else lanes

    def rows(self, leaf: int) -> np.ndarray:
        """[run, row]: rows of a pool that may differ from the unchanged run's."""
        entry: Any = self.bound.inputs[leaf].entry
        array = np.moveaxis(self.claims.leaves[leaf], entry.axis + 1, 1)
        may = _by_row(differing(array, array[self.claims.base]))
        for i, run in enumerate(self.claims.runs):
            base = self.claims.runs[self.claims.base[i]]
            for leaves in (run.leaves, base.leaves):
                if pages(self.bound, leaves, entry.group):
                    local = owned(self.bound, leaves, entry.group)
                    may[i, [row for lane in np.flatnonzero(self.lanes[i]) for row in local[lane]]] = True
                    continue
                for rows in (maps(self.bound, leaves, entry.group)[1], *second_rows(self.bound, leaves, entry.group)):
                    may[i, rows[self.lanes[i]]] = True
        if mapped(self.bound, entry.group):
            may[:, null_rows(self.bound, entry.group)] = True
        return may

    def all_runs(self, value: np.ndarray) -> np.ndarray:
        return np.broadcast_to(value, (self.count, *value.shape[1:]))

    def outside_picked(self, choice: Any, differs: np.ndarray, packed: str = "") -> np.ndarray:
        """[run]: True if a difference belongs to no lane that an index picked.

        Args:
            which: the index and the turn of its loop; it picks one lane in all runs of one draw.
            differs: [run].
            packed: layout of the token that it picks; "" if it picks a lane.
        """
        may = self.picked.setdefault(choice, np.ones_like(self.lanes))
        if packed and (self.segments[packed] == self.bound.lanes).any():
            return np.zeros_like(differs)  # it may be padding
        for run in np.flatnonzero(differs):
            may[self.claims.base[run]] &= self.lanes[run]
        return differs & ~may[self.claims.base].any(axis=1)


def differing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return elements with any differing bit; float0 never differs."""
    if not a.dtype.itemsize:
        return np.zeros(a.shape, bool)
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return np.asarray(np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits))


def _by_run(differs: np.ndarray) -> np.ndarray:
    return np.any(differs, axis=tuple(range(1, differs.ndim)))


def _by_row(differs: np.ndarray) -> np.ndarray:
    """[run, index along the first axis]."""
    return np.any(differs, axis=tuple(range(2, differs.ndim)))


def faults(subject: Subject) -> Iterator[str]:
    """Yield false claims of the proof."""
    reality, mapping = Reality(subject), predictions(subject)
    orders = {
        value.fact.order.number: _vector(reality.all_runs(subject.values[var]))
        for var, (_, _, value, body) in mapping.items()
        if isinstance(value.fact, Permuted) and value.fact.div == 1 and not value.fact.order.inverse and not body
    }
    numbered: dict[int, np.ndarray] = {}
    for var, (eqn, _, value, body) in mapping.items():
        if isinstance(var, ir.DropVar):
            continue
        turns = subject.turns.get(var, []) if body else [(subject.values[var], np.ones(1, bool))]
        for turn, (result, runs) in enumerate(turns):
            array, runs = reality.all_runs(result), np.broadcast_to(runs, reality.count)
            for fault in _faults_of(reality, array, value, orders, {} if body else numbered, (body, turn), runs):
                yield f"{eqn.primitive.name} {array.shape[1:]}: {fault}; said: {value}"
        if not body:
            numbered.setdefault(value.number, reality.all_runs(subject.values[var]))


def _vector(array: np.ndarray) -> np.ndarray:
    """[run, index along the first axis], where the other dimensions are of size one."""
    return array.reshape(*array.shape[:2], -1)[:, :, 0]


def is_one_of(array: np.ndarray, names: frozenset[str]) -> np.ndarray:
    """Return a mask of the elements that are nan or an infinity of these names."""
    tests = {"nan": np.isnan, "inf": np.isposinf, "-inf": np.isneginf}
    return np.any([tests[name](array) for name in names], axis=0)


def _faults_of(
    reality: Reality,
    array: np.ndarray,
    value: Value,
    orders: Mapping[Any, np.ndarray],
    numbered: dict[int, np.ndarray],
    where: Any,
    runs: np.ndarray,
) -> Iterator[str]:
    """A prediction about one variable that is wrong.

    Args:
        reality: all runs.
        array: [run, ...] of the variable.
        value: the claim about it.
        orders: the permutation of each number.
        numbered: arrays with a value number.
        where: the turn of the loop that the variable stands in.
        runs: [run], which of them are in that turn.
    """
    changed = _changed(reality, array, value.owner, orders, where) & runs & runs[reality.claims.base]
    if changed.any():
        yield f"changed by {reality.claims.runs[int(np.argmax(changed))].change}"
    in_turn = array[runs]  # the others may have left the loop
    if value.range is not None and in_turn.size:
        low, high = value.range
        if in_turn.min() < low or in_turn.max() > high:
            yield f"holds {in_turn.min()} to {in_turn.max()}, outside its range"
    if value.number in numbered:
        other = numbered[value.number]
        if other.dtype == array.dtype and other.size == array.size:
            if differing(array.reshape(len(array), -1), other.reshape(len(other), -1)).any():
                yield "has the value number of an array that holds something else"
    for axis in value.uniform:
        if (array.shape[axis + 1] > 1) and differing(array, array.take([0], axis + 1)).any():
            yield f"is not the same along axis {axis}"
    if isinstance(value.fact, SlotEntry) and value.fact.non_null and "null" not in value.fact.alternatives:
        if ((array >= 0) & (array < value.fact.stride)).any():
            yield "is on the null row"
    match value.fact:
        case Iota(axis, div):
            index = np.arange(array.shape[axis + 1]) // div
            if (np.moveaxis(array, axis + 1, -1) != index).any():
                yield "does not count"
        case SlotEntry(leaf, None) if (
            isinstance(value.owner, LaneRows) and value.owner.order is None and not value.owner.packed
        ):
            lanes = value.owner.start + np.arange(array.shape[value.owner.axis + 1]) // value.owner.inner
            inner = reality.inside(lanes)
            rows = np.moveaxis(array, value.owner.axis + 1, -1)[..., inner] // value.fact.stride
            slots = reality.claims.leaves[leaf][:, lanes[inner]]
            if (rows != slots.reshape(len(slots), *[1] * (rows.ndim - 2), -1)).any():
                yield "is not its lane's entry in the slot map"
        case PageEntry(leaf, stride, spare, alternatives) if (
            isinstance(value.owner, LaneRows) and not value.owner.order and not value.owner.packed
        ):
            rows = np.moveaxis(array, value.owner.axis + 1, 1)
            lanes = value.owner.start + np.arange(rows.shape[1]) // value.owner.inner
            table, entry = reality.claims.leaves[leaf], reality.bound.inputs[leaf].entry
            assert isinstance(entry, PageTable)
            table = table.reshape(len(table), reality.bound.lanes, -1)[:, lanes]
            rows = rows.reshape(*rows.shape[:2], -1)
            actual = (rows[..., None] // stride == table[:, :, None]).any(-1) & (rows >= 0) & (rows % stride <= spare)
            elsewhere = {
                "past": rows >= entry.size * stride,
                "below": rows < 0,
                "lowest": rows <= -(1 << 30),
                "last": rows == rows,
            }
            if not (actual | np.any([elsewhere[kind] for kind in alternatives] or [actual], axis=0)).all():
                yield "is no entry of its lane's row in the page table"
        case SegmentIds(axis, layout, padding) if layout in reality.segments:
            rows = np.moveaxis(array, axis + 1, -1)
            segment = reality.segments[layout][:, : rows.shape[-1]]
            segment = segment.reshape(len(segment), *[1] * (rows.ndim - 2), -1)
            in_lane = (segment == reality.bound.lanes) & (padding == "lane") & reality.inside(rows)
            if ((rows != segment) & ~in_lane).any():
                yield "is not the lane of each token"
        case RowPlaces(axis, layout, padding, stride, masked) if layout in reality.segments:
            rows = np.moveaxis(array, axis + 1, -1)
            segment = reality.segments[layout][:, : rows.shape[-1]]
            segment = segment.reshape(len(segment), *[1] * (rows.ndim - 2), -1)
            is_past, is_padding = rows >= reality.bound.lanes * stride, segment == reality.bound.lanes
            in_lane = (is_padding & (padding == "lane") & reality.inside(rows // stride)) | (is_past & masked)
            if (~np.where(is_padding, is_past, rows // stride == segment) & ~in_lane).any():
                yield "is in no row of the lane of each token"
        case ShiftedIds(axis, layout, padding, shift) if layout in reality.segments:
            rows, segment = np.moveaxis(array, axis + 1, -1), reality.segments[layout]
            token = np.arange(rows.shape[-1]) + shift
            inner = (token >= 0) & (token < segment.shape[1])
            expected = segment[:, token[inner]].reshape(len(segment), *[1] * (rows.ndim - 2), -1)
            in_lane = (expected == reality.bound.lanes) & (padding == "lane") & reality.inside(rows[..., inner])
            lane = (rows[..., ~inner] >= 0) & (rows[..., ~inner] <= reality.bound.lanes)
            if ((rows[..., inner] != expected) & ~in_lane).any() or lane.any():
                yield "is not the lane of each token, shifted"
        case WithinLane(layout, int(axis), back, when, shift, _, stride) if layout in reality.segments:
            rows, segment = np.moveaxis(array, axis + 1, -1), reality.segments[layout]
            token, edge = np.arange(rows.shape[-1]) * stride + shift, segment.shape[1]
            segment = np.pad(segment, ((0, 0), (edge, edge)), constant_values=-1)
            lane = segment[:, token + edge]
            spans = [segment[:, token - k + edge] for k in range(min(back, 0), max(back, 0) + 1)]
            wrong = np.any([lane != other for other in spans], axis=0) & (lane >= 0) & (lane < reality.bound.lanes)
            if ((rows == when) & wrong.reshape(len(rows), *[1] * (rows.ndim - 2), -1)).any():
                yield "puts tokens of different lanes into one"
        case TokenAt(layout, place, back, ahead) if layout in reality.segments:
            differs = differing(array, array[reality.claims.base])
            starts = {name: _starts(reality, name) for name in reality.segments}
            for k, segment in enumerate(reality.segments[layout]):
                layouts = {name: (starts[name][k], lanes[k]) for name, lanes in reality.segments.items()}
                token, is_known = evaluated(place, array.shape[1:], layouts, {})
                may = np.zeros(array.shape[1:], bool)
                for place_of_token in (token + distance for distance in range(-back, ahead + 1)):
                    is_token = is_known & (place_of_token >= 0) & (place_of_token < len(segment))
                    lanes = np.where(is_token, segment[np.where(is_token, place_of_token, 0)], reality.bound.lanes)
                    may |= np.append(reality.lanes[k], True)[lanes]
                if (differs[k] & ~may).any():
                    yield "depends on tokens at other places"
                    break
        case OwnTokens(layout, LaneRows(axis, inner, packed=packed)) if layout in reality.segments:
            rows = np.moveaxis(array, axis + 1, 1).reshape(len(array), array.shape[axis + 1], -1)
            lanes = np.broadcast_to(np.arange(rows.shape[1]) // inner, rows.shape[:2])
            lanes = np.take_along_axis(reality.segments[packed], lanes, axis=1) if packed else lanes
            padded = np.pad(reality.segments[layout], ((0, 0), (0, 1)), constant_values=-1)
            count = reality.segments[layout].shape[1]
            row_lanes = np.stack([segment[np.clip(row, 0, count)] for segment, row in zip(padded, rows, strict=True)])
            is_wrong = ((row_lanes != lanes[..., None]) & ((rows < count) | bool(packed))) | (rows < 0)
            if (is_wrong & (lanes[..., None] < reality.bound.lanes)).any():
                yield "is a token of another lane"
        case TokenSpan(layout, int(axis), start, stride, before, after) if layout in reality.segments:
            rows, segment = np.moveaxis(array, axis + 1, 1), reality.segments[layout]
            low = start + stride * np.arange(rows.shape[1]) - before
            tokens = low[:, None] + np.arange(before + after + 1)
            may = reality.tokens_may_differ(tokens.ravel(), layout).reshape(len(rows), *tokens.shape).any(axis=2)
            if (_by_row(differing(rows, rows[reality.claims.base])) & ~may).any():
                yield "depends on tokens outside of its span"
        case IndexSum() | Mask() if reality.segments:
            layouts = {name: (_starts(reality, name), lanes) for name, lanes in reality.segments.items()}
            different: dict[Any, int] = {}
            for k in np.flatnonzero(runs):
                different.setdefault((array[k].tobytes(), *(cu[k].tobytes() for cu, _ in layouts.values())), int(k))
            of_run = {k: {name: (cu[k], lanes[k]) for name, (cu, lanes) in layouts.items()} for k in different.values()}
            if not all(sum_or_mask_holds(value.fact, array[k], of) for k, of in of_run.items()):
                yield "is not its sum, or breaks a condition"
        case SameLane(LaneRows() as first, LaneRows() as second, padding, when) if reality.segments:
            rows = np.moveaxis(array == when, (first.axis + 1, second.axis + 1), (1, 2))
            rows = rows.reshape(*rows.shape[:3], -1)
            item, two = reality.lanes_of(first)[:, :, None, None], reality.lanes_of(second)[:, None, :, None]
            other = (item != two) & (item < reality.bound.lanes) & ~(padding & (two == reality.bound.lanes))
            if (rows & other).any():
                yield "is true of tokens of different lanes"
        case TokenOfLane(layout, which) if layout in reality.segments:
            index = array.reshape(len(array), -1 if which is None else 1, math.prod(array.shape[1 + (which is None) :]))
            for run, segment in enumerate(reality.segments[layout]):
                for lane in np.intersect1d(np.arange(reality.bound.lanes) if which is None else [which], segment):
                    if (segment[index[run, lane if which is None else 0]] != lane).any():
                        yield "is no token of each lane"
        case MaskedOut(LaneRows() as first, LaneRows() as second, zero) if reality.segments:
            rows = np.moveaxis(array, (first.axis + 1, second.axis + 1), (1, 2))
            rows = rows.reshape(*rows.shape[:3], -1)
            item, two = reality.lanes_of(first)[:, :, None, None], reality.lanes_of(second)[:, None, :, None]
            outer = (item != two) & (item < reality.bound.lanes) & ~np.isnan(rows)
            if (outer & (rows != (0 if zero else -np.inf))).any():
                yield "is something where tokens belong to different lanes"
        case Tiles(rows, tiles, _):
            moved_axes = np.moveaxis(array, (tiles + 1, tiles + 2), (1, 2))
            merged = moved_axes.reshape(len(array), -1, *moved_axes.shape[3:])
            if _changed(reality, merged, rows, orders, where).any():
                yield "has tiles that depend on other lanes"
        case SharedElsewhere(conditions) if reality.segments:
            differs = differing(array, array[reality.claims.base])
            starts = {name: _starts(reality, name) for name in reality.segments}
            sums = [each.sum for each in conditions if not any(map(symbol_of, dict(each.sum.terms)))]
            for k, base in enumerate(reality.claims.base):
                layouts = {name: (starts[name][k], lanes[k]) for name, lanes in reality.segments.items()}
                broken = np.zeros(array.shape[1:], bool)
                for total, is_known in (evaluated(each, broken.shape, layouts, {}) for each in sums):
                    broken |= is_known & (total < 0)
                is_alike = all((lanes[k] == lanes[base]).all() for lanes in reality.segments.values())
                if is_alike and (differs[k] & broken).any():
                    yield "has other elements than shared ones where a condition is broken"
                    break
        case Finite(excluded):
            if is_one_of(array, excluded).any():
                yield "is not finite"
        case Negative(number) if number in numbered and numbered[number].shape == array.shape:
            if (array != (numbered[number] < 0)).any():
                yield "does not say what is negative"
        case Implies(number, zero) if number in numbered and numbered[number].shape == array.shape:
            if (array.astype(bool) & ((numbered[number] == 0) != zero)).any():
                yield "is true where a number is zero, or is not"
        case PlusConstant(number, by) if number in numbered and numbered[number].shape == array.shape:
            if (array != numbered[number] + np.asarray(by, array.dtype)).any():
                yield "is not raised"
        case NotAbove(number, by) if number in numbered and numbered[number].shape == array.shape:
            if (array.astype(object) > numbered[number].astype(object) + by).any():
                yield "is above its limit"
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
                    other, actual = (
                        numbered[column.number].reshape(len(array), -1),
                        array[..., k].reshape(len(array), -1),
                    )
                    if other.shape != actual.shape or differing(other, actual.astype(other.dtype)).any():
                        yield f"does not hold its column {k}"
        case OneHot(key, axis, classes) if key in numbered and array.ndim == 3:
            keys = numbered[key].reshape(len(array), -1)
            rows = np.moveaxis(array, (axis + 1, classes + 1), (1, 2))
            if (rows != (keys[:, :, None] == np.arange(rows.shape[2]))).any():
                yield "is not the one-hot form of its keys"
        case BroadcastVector(number, axis) if number in numbered:
            rows = np.moveaxis(array, axis + 1, -1)
            entries = numbered[number].reshape(len(array), *[1] * (array.ndim - 2), -1)
            if differing(rows, np.broadcast_to(entries, rows.shape)).any():
                yield "is not spread from its vector"


def _starts(reality: Reality, layout: str) -> np.ndarray:
    """[run, N + 1]: cu_seqlens by the lanes of tokens."""
    return (reality.segments[layout][:, :, None] < np.arange(reality.bound.lanes + 1)).sum(axis=1)


def _changed(
    reality: Reality, array: np.ndarray, owner: Any, orders: Mapping[Any, np.ndarray], where: Any
) -> np.ndarray:
    """[run]: whether something differs from the unchanged run that must not."""
    base = reality.claims.base
    match owner:
        case Common():
            return _by_run(differing(array, array[base]))
        case OneLane(int(lane)) if owner.packed:
            may = reality.tokens_may_differ(np.array([lane]), owner.packed)[:, 0]
            return _by_run(differing(array, array[base])) & ~may
        case OneLane(int(lane)) if not any(isinstance(tile, Symbol) for tile in owner.split):
            return _by_run(differing(array, array[base])) & ~reality.may_differ(np.array([lane]))[:, 0]
        case OneLane(Symbol(number)):
            return reality.outside_picked(
                (number, owner.packed, where), _by_run(differing(array, array[base])), owner.packed
            )
        case LaneRows(axis, inner, start, order):
            rows = np.moveaxis(array, axis + 1, 1)
            lane = np.arange(rows.shape[1]) // inner + start
            if any(isinstance(tile, Symbol) for tile in owner.split):
                lane += where[1] * rows.shape[1]  # loops over tiles are not nested, and run forwards
            may = partial(reality.tokens_may_differ, layout=owner.packed) if owner.packed else reality.may_differ
            if order is not None:
                if order.number not in orders or orders[order.number].shape[1] != rows.shape[1]:
                    return np.zeros(len(array), bool)
                places = orders[order.number]
                places = places if order.inverse else np.argsort(places, axis=1)
                rows = np.take_along_axis(rows, places.reshape(*places.shape, *[1] * (rows.ndim - 2)), axis=1)
            return np.asarray(np.any(_by_row(differing(rows, rows[base])) & ~may(lane), axis=1))
        case PoolRows(leaf, _, axis):
            rows = np.moveaxis(array, axis + 1, 1)
            return np.asarray(
                np.any(
                    _by_row(differing(rows, rows[base])) & ~np.repeat(reality.rows(leaf), owner.inner, axis=1), axis=1
                )
            )
    return np.zeros(len(array), bool)
