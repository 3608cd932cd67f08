"""Boxes of pools that each equation reads and writes.

The versions of a pool are the input and each array that an update made from a version. A box has a start and a length
along each dimension; a known start is a constant or an entry of a slot map.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ir_passes.contract.contract import Pool, SlotMap
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import INDEXED, WRITES
from ir_passes.proof.lane_proof import walk
from ir_passes.proof.owners import OneLane
from ir_passes.proof.prover import Prover
from ir_passes.proof.values import Columns, SlotEntry, Value
from ir_passes.rewrites.graph import Graph


@dataclass(frozen=True)
class SlotIndex:
    """A lane's entry of the slot map at input position `map`."""

    map: int
    lane: int


IndexFact = int | SlotIndex
"""Equal elements of an index: an integer, or an entry of a slot map."""


def _fact(value: Value, elements: int) -> IndexFact | None:
    owner, fact = value.owner, value.fact
    if isinstance(fact, SlotEntry) and fact == SlotEntry(fact.leaf) and isinstance(owner, OneLane) and elements == 1:
        lane = owner.lane if owner == OneLane(owner.lane) else None
        return SlotIndex(fact.leaf, lane) if isinstance(lane, int) else None
    low, high = value.range or (0, 1)
    return low if low == high else None


READS = INDEXED - WRITES | {"slice"}


@dataclass(frozen=True)
class Box:
    """The box of a pool that an equation reads or writes.

    Attributes:
        axis: row axis of the pool.
        starts: along each dimension; None if unknown.
    """

    axis: int
    starts: tuple[IndexFact | None, ...]
    sizes: tuple[int, ...]

    @property
    def row(self) -> IndexFact | None:
        return self.starts[self.axis] if self.sizes[self.axis] == 1 else None


class PoolAccesses:
    """Versions of all pools of a graph, and accesses to them.

    Attributes:
        versions: version -> position of the pool among the inputs.
        readers: version -> equations with the version as an operand, except its updates.
        writers: version -> equations that update the version.
        makers: version -> the update that made the version.
        made_by: variable -> the equation that computes it.
        distinct: slot maps with distinct entries on active lanes.
        sizes: input position of each slot map -> its size.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._prover = Prover(graph.bound)
        walk(self._prover, graph.program)
        jaxpr, inputs = graph.program.jaxpr, list(enumerate(graph.bound.inputs))
        self._env = self._prover.values[jaxpr]
        self.sizes = {i: leaf.entry.size for i, leaf in inputs if isinstance(leaf.entry, SlotMap)}
        self.axes = {i: leaf.entry.axis for i, leaf in inputs if isinstance(leaf.entry, Pool)}
        self.versions: dict[ir.Var, int] = {jaxpr.invars[i]: i for i in self.axes}
        self.readers: dict[ir.Var, list[ir.JaxprEqn]] = {}
        self.writers: dict[ir.Var, list[ir.JaxprEqn]] = {}
        self.makers: dict[ir.Var, ir.JaxprEqn] = {}
        for eqn in jaxpr.eqns:
            updated = eqn.invars[0] if eqn.primitive.name in WRITES else None
            for version in dict.fromkeys(self.versions_in(eqn)):
                users = self.writers if version is updated else self.readers
                users.setdefault(version, []).append(eqn)
            if updated in self.versions and not isinstance(eqn.outvars[0], ir.DropVar):
                self.versions[eqn.outvars[0]] = self.versions[updated]
                self.makers[eqn.outvars[0]] = eqn
        self.made_by = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
        self.distinct = {i for i, leaf in inputs if isinstance(leaf.entry, SlotMap) and leaf.entry.role != "read"}

    def versions_in(self, eqn: ir.JaxprEqn) -> list[ir.Var]:
        return [var for var in ir.variables(eqn.invars) if var in self.versions]

    def value(self, atom: ir.Atom) -> Value:
        return self._prover.read(self._env, atom)

    def index(self, atom: ir.Atom) -> IndexFact | None:
        """Return the constant or slot-map entry in all elements, or None."""
        return _fact(self.value(atom), math.prod(ir.shape_of(atom)))

    def columns(self, atom: ir.Atom) -> tuple[IndexFact | None, ...]:
        """Return the fact of each component (last dimension) of an index array."""
        value, shape = self.value(atom), ir.shape_of(atom)
        if isinstance(value.fact, Columns) and len(value.fact.values) == shape[-1]:
            return tuple(_fact(part, math.prod(shape[:-1])) for part in value.fact.values)
        fact = self.index(atom)
        return (fact if shape[-1] == 1 or isinstance(fact, int) else None,) * shape[-1]

    def box(self, eqn: ir.JaxprEqn) -> Box | None:
        """Return the box of an access to one pool; None for other equations."""
        versions = self.versions_in(eqn)
        if len(versions) != 1 or versions[0] is not eqn.invars[0] or eqn.primitive.name not in READS | WRITES:
            return None
        window = self._window(eqn)
        if window is None:
            return None
        starts, sizes = window
        axis = self.axes[self.versions[versions[0]]]
        shape = ir.shape_of(versions[0])
        checked = [self._in_bounds(starts[dim], sizes[dim], shape[dim], dim == axis) for dim in range(len(shape))]
        return Box(axis, tuple(checked), tuple(sizes))

    def _in_bounds(self, start: IndexFact | None, length: int, size: int, is_row: bool) -> IndexFact | None:
        """Return a start that no primitive clamps or drops, else None."""
        if length == size:
            return 0
        if isinstance(start, int):
            return start if 0 <= start <= size - length else None
        if isinstance(start, SlotIndex) and is_row and length == 1 and self.sizes[start.map] <= size:
            return start
        return None

    def _window(self, eqn: ir.JaxprEqn) -> tuple[list[IndexFact | None], tuple[int, ...]] | None:
        """Return the starts and sizes of an access; None for strides or several windows."""
        match eqn.primitive.name:
            case "slice":
                if any(stride != 1 for stride in eqn.params["strides"] or ()):
                    return None
                return [int(start) for start in eqn.params["start_indices"]], ir.shape_of(eqn.outvars[0])
            case "dynamic_slice":
                return [self.index(atom) for atom in eqn.invars[1:]], ir.shape_of(eqn.outvars[0])
            case "dynamic_update_slice":
                return [self.index(atom) for atom in eqn.invars[2:]], ir.shape_of(eqn.invars[1])
        numbers, indices = eqn.params["dimension_numbers"], ir.shape_of(eqn.invars[1])
        if numbers.operand_batching_dims or indices[:-1] != (1,) * (len(indices) - 1):
            return None
        rank = len(ir.shape_of(eqn.invars[0]))
        if eqn.primitive.name == "gather":
            indexed, sizes = numbers.start_index_map, tuple(eqn.params["slice_sizes"])
        else:
            lengths = iter(ir.shape_of(eqn.invars[2])[dim] for dim in sorted(numbers.update_window_dims))
            sizes = tuple(1 if dim in numbers.inserted_window_dims else next(lengths) for dim in range(rank))
            indexed = numbers.scatter_dims_to_operand_dims
        starts = dict(zip(indexed, self.columns(eqn.invars[1]), strict=True))
        return [starts.get(dim, 0) for dim in range(rank)], sizes


def pool_names(graph: Graph, positions: Iterable[int]) -> str:
    entries = [graph.bound.inputs[i].entry for i in positions]
    names = dict.fromkeys(repr(entry.group) for entry in entries if isinstance(entry, Pool))
    return ("pool " if len(names) == 1 else "pools ") + ", ".join(names)
