"""Boxes of pools that each equation reads and writes.

The versions of a pool are the input and each array that an update made from a version. A box has a start and a length
along each dimension; a known start is a constant or an entry of a slot map.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ir_passes.contract.contract import Pool, SlotMap
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import INDEXED, WRITES
from ir_passes.proof.lane_proof import walk
from ir_passes.proof.owners import OneLane
from ir_passes.proof.prover import Prover
from ir_passes.proof.rules.addressing.access import Access, of_gather, of_scatter, of_slice
from ir_passes.proof.site import Site
from ir_passes.proof.values import SlotEntry, Value
from ir_passes.rewrites.graph import Graph

READS = INDEXED - WRITES | {"slice"}


@dataclass(frozen=True)
class SlotIndex:
    """A lane's entry of the slot map at input position `map`."""

    map: int
    lane: int


IndexFact = int | SlotIndex
"""Equal elements of an index: an integer, or an entry of a slot map."""


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
        self.distinct = {i for i, leaf in inputs if isinstance(leaf.entry, SlotMap) and leaf.entry.role != "read"}
        self.axes = {i: leaf.entry.axis for i, leaf in inputs if isinstance(leaf.entry, Pool)}
        self.versions: dict[ir.Var, int] = {jaxpr.invars[i]: i for i in self.axes}
        self.readers, self.writers = (defaultdict[ir.Var, list[ir.JaxprEqn]](list) for _ in range(2))
        self.makers: dict[ir.Var, ir.JaxprEqn] = {}
        for eqn in jaxpr.eqns:
            updated = eqn.invars[0] if eqn.primitive.name in WRITES else None
            for version in dict.fromkeys(self.versions_in(eqn)):
                (self.writers if version is updated else self.readers)[version].append(eqn)
            if updated in self.versions and not isinstance(eqn.outvars[0], ir.DropVar):
                self.versions[eqn.outvars[0]] = self.versions[updated]
                self.makers[eqn.outvars[0]] = eqn

    def versions_in(self, eqn: ir.JaxprEqn) -> list[ir.Var]:
        return [var for var in ir.variables(eqn.invars) if var in self.versions]

    def value(self, atom: ir.Atom) -> Value:
        return self._prover.read(self._env, atom)

    def index(self, atom: ir.Atom) -> IndexFact | None:
        """Return the constant or slot-map entry in all elements, or None."""
        return _fact(self.value(atom))

    def box(self, eqn: ir.JaxprEqn) -> Box | None:
        """Return the box of an access to one pool; None for strides or several windows."""
        versions = self.versions_in(eqn)
        if len(versions) != 1 or versions[0] is not eqn.invars[0] or eqn.primitive.name not in READS | WRITES:
            return None
        shape, axis = ir.shape_of(versions[0]), self.axes[self.versions[versions[0]]]
        if eqn.primitive.name == "slice":
            sizes, starts = ir.shape_of(eqn.outvars[0]), dict[int, IndexFact | None]()
            starts.update(enumerate(eqn.params["start_indices"]))
            is_single = all(stride == 1 for stride in eqn.params["strides"] or ())
        else:
            access = self._access(eqn)
            sizes, starts = access.sizes, {dim: _fact(value) for dim, value in access.columns.items()}
            is_single = access.scalar and not access.paired
        dims = enumerate(zip(sizes, shape, strict=True))
        box_starts = tuple(self._in_bounds(starts.get(dim, 0), *lengths, dim == axis) for dim, lengths in dims)
        return Box(axis, box_starts, tuple(sizes)) if is_single else None

    def _access(self, eqn: ir.JaxprEqn) -> Access:
        site = Site(self._prover, eqn, self.graph.program.jaxpr, 0, self._env, ir.shapes(eqn.invars))
        values = tuple(map(self.value, eqn.invars))
        if eqn.primitive.name == "gather":
            return of_gather(site, values[1])
        if eqn.primitive.name == "dynamic_slice":
            return of_slice(site, values[1:], site.shape)
        if eqn.primitive.name == "dynamic_update_slice":
            return of_slice(site, values[2:], site.shapes[1])
        return of_scatter(site, values[1])

    def _in_bounds(self, start: IndexFact | None, length: int, size: int, is_row: bool) -> IndexFact | None:
        """Return a start that no primitive clamps or drops, else None."""
        if length == size:
            return 0
        if isinstance(start, int):
            return start if 0 <= start <= size - length else None
        if isinstance(start, SlotIndex) and is_row and length == 1 and self.sizes[start.map] <= size:
            return start
        return None


def _fact(value: Value) -> IndexFact | None:
    owner, fact = value.owner, value.fact
    if isinstance(fact, SlotEntry) and fact == SlotEntry(fact.leaf) and isinstance(owner, OneLane):
        lane = owner.lane if owner == OneLane(owner.lane) else None
        return SlotIndex(fact.leaf, lane) if isinstance(lane, int) else None
    low, high = value.range or (0, 1)
    return low if low == high else None


def pool_names(graph: Graph, positions: Iterable[int]) -> str:
    entries = [graph.bound.inputs[i].entry for i in positions]
    names = dict.fromkeys(repr(entry.group) for entry in entries if isinstance(entry, Pool))
    return ("pool " if len(names) == 1 else "pools ") + ", ".join(names)
