"""Lane of each equation, and the correspondence of all lanes' equal equations.

A value belongs to lane b if it is entry b along a lane axis, lane b's row of a pool, or computed from values of lane b
and of no other lane. Other values belong to no lane.

The level of an equation counts how often lanes were mixed before it. Equations of one lane and level can all run before
the equations that mix their results.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import computing_params
from ir_passes.jaxpr.dtypes import to_numpy
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.jaxpr.primitives import PARTS, WRITES
from ir_passes.proof.owners import LaneRows, OneLane
from ir_passes.rewrites.pool_access import READS, Box, PoolAccesses, SlotIndex

SELECTING = PARTS | {"dynamic_slice", "squeeze", "reshape", "broadcast_in_dim"}
"""Primitives that select a part of an array and compute nothing."""


@dataclass(frozen=True)
class LaneEntry:
    """Entry of a lane, or a part of it, along `dim` of an array."""

    source: ir.Var
    dim: int
    lane: int
    is_whole: bool


class LaneOwners:
    """Lanes and levels of a graph's equations.

    Args:
        mixing: ids of equations that count as mixing lanes.

    Attributes:
        eqns: level -> lane -> equations in order, without those that take an entry of an array.
        entries: variable -> its entry of an array.
        selected: entries of arrays and slot maps, and parts of them.
        boxes: id of an equation -> box of its lane's row.
    """

    def __init__(self, accesses: PoolAccesses, mixing: frozenset[int] = frozenset()) -> None:
        self.accesses, self.mixing, self.lanes = accesses, mixing, accesses.graph.bound.lanes
        self.lane_of: dict[ir.Var, int] = {}
        self.eqns: dict[int, dict[int, list[ir.JaxprEqn]]] = {}
        self.entries: dict[ir.Var, LaneEntry] = {}
        self.selected: set[ir.Var] = set()
        self.boxes: dict[int, Box] = {}
        level_of, written = dict[ir.Var, int](), set[ir.Var]()  # versions of pools that one lane wrote
        for eqn in accesses.graph.program.jaxpr.eqns:
            lane = None if eqn.effects or id(eqn) in mixing else self._lane(eqn)
            operands = ir.variables(eqn.invars)
            mixed = {var for var in operands if lane is None and (var in self.lane_of or var in written)}
            level = max((level_of.get(var, 0) + (var in mixed) for var in operands), default=0)
            level_of.update(dict.fromkeys(eqn.outvars, level))
            if lane is None:
                continue
            if len(eqn.outvars) == 1 and id(eqn) not in self.boxes and self._selects(eqn):
                self.selected.update(eqn.outvars)
            if eqn.outvars[0] not in self.entries:
                self.eqns.setdefault(level, {}).setdefault(lane, []).append(eqn)
            written.update(var for var in eqn.outvars if var in accesses.versions)
            self.lane_of.update((var, lane) for var in eqn.outvars if var not in accesses.versions)

    def _lane(self, eqn: ir.JaxprEqn) -> int | None:
        """Return the lane of an equation; record its entry or its box."""
        lanes = {self.lane_of[var] for var in ir.variables(eqn.invars) if var in self.lane_of}
        if len(lanes) > 1:
            return None
        lane = next(iter(lanes), None)
        if self.accesses.versions_in(eqn):
            box = self.accesses.box(eqn)
            owner = None if box is None else self._owner_of_row(eqn, box)
            if box is not None and owner is not None and lane in (None, owner):
                self.boxes[id(eqn)] = box
                return owner
            return lane if eqn.primitive.name in READS else None
        if eqn.primitive.name in ("split", "unstack"):
            self._split(eqn)
            return None
        entry = self._entry(eqn) if lane is None else None
        if entry is None:
            return lane
        self.entries[eqn.outvars[0]] = entry
        return entry.lane

    def _owner_of_row(self, eqn: ir.JaxprEqn, box: Box) -> int | None:
        if isinstance(box.row, SlotIndex):
            return box.row.lane if box.row.map in self.accesses.distinct else None
        return box.row if self._lane_axis(eqn.invars[0]) == box.axis else None

    def _entry(self, eqn: ir.JaxprEqn) -> LaneEntry | None:
        if eqn.primitive.name not in ("slice", "dynamic_slice") or set(eqn.params.get("strides") or ()) - {1}:
            return None
        source, owner = eqn.invars[0], self.accesses.value(eqn.outvars[0]).owner
        axis = self._lane_axis(source)
        if axis is None or isinstance(source, ir.Literal) or ir.shape_of(eqn.outvars[0])[axis] != 1:
            return None
        lane = owner.lane if isinstance(owner, OneLane) and not owner.packed else None
        is_whole = math.prod(ir.shape_of(source)) == self.lanes * math.prod(ir.shape_of(eqn.outvars[0]))
        return LaneEntry(source, axis, lane, is_whole) if isinstance(lane, int) else None

    def _selects(self, eqn: ir.JaxprEqn) -> bool:
        """True for an entry of an array or slot map, or a part of it."""
        (result,), operands = eqn.outvars, [var for var in ir.variables(eqn.invars) if var in self.lane_of]
        if result in self.entries or (isinstance(self.accesses.index(result), SlotIndex) and ir.shape_of(result) == ()):
            return True
        return eqn.primitive.name in SELECTING and self.selected.issuperset(operands)

    def _lane_axis(self, source: ir.Atom) -> int | None:
        """Return the axis with an entry per lane, in order, or None."""
        owner = self.accesses.value(source).owner
        if not isinstance(owner, LaneRows) or owner != LaneRows(owner.axis):
            return None
        return owner.axis if ir.shape_of(source)[owner.axis] == self.lanes else None

    def _split(self, eqn: ir.JaxprEqn) -> None:
        (source,), axis = eqn.invars, eqn.params["axis"]
        if isinstance(source, ir.Literal) or self._lane_axis(source) != axis or len(eqn.outvars) != self.lanes:
            return
        for lane, var in enumerate(eqn.outvars):
            self.lane_of[var], self.entries[var] = lane, LaneEntry(source, axis, lane, True)
            self.selected.add(var)


class Different(Exception):
    """Two lanes differ, or their work cannot be batched; the message has the line."""


class SameWork:
    """Corresponding equations of all lanes.

    Attributes:
        lanes: lane -> equations; the k-th equations of all lanes correspond.
        alike: variable of lane 0 -> lane -> corresponding variable.
        made: results of all equations.
        ids: ids of the equations of all lanes.

    Raises:
        Different: two lanes differ.
    """

    def __init__(self, owners: LaneOwners, lanes: Sequence[Sequence[ir.JaxprEqn]]) -> None:
        self.owners, self.lanes, self.alike = owners, lanes, dict[ir.Var, dict[int, ir.Var]]()
        self.made = {var for eqns in lanes for eqn in eqns for var in eqn.outvars}
        self.ids = frozenset(id(eqn) for eqns in lanes for eqn in eqns)
        for lane, eqns in enumerate(lanes):
            for eqn, other in zip(lanes[0], eqns, strict=False):
                if difference := self._difference(eqn, other, lane):
                    place = f"{other.primitive.name} at {ir.source_of(other)}"
                    raise Different(f"lanes 0 and {lane} differ in {difference} of {place}")
                for var, other_var in zip(eqn.outvars, other.outvars, strict=True):
                    self.alike.setdefault(var, {})[lane] = other_var
            if len(eqns) != len(lanes[0]):
                raise Different(f"lane 0 has {len(lanes[0])} equations, lane {lane} has {len(eqns)}")

    def first_version(self, version: ir.Atom) -> ir.Var:
        """Return the version of a pool before this work."""
        makers = self.owners.accesses.makers
        while version in makers and id(makers[version]) in self.ids:
            version = makers[version].invars[0]
        assert not isinstance(version, ir.Literal)
        return version

    def by_lane(self, var: ir.Var) -> list[ir.Var]:
        """Return the variables that correspond to one of lane 0."""
        return [self.alike[var][lane] for lane in range(len(self.lanes))]

    def entry(self, var: ir.Var) -> LaneEntry | None:
        """Return lane 0's entry if all lanes have their entries of one array."""
        first, *entries = (self.owners.entries.get(other) for other in self.by_lane(var))
        if first is None or not first.is_whole:
            return None
        return first if entries == [replace(first, lane=lane) for lane in range(1, len(self.lanes))] else None

    def _difference(self, eqn: ir.JaxprEqn, other: ir.JaxprEqn, lane: int) -> str:
        if eqn.primitive is not other.primitive:
            return f"{eqn.primitive.name} instead"
        if ir.types([*eqn.invars, *eqn.outvars]) != ir.types([*other.invars, *other.outvars]):
            return "the types"
        box, other_box = (self.owners.boxes.get(id(each)) for each in (eqn, other))
        if box is not None and other_box is not None:
            if not _same_box(box, other_box, lane):
                return "the box"
        elif box is not other_box:
            return "the row"
        if eqn.primitive.name == "slice" and box is not None:
            return ""
        if eqn.params is not other.params:
            if fingerprint(computing_params(eqn)) != fingerprint(computing_params(other)):
                return "the parameters"
        compared = list(range(len(eqn.invars)))[slice(None) if box is None else updates_of(eqn)]
        different = (i for i in compared if not self._same(eqn.invars[i], other.invars[i]))
        return next((f"operand {i}" for i in different), "")

    def _same(self, atom: ir.Atom, other: ir.Atom) -> bool:
        """True for equal values of no lane, and for corresponding values of lanes."""
        if isinstance(atom, ir.Literal) or isinstance(other, ir.Literal):
            literals = isinstance(atom, ir.Literal) and isinstance(other, ir.Literal)
            return literals and to_numpy(atom.val).tobytes() == to_numpy(other.val).tobytes()
        lane_of, value = self.owners.lane_of, self.owners.accesses.value
        if atom not in lane_of and other not in lane_of:
            return ir.types([atom]) == ir.types([other]) and value(atom).number == value(other).number
        if atom not in lane_of or other not in lane_of:
            return False
        if {atom, other} & self.made:
            return self.alike.get(atom, {}).get(lane_of[other]) is other
        return self.alike.setdefault(atom, {}).setdefault(lane_of[other], other) is other


def _same_box(box: Box, other: Box, lane: int) -> bool:
    """True for the same box of lane 0's row and of another lane's row."""
    rows: tuple[Any, Any] = (0, lane)
    if isinstance(box.row, SlotIndex):
        rows = SlotIndex(box.row.map, 0), SlotIndex(box.row.map, lane)
    columns = [[start for dim, start in enumerate(each.starts) if dim != each.axis] for each in (box, other)]
    return (box.row, other.row) == rows and box.sizes == other.sizes and columns[0] == columns[1]


def updates_of(eqn: ir.JaxprEqn) -> slice:
    """Return the slice of an access's operands that are updates, empty for a read."""
    if eqn.primitive.name == "dynamic_update_slice":
        return slice(1, 2)
    return slice(2, 3) if eqn.primitive.name in WRITES else slice(0, 0)


def written_pools(work: SameWork) -> dict[ir.Var, ir.Var]:
    """Return the first and last version of each written pool; Different for reads in between."""
    owners, accesses = work.owners, work.owners.accesses
    last: dict[ir.Var, ir.Var] = {}
    order: dict[ir.Var, int] = {}  # version -> number of writes before it
    for eqn in accesses.graph.program.jaxpr.eqns:
        if id(eqn) not in work.ids or id(eqn) not in owners.boxes or eqn.primitive.name not in WRITES:
            continue
        (version,), result = ir.variables(eqn.invars[:1]), eqn.outvars[0]
        start = work.first_version(version)
        if version is not last.get(start, version) or len(accesses.writers[version]) != 1:
            raise Different(f"a version of a pool is written twice at {ir.source_of(eqn)}")
        order[result] = order.setdefault(version, 0) + 1
        last[start] = result
    for eqns in work.lanes:
        _check_reads(work, eqns, order)
    outputs = {id(atom) for atom in accesses.graph.program.jaxpr.outvars}
    for version in order.keys() - last.keys() - set(last.values()):
        readers = [eqn for eqn in accesses.readers[version] if id(eqn) not in work.ids]
        if readers or id(version) in outputs:
            place = ir.source_of(readers[0]) if readers else "the end"
            raise Different(f"a version of a pool in between is read at {place}")
    return last


def _check_reads(work: SameWork, eqns: Sequence[ir.JaxprEqn], order: dict[ir.Var, int]) -> None:
    """Check that each read sees the lane's earlier writes and no later write."""
    written, maps = dict[ir.Var, int](), dict[ir.Var, int | None]()
    for eqn in eqns:
        for version in work.owners.accesses.versions_in(eqn):
            start, place, box = work.first_version(version), ir.source_of(eqn), work.owners.boxes.get(id(eqn))
            if start not in order:
                continue
            if box is None:
                raise Different(f"{eqn.primitive.name} at {place} reads more of a pool than its lane's row")
            slots = box.row.map if isinstance(box.row, SlotIndex) else None
            if maps.setdefault(start, slots) != slots:
                raise Different(f"rows of two slot maps are used at {place}")
            if eqn.primitive.name in WRITES:
                written[start] = order[eqn.outvars[0]]
            elif written.get(start, 0) > order[version]:
                raise Different(f"an old version of a row is read at {place}")
