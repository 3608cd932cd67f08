"""Parts of pools that equations read and write, from values of the lane proof.

The versions of a pool are the input and each array that an update made from a version.
"""

import math
from dataclasses import dataclass

from ir_passes.contract.contract import Pool, SlotMap
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import INDEXED, WRITES
from ir_passes.proof.lane_proof import walk
from ir_passes.proof.owners import LaneRows, OneLane
from ir_passes.proof.prover import Prover
from ir_passes.proof.rules.addressing.access import of_gather, of_scatter, of_slice
from ir_passes.proof.site import Site
from ir_passes.proof.values import SlotEntry, Value
from ir_passes.rewrites.graph import Graph


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


class PoolAccesses:
    """Versions of all pools of a graph, and accesses to them.

    Attributes:
        versions: version -> position of the pool among the inputs.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._prover = Prover(graph.bound)
        walk(self._prover, graph.program)
        jaxpr, inputs = graph.program.jaxpr, list(enumerate(graph.bound.inputs))
        self._env = self._prover.values[jaxpr]
        maps = [(jaxpr.invars[i], leaf.entry) for i, leaf in inputs if isinstance(leaf.entry, SlotMap)]
        self._distinct = {slots: entry.size for slots, entry in maps if entry.role != "read"}
        self._axes = {i: leaf.entry.axis for i, leaf in inputs if isinstance(leaf.entry, Pool)}
        self.versions: dict[ir.Var, int] = {jaxpr.invars[i]: i for i in self._axes}
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in WRITES and not isinstance(eqn.invars[0], ir.Literal):
                updated = self.versions.get(eqn.invars[0])
                self.versions.update({} if updated is None else {eqn.outvars[0]: updated})

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
        return owner.axis if ir.shape_of(atom)[owner.axis] == self.graph.bound.lanes else None

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


def _lane(value: Value) -> int | None:
    owner = value.owner
    if not isinstance(owner, OneLane) or owner != OneLane(owner.lane):
        return None
    return owner.lane if isinstance(owner.lane, int) else None


def _start(value: Value, last: int) -> int | None:
    """Return a constant start that no primitive clamps or drops, else None."""
    low, high = value.range or (0, -1)
    return low if low == high and 0 <= low <= last else None
