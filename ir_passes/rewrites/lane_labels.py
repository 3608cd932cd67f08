"""Which equations of a step work on one lane alone, by where their operands come from.

A value belongs to lane b if it is entry b of an array with one entry per lane, a row of a pool that is lane b's, or
computed from such values of lane b and from nothing of another lane. What mixes lanes belongs to none.

Levels say how often lanes were mixed on the way to a value: equations of one lane and level can all run before any
equation that mixes their results.
"""

from dataclasses import dataclass, field

from ir_passes import ir
from ir_passes.contract import Lane, Pool, Shared, SlotMap
from ir_passes.graph import Graph
from ir_passes.rewrites.pool_access import READS, WRITES, Box, PoolAccesses
from ir_passes.rewrites.slot_entries import Constant, Entry, shape

# Equations that only name a part of an array.
NAMING = frozenset(
    {"slice", "dynamic_slice", "squeeze", "reshape", "broadcast_in_dim", "expand_dims", "split", "unstack"}
)


@dataclass(frozen=True)
class Root:
    """Entry `lane` along `dim` of an array that no lane owns."""

    source: ir.Var
    dim: int
    lane: int


@dataclass
class LaneLabels:
    """Owners of the values of a graph.

    Attributes:
        mixing: equations, by identity, that are taken to mix lanes though they do not.
        accesses: reads and writes of pools.
        lane_of: variable -> the lane it belongs to.
        level_of: variable -> how often lanes were mixed before it.
        eqns: level -> lane -> its equations in order, those that only name what it works on apart.
        roots: variable -> the entry that it is.
        names: variables that are parts of entries, or entries of slot maps; whoever needs one can have it anywhere.
        own: equation -> the box of its lane's own row that it reads or writes.
    """

    graph: Graph
    mixing: frozenset[int] = frozenset()
    accesses: PoolAccesses = field(init=False)
    lane_of: dict[ir.Var, int] = field(default_factory=dict)
    level_of: dict[ir.Var, int] = field(default_factory=dict)
    eqns: dict[int, dict[int, list[ir.JaxprEqn]]] = field(default_factory=dict)
    roots: dict[ir.Var, Root] = field(default_factory=dict)
    names: set[ir.Var] = field(default_factory=set)
    own: dict[int, Box] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bound, jaxpr = self.graph.bound, self.graph.program.jaxpr
        self.accesses = PoolAccesses(self.graph)
        self.mapped = {name for one in bound.inputs if isinstance(one.entry, SlotMap) for name in one.entry.names}
        private = {
            var for var, one in zip(jaxpr.invars, bound.inputs, strict=True) if not isinstance(one.entry, Shared)
        }
        written_by_lane: set[ir.Var] = set()
        for eqn in jaxpr.eqns:
            operands = ir.variables(eqn.invars)
            lane = None if eqn.effects or id(eqn) in self.mixing else self._lane(eqn, private)
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
                if any(operand in private for operand in operands):
                    private.add(var)
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

    def _names_only(self, eqn: ir.JaxprEqn) -> bool:
        if id(eqn) in self.own or len(eqn.outvars) != 1:
            return False
        if eqn.outvars[0] in self.roots or isinstance(self.accesses.facts.of(eqn.outvars[0]), Entry):
            return True
        operands = [var for var in ir.variables(eqn.invars) if var in self.lane_of]
        return eqn.primitive.name in NAMING and all(var in self.names for var in operands)

    def _lane(self, eqn: ir.JaxprEqn, private: set[ir.Var]) -> int | None:
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
            self._split(eqn, private)
            return None
        root = self._root(eqn, private) if lane is None else None
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
        entry = self.graph.bound.inputs[self.accesses.versions[self.accesses.version(eqn)]].entry
        if isinstance(row, Entry):
            return (row.lane, box) if row.map in self.accesses.distinct else None
        by_lane = isinstance(entry, Pool) and entry.group not in self.mapped
        return (row.value, box) if by_lane else None

    def _root(self, eqn: ir.JaxprEqn, private: set[ir.Var]) -> Root | None:
        name = eqn.primitive.name
        if name not in ("slice", "dynamic_slice") or isinstance(eqn.invars[0], ir.Literal):
            return None
        source = eqn.invars[0]
        if source not in private:
            return None
        if name == "slice":
            if any(stride != 1 for stride in eqn.params["strides"] or ()):
                return None
            starts: list[int | None] = list(eqn.params["start_indices"])
        else:
            facts = [self.accesses.facts.of(atom) for atom in eqn.invars[1:]]
            starts = [fact.value if isinstance(fact, Constant) else None for fact in facts]
        lanes, lengths = self.graph.bound.lanes, shape(eqn.outvars[0])
        for dim, (start, size, length) in enumerate(zip(starts, shape(source), lengths, strict=True)):
            if (
                size == lanes
                and length == 1
                and start is not None
                and 0 <= start < size
                and self._is_lanes(source, dim)
            ):
                return Root(source, dim, int(start))
            if size == length == lanes:
                return (
                    None  # This is where the lanes are, as far as one can tell; the slice takes something else apart.
                )
        return None

    def _is_lanes(self, source: ir.Var, dim: int) -> bool:
        """Whether the contract says nothing else of a dimension: an input's lanes are along its axis."""
        for var, one in zip(self.graph.program.jaxpr.invars, self.graph.bound.inputs, strict=True):
            if var is source and isinstance(one.entry, Lane):
                return one.entry.axis == dim
        return True

    def _split(self, eqn: ir.JaxprEqn, private: set[ir.Var]) -> None:
        (source,), axis = eqn.invars, eqn.params["axis"]
        if isinstance(source, ir.Literal) or source not in private or len(eqn.outvars) != self.graph.bound.lanes:
            return
        if shape(source)[axis] != self.graph.bound.lanes:
            return
        for lane, var in enumerate(eqn.outvars):
            self.lane_of[var] = lane
            self.roots[var] = Root(source, axis, lane)
            self.names.add(var)
