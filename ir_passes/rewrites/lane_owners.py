"""Lanes and levels of equations, and their accesses to pools, from the lane proof.

A value belongs to lane b if it depends on lane b alone by the lane proof. Entries of an array along its lane axis, and
entries of slot maps, are inputs of the lanes' work.

The level of an equation counts how often lanes were mixed before it. Equations of one lane and level can all run before
the equations that mix their results.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from ir_passes.contract.contract import Pool, SlotMap
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import INDEXED, PARTS, WRITES
from ir_passes.proof.lane_proof import walk
from ir_passes.proof.owners import LaneRows, OneLane
from ir_passes.proof.prover import Prover
from ir_passes.proof.rules.addressing.access import of_gather, of_scatter, of_slice
from ir_passes.proof.site import Site
from ir_passes.proof.values import SlotEntry, Value
from ir_passes.rewrites.graph import Graph

_CUTS = PARTS | {"dynamic_slice"}
_SELECTING = _CUTS | {"squeeze", "reshape", "broadcast_in_dim"}
"""Primitives that select a part of an array and compute nothing."""


@dataclass(frozen=True)
class Box:
    """The part of a lane's row that an equation reads or writes.

    Attributes:
        map: the slot map with the row; None if row i belongs to lane i.
        axis: row axis of the pool.
        starts: along each dimension, 0 along `axis`; None if unknown.
        sizes: 1 along `axis`.
    """

    map: ir.Var | None
    axis: int
    starts: tuple[int | None, ...]
    sizes: tuple[int, ...]


class LaneOwners:
    """Lanes and levels of a graph's equations.

    Attributes:
        versions: version of a pool (the input, and each array that an update made of a version) -> number of the input.
        lane_of: variable -> lane, without versions of pools.
        work: level, equation and lane, in order, without the equations that make entries.
        selected: cuts out of arrays and entries of slot maps, and parts of them.
        boxes: id of an equation -> part of its lane's row.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.lanes, self._prover = graph, graph.bound.lanes, Prover(graph.bound)
        walk(self._prover, graph.program)
        jaxpr, inputs = graph.program.jaxpr, list(enumerate(graph.bound.inputs))
        self._env = self._prover.values[jaxpr]
        maps = [(jaxpr.invars[i], leaf.entry) for i, leaf in inputs if isinstance(leaf.entry, SlotMap)]
        self._distinct = {slots: entry.size for slots, entry in maps if entry.role != "read"}
        self._axes = {i: leaf.entry.axis for i, leaf in inputs if isinstance(leaf.entry, Pool)}
        self.versions: dict[ir.Var, int] = {jaxpr.invars[i]: i for i in self._axes}
        self.lane_of: dict[ir.Var, int] = {}
        self.work: list[tuple[int, ir.JaxprEqn, int]] = []
        self.selected: set[ir.Var] = set()
        self.boxes: dict[int, Box] = {}
        self._cuts: dict[int, tuple[Any, int]] = {}  # number of a value -> array that it was cut out of, lane axis
        level_of, written = dict[ir.Var, int](), set[ir.Var]()  # versions of pools that one lane wrote
        for eqn in jaxpr.eqns:
            operands = ir.variables(eqn.invars)
            pool = self.versions.get(operands[0]) if operands and operands[0] is eqn.invars[0] else None
            if eqn.primitive.name in WRITES and pool is not None:
                self.versions[eqn.outvars[0]] = pool
            sources = [var for var in operands if var in self.lane_of]
            lane = self._lane_of(eqn, {self.lane_of[var] for var in sources})
            is_boxed = id(eqn) in self.boxes
            mixed = set() if is_boxed else written.union(sources if lane is None else ())
            level = max((level_of.get(var, 0) + (var in mixed) for var in operands), default=0)
            level_of.update(dict.fromkeys(eqn.outvars, level))
            if not sources and not is_boxed:
                self._cut(eqn)
            elif lane is not None:
                is_entry = not is_boxed and self.entry(eqn.outvars[0]) is not None
                is_part = eqn.primitive.name in _SELECTING and not is_boxed and self.selected.issuperset(sources)
                if is_entry or is_part:
                    self.selected.update(eqn.outvars)
                if not is_entry:
                    self.work.append((level, eqn, lane))
                versions = {var for var in eqn.outvars if var in self.versions}
                written |= versions
                self.lane_of.update((var, lane) for var in eqn.outvars if var not in versions)

    def value(self, atom: ir.Atom) -> Value:
        return self._prover.read(self._env, atom)

    def lane(self, atom: ir.Atom) -> int | None:
        """Return the lane that all elements depend on, or None."""
        return _lane(self.value(atom))

    def lane_axis(self, atom: ir.Atom) -> int | None:
        """Return the axis with one index per lane, in order, or None."""
        owner = self.value(atom).owner
        if not isinstance(owner, LaneRows) or owner != LaneRows(owner.axis):
            return None
        return owner.axis if ir.shape_of(atom)[owner.axis] == self.lanes else None

    def slot_map(self, value: Value) -> ir.Var | None:
        """Return the slot map with the lane's entry in all elements, or None."""
        fact = value.fact
        if not isinstance(fact, SlotEntry) or fact != SlotEntry(fact.leaf) or _lane(value) is None:
            return None
        return self.graph.program.jaxpr.invars[fact.leaf]

    def box(self, eqn: ir.JaxprEqn) -> tuple[int, Box] | None:
        """Return the lane of an access to its row, and the part of the row."""
        pool, *operands = eqn.invars or [None]
        is_access = eqn.primitive.name in INDEXED | {"slice"} and not isinstance(pool, ir.Literal)
        if not is_access or pool not in self.versions or not self.versions.keys().isdisjoint(ir.variables(operands)):
            return None
        window, axis, shape = self._window(eqn), self._axes[self.versions[pool]], ir.shape_of(pool)
        if window is None or window[0][axis] != 1:
            return None
        sizes, columns = window
        row = columns.get(axis, Value())
        slots = self.slot_map(row)
        if slots is not None:
            # entries of a map of role "read" may be equal; primitives clamp or drop an entry out of bounds
            lane = _lane(row) if self._distinct.get(slots, math.inf) <= shape[axis] else None
        else:
            lane = _start(row, shape[axis] - 1) if self.lane_axis(pool) == axis else None
        if lane is None:
            return None
        limits = {dim: shape[dim] - sizes[dim] for dim in columns if dim != axis}
        starts = (_start(columns[dim], limits[dim]) if dim in limits else 0 for dim in range(len(shape)))
        return lane, Box(slots, axis, tuple(starts), tuple(sizes))

    def _window(self, eqn: ir.JaxprEqn) -> tuple[tuple[int, ...], dict[int, Value]] | None:
        """Return sizes and starts of an access; None for strides or several windows."""
        name, values = eqn.primitive.name, tuple(map(self.value, eqn.invars))
        if name == "slice":
            starts = {dim: Value(range=(start, start)) for dim, start in enumerate(eqn.params["start_indices"])}
            return None if set(eqn.params["strides"] or ()) - {1} else (ir.shape_of(eqn.outvars[0]), starts)
        site = Site(self._prover, eqn, self.graph.program.jaxpr, 0, self._env, ir.shapes(eqn.invars))
        if name == "gather":
            access = of_gather(site, values[1])
        elif name == "dynamic_slice":
            access = of_slice(site, values[1:], site.shape)
        elif name == "dynamic_update_slice":
            access = of_slice(site, values[2:], site.shapes[1])
        else:
            access = of_scatter(site, values[1])
        return (access.sizes, access.columns) if access.scalar and not access.paired else None

    def entry(self, var: ir.Var) -> tuple[Any, int] | None:
        """Return the array and axis that a variable is the lane's entry of, else None.

        The variable may be reshaped.
        """
        value = self.value(var)
        slots = self.slot_map(value) if ir.shape_of(var) == () else None
        entry = self._cuts.get(value.number) if slots is None else (slots, 0)
        size = self.lanes * math.prod(ir.shape_of(var))
        is_whole = entry and math.prod(ir.shape_of(entry[0])) == size and ir.dtype_of(entry[0]) == ir.dtype_of(var)
        return entry if is_whole else None

    def is_work(self, eqn: ir.JaxprEqn) -> bool:
        """True for an access to a pool, or a computation other than of an index."""
        is_index = all(
            math.prod(ir.shape_of(var)) == 1 and not jnp.issubdtype(ir.dtype_of(var), jnp.inexact)
            for var in eqn.outvars
        )
        return id(eqn) in self.boxes or not (eqn.primitive.name in _SELECTING or is_index)

    def _lane_of(self, eqn: ir.JaxprEqn, lanes: set[int]) -> int | None:
        """Return the lane of an equation with operands of `lanes`; record its box."""
        row = self.box(eqn)
        owners = {self.lane(var) for var in eqn.outvars} if row is None else {row[0]}
        if len(owners) != 1 or not owners >= lanes or eqn.effects:
            return None
        if row is not None:
            self.boxes[id(eqn)] = row[1]
        return owners.pop()

    def _cut(self, eqn: ir.JaxprEqn) -> None:
        """Record the parts of lanes that an equation cuts out of an array."""
        for var in eqn.outvars if eqn.primitive.name in _CUTS else ():
            lane, axis = self.lane(var), self.lane_axis(eqn.invars[0])
            if lane is None:
                continue
            self.lane_of[var] = lane
            self.selected.add(var)
            if axis is not None and (number := self.value(var).number):
                self._cuts[number] = eqn.invars[0], axis


def _lane(value: Value) -> int | None:
    owner = value.owner
    if not isinstance(owner, OneLane) or owner != OneLane(owner.lane):
        return None
    return owner.lane if isinstance(owner.lane, int) else None


def _start(value: Value, last: int) -> int | None:
    """Return a constant start that no primitive clamps or drops, else None."""
    low, high = value.range or (0, -1)
    return low if low == high and 0 <= low <= last else None
