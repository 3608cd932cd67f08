"""Lane of each equation, from the origin of its operands.

A value belongs to lane b if it is entry b along a lane axis, lane b's row of a pool, or computed from values of lane b
and of no other lane. Other values belong to no lane.

The level of an equation counts how often lanes were mixed before it. Equations of one lane and level can all run before
the equations that mix their results.
"""

from dataclasses import dataclass, field

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import PARTS, WRITES
from ir_passes.proof.owners import LaneRows, OneLane
from ir_passes.rewrites.graph import Graph
from ir_passes.rewrites.pool_access import READS, Box, PoolAccesses, SlotIndex

SELECTING = PARTS | {"dynamic_slice", "squeeze", "reshape", "broadcast_in_dim"}
"""Primitives that select a part of an array and compute nothing."""


@dataclass(frozen=True)
class Root:
    """Entry `lane` along dimension `dim` of an array of all lanes."""

    source: ir.Var
    dim: int
    lane: int


@dataclass
class LaneOwners:
    """Lanes and levels of a graph's equations.

    Attributes:
        mixing: ids of equations that count as mixing lanes.
        eqns: level -> lane -> equations in order, without selecting equations.
        roots: variable -> its entry of an array.
        names: parts of entries, and entries of slot maps; any level can recompute them.
        boxes: id of an equation -> box of its lane's row.
    """

    accesses: PoolAccesses
    mixing: frozenset[int] = frozenset()
    lane_of: dict[ir.Var, int] = field(default_factory=dict)
    level_of: dict[ir.Var, int] = field(default_factory=dict)
    eqns: dict[int, dict[int, list[ir.JaxprEqn]]] = field(default_factory=dict)
    roots: dict[ir.Var, Root] = field(default_factory=dict)
    names: set[ir.Var] = field(default_factory=set)
    boxes: dict[int, Box] = field(default_factory=dict)

    def __post_init__(self) -> None:
        written = set[ir.Var]()  # versions of pools that one lane wrote
        for eqn in self.graph.program.jaxpr.eqns:
            lane = None if eqn.effects or id(eqn) in self.mixing else self._lane(eqn)
            levels = [
                self.level_of.get(var, 0) + (lane is None and (var in self.lane_of or var in written))
                for var in ir.variables(eqn.invars)
            ]
            level = max(levels, default=0)
            self.level_of.update(dict.fromkeys(eqn.outvars, level))
            if lane is None:
                continue
            if self._selects(eqn):
                self.names.update(eqn.outvars)
            else:
                self.eqns.setdefault(level, {}).setdefault(lane, []).append(eqn)
            written.update(var for var in eqn.outvars if var in self.accesses.versions)
            self.lane_of.update((var, lane) for var in eqn.outvars if var not in self.accesses.versions)

    @property
    def graph(self) -> Graph:
        return self.accesses.graph

    def _selects(self, eqn: ir.JaxprEqn) -> bool:
        if id(eqn) in self.boxes or len(eqn.outvars) != 1:
            return False
        if eqn.outvars[0] in self.roots or isinstance(self.accesses.index(eqn.outvars[0]), SlotIndex):
            return True
        operands = [var for var in ir.variables(eqn.invars) if var in self.lane_of]
        return eqn.primitive.name in SELECTING and all(var in self.names for var in operands)

    def _lane(self, eqn: ir.JaxprEqn) -> int | None:
        """Return the lane of an equation; record its root or its box."""
        lanes = {self.lane_of[var] for var in ir.variables(eqn.invars) if var in self.lane_of}
        if len(lanes) > 1:
            return None
        lane = next(iter(lanes), None)
        if self.accesses.versions_in(eqn):
            owner, box = self._own(eqn)
            if box is not None and owner is not None and lane in (None, owner):
                self.boxes[id(eqn)] = box
                return owner
            return lane if eqn.primitive.name in READS else None
        if eqn.primitive.name in ("split", "unstack"):
            self._split(eqn)
            return None
        root = self._root(eqn) if lane is None else None
        if root is None:
            return lane
        self.roots[eqn.outvars[0]] = root
        return root.lane

    def _own(self, eqn: ir.JaxprEqn) -> tuple[int | None, Box | None]:
        """Return the lane of the accessed row, and the box."""
        box = self.accesses.box(eqn) if eqn.primitive.name in READS | WRITES else None
        if box is None or box.row is None:
            return None, box
        if isinstance(box.row, SlotIndex):
            return box.row.lane if box.row.map in self.accesses.distinct else None, box
        return box.row if self._lane_axis(eqn.invars[0]) == box.axis else None, box

    def _root(self, eqn: ir.JaxprEqn) -> Root | None:
        if eqn.primitive.name not in ("slice", "dynamic_slice") or any(
            step != 1 for step in eqn.params.get("strides") or ()
        ):
            return None
        source, owner = eqn.invars[0], self.accesses.value(eqn.outvars[0]).owner
        axis = self._lane_axis(source)
        if axis is None or isinstance(source, ir.Literal) or ir.shape_of(eqn.outvars[0])[axis] != 1:
            return None
        lane = owner.lane if isinstance(owner, OneLane) and not owner.packed else None
        return Root(source, axis, lane) if isinstance(lane, int) else None

    def _lane_axis(self, source: ir.Atom) -> int | None:
        """Return the axis with an entry per lane, in order, or None."""
        owner = self.accesses.value(source).owner
        if not isinstance(owner, LaneRows) or owner != LaneRows(owner.axis):
            return None
        return owner.axis if ir.shape_of(source)[owner.axis] == self.graph.bound.lanes else None

    def _split(self, eqn: ir.JaxprEqn) -> None:
        (source,), axis = eqn.invars, eqn.params["axis"]
        if isinstance(source, ir.Literal) or self._lane_axis(source) != axis:
            return
        if len(eqn.outvars) == self.graph.bound.lanes:
            self.names.update(eqn.outvars)
            for lane, var in enumerate(eqn.outvars):
                self.lane_of[var], self.roots[var] = lane, Root(source, axis, lane)
