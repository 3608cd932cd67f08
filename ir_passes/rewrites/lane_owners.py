"""Equations of a step that work on one lane alone, found by the origin of their operands.

A value belongs to lane b if it is entry b along the axis that holds the lanes, as the lane proof sees it, a row of a
pool that is lane b's, or computed from such values of lane b and from nothing of another lane. A value that mixes lanes
belongs to none.

Levels say how often lanes were mixed on the way to a value: equations of one lane and level can all run before any
equation that mixes their results.
"""

from dataclasses import dataclass, field

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import PARTS
from ir_passes.proof.owners import LaneRows, OneLane
from ir_passes.rewrites.graph import Graph
from ir_passes.rewrites.pool_access import READS, WRITES, Box, PoolAccesses
from ir_passes.rewrites.slot_entries import SlotIndex, shape

# Equations that only name a part of an array.
NAMING = PARTS | {"dynamic_slice", "squeeze", "reshape", "broadcast_in_dim"}


@dataclass(frozen=True)
class Root:
    """Entry `lane` along `dim` of an array that no lane owns."""

    source: ir.Var
    dim: int
    lane: int


@dataclass
class LaneOwners:
    """Owners of the values of a graph.

    Attributes:
        accesses: reads and writes of pools.
        mixing: equations, by identity, that are taken to mix lanes though they do not.
        lane_of: variable -> the lane it belongs to.
        level_of: variable -> how often lanes were mixed before it.
        eqns: level -> lane -> its equations in order, those that only name what it works on apart.
        roots: variable -> the entry that it is.
        names: variables that are parts of entries, or entries of slot maps; whoever needs one can have it anywhere.
        own: equation -> the box of its lane's own row that it reads or writes.
    """

    accesses: PoolAccesses
    mixing: frozenset[int] = frozenset()
    lane_of: dict[ir.Var, int] = field(default_factory=dict)
    level_of: dict[ir.Var, int] = field(default_factory=dict)
    eqns: dict[int, dict[int, list[ir.JaxprEqn]]] = field(default_factory=dict)
    roots: dict[ir.Var, Root] = field(default_factory=dict)
    names: set[ir.Var] = field(default_factory=set)
    own: dict[int, Box] = field(default_factory=dict)

    def __post_init__(self) -> None:
        written_by_lane: set[ir.Var] = set()
        for eqn in self.graph.program.jaxpr.eqns:
            operands = ir.variables(eqn.invars)
            lane = None if eqn.effects or id(eqn) in self.mixing else self._lane(eqn)
            mixing = 0 if lane is not None else 1
            level = max(
                (
                    self.level_of.get(var, 0) + mixing * (var in self.lane_of or var in written_by_lane)
                    for var in operands
                ),
                default=0,
            )
            for var in eqn.outvars:
                self.level_of[var] = level
            if lane is None:
                continue
            if self._names_only(eqn):
                self.names.update(eqn.outvars)
            else:
                self.eqns.setdefault(level, {}).setdefault(lane, []).append(eqn)
            for var in eqn.outvars:
                if var in self.accesses.versions:
                    written_by_lane.add(var)
                else:
                    self.lane_of[var] = lane

    @property
    def graph(self) -> Graph:
        """The graph that the owners are of."""
        return self.accesses.graph

    def _names_only(self, eqn: ir.JaxprEqn) -> bool:
        if id(eqn) in self.own or len(eqn.outvars) != 1:
            return False
        if eqn.outvars[0] in self.roots or isinstance(self.accesses.facts.of(eqn.outvars[0]), SlotIndex):
            return True
        operands = [var for var in ir.variables(eqn.invars) if var in self.lane_of]
        return eqn.primitive.name in NAMING and all(var in self.names for var in operands)

    def _lane(self, eqn: ir.JaxprEqn) -> int | None:
        name = eqn.primitive.name
        lanes = {self.lane_of[var] for var in ir.variables(eqn.invars) if var in self.lane_of}
        if len(lanes) > 1:
            return None
        lane = next(iter(lanes), None)
        versions = [var for var in ir.variables(eqn.invars) if var in self.accesses.versions]
        if versions:
            own = self._own(eqn)
            if own is not None and lane in (None, own[0]):
                self.own[id(eqn)] = own[1]
                return own[0]
            return lane if name in READS else None
        if name in ("split", "unstack"):
            self._split(eqn)
            return None
        root = self._root(eqn) if lane is None else None
        if root is not None:
            self.roots[eqn.outvars[0]] = root
            return root.lane
        return lane

    def _own(self, eqn: ir.JaxprEqn) -> tuple[int, Box] | None:
        """The lane whose row an equation reads or writes."""
        if eqn.primitive.name not in READS | WRITES:
            return None
        box = self.accesses.box(eqn)
        row = None if box is None else box.row
        if box is None or row is None:
            return None
        if isinstance(row, SlotIndex):
            return (row.lane, box) if row.map in self.accesses.distinct else None
        return (row, box) if self._lane_axis(self.accesses.version(eqn)) == box.axis else None

    def _root(self, eqn: ir.JaxprEqn) -> Root | None:
        if eqn.primitive.name not in ("slice", "dynamic_slice") or isinstance(eqn.invars[0], ir.Literal):
            return None
        source, owner = eqn.invars[0], self.accesses.facts.value(eqn.outvars[0]).owner
        axis = self._lane_axis(source)
        if axis is None or shape(eqn.outvars[0])[axis] != 1 or any(one != 1 for one in eqn.params.get("strides") or ()):
            return None
        if not isinstance(owner, OneLane) or not isinstance(owner.lane, int) or owner.packed:
            return None
        return Root(source, axis, owner.lane)

    def _lane_axis(self, source: ir.Var) -> int | None:
        """The axis along which entry i is lane i's; None if there is none."""
        owner = self.accesses.facts.value(source).owner
        if not isinstance(owner, LaneRows) or owner != LaneRows(owner.axis):
            return None
        return owner.axis if shape(source)[owner.axis] == self.graph.bound.lanes else None

    def _split(self, eqn: ir.JaxprEqn) -> None:
        (source,), axis = eqn.invars, eqn.params["axis"]
        if isinstance(source, ir.Literal) or self._lane_axis(source) != axis:
            return
        if len(eqn.outvars) == self.graph.bound.lanes:
            for lane, var in enumerate(eqn.outvars):
                self.lane_of[var] = lane
                self.roots[var] = Root(source, axis, lane)
                self.names.add(var)
