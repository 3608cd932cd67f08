"""The boxes of pools that each equation reads and writes.

A pool's versions are the input and every array that an update made of a version. A box has a start along every
dimension, known as a constant or as an entry of a slot map where the equations show it, and a length.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ir_passes.contract.contract import Pool, SlotMap
from ir_passes.jaxpr import ir
from ir_passes.rewrites.graph import Graph
from ir_passes.rewrites.slot_entries import IndexFact, IndexFacts, SlotIndex, facts_of, shape

READS = frozenset({"slice", "dynamic_slice", "gather"})
WRITES = frozenset({"dynamic_update_slice", "scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"})


@dataclass(frozen=True)
class IndexWindow:
    """The window of an operand that each index of a gather or scatter addresses.

    Attributes:
        indexed: the operand's dimensions that the components of an index start in.
        sizes: length of the window along every dimension of the operand.
    """

    indexed: tuple[int, ...]
    sizes: tuple[int, ...]


def window_of(eqn: ir.JaxprEqn) -> IndexWindow | None:
    """The window of a gather or scatter; None where operand dimensions are batched with the indices'."""
    numbers = eqn.params["dimension_numbers"]
    if numbers.operand_batching_dims:
        return None
    if eqn.primitive.name == "gather":
        return IndexWindow(numbers.start_index_map, tuple(eqn.params["slice_sizes"]))
    operand, _, updates = (shape(atom) for atom in eqn.invars)
    lengths = iter(updates[dim] for dim in sorted(numbers.update_window_dims))
    sizes = tuple(1 if dim in numbers.inserted_window_dims else next(lengths) for dim in range(len(operand)))
    return IndexWindow(numbers.scatter_dims_to_operand_dims, sizes)


@dataclass(frozen=True)
class Box:
    """The box of a pool that one equation reads or writes.

    Attributes:
        axis: the pool's row axis.
        starts: along each dimension; None where it is not known.
        sizes: along each dimension.
    """

    axis: int
    starts: tuple[IndexFact | None, ...]
    sizes: tuple[int, ...]

    @property
    def row(self) -> IndexFact | None:
        """The row, of a box of one row."""
        return self.starts[self.axis] if self.sizes[self.axis] == 1 else None


class PoolAccesses:
    """The versions and boxes of every pool of a graph.

    Attributes:
        facts: known of indices.
        versions: variable -> position of the pool among the inputs.
        readers: version -> equations that have it as an operand, updates of it apart.
        writers: version -> equations that update it.
        makers: version -> the update that made it.
        made_by: variable -> the equation that computes it.
        distinct: slot maps whose entries are distinct on active lanes.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.facts = facts_of(graph)
        jaxpr, bound = graph.program.jaxpr, graph.bound
        pools = {i: one.entry for i, one in enumerate(bound.inputs) if isinstance(one.entry, Pool)}
        self.axes = {i: pool.axis for i, pool in pools.items()}
        self.versions: dict[ir.Var, int] = {jaxpr.invars[i]: i for i in pools}
        self.readers: dict[ir.Var, list[ir.JaxprEqn]] = {}
        self.writers: dict[ir.Var, list[ir.JaxprEqn]] = {}
        self.makers: dict[ir.Var, ir.JaxprEqn] = {}
        for eqn in jaxpr.eqns:
            operands = [atom for atom in ir.variables(eqn.invars) if atom in self.versions]
            updated = eqn.invars[0] if eqn.primitive.name in WRITES else None
            for atom in dict.fromkeys(operands):
                users = self.writers if atom is updated else self.readers
                users.setdefault(atom, []).append(eqn)
            if updated in self.versions and not isinstance(eqn.outvars[0], ir.DropVar):
                self.versions[eqn.outvars[0]] = self.versions[updated]
                self.makers[eqn.outvars[0]] = eqn
        self.made_by = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
        self.distinct = {
            i for i, one in enumerate(bound.inputs) if isinstance(one.entry, SlotMap) and one.entry.role != "read"
        }

    def pool_of(self, eqn: ir.JaxprEqn) -> int | None:
        """The pool whose version is the only one among an equation's operands, and the first of them."""
        operands = [atom for atom in ir.variables(eqn.invars) if atom in self.versions]
        return self.versions[operands[0]] if len(operands) == 1 and operands[0] is eqn.invars[0] else None

    def version(self, eqn: ir.JaxprEqn) -> ir.Var:
        """The version that a read or write has as its first operand."""
        (version,) = ir.variables(eqn.invars[:1])
        return version

    def box(self, eqn: ir.JaxprEqn) -> Box | None:
        """The box that an equation reads or writes; None if it is not exactly one box of one pool."""
        pool = self.pool_of(eqn)
        if pool is None or eqn.primitive.name not in READS | WRITES:
            return None
        found = _starts(eqn, self.facts)
        if found is None:
            return None
        starts, sizes = found
        axis, whole = self.axes[pool], shape(eqn.invars[0])
        known = [
            self._inside(start, length, size, dim == axis)
            for dim, (start, length, size) in enumerate(zip(starts, sizes, whole, strict=True))
        ]
        return Box(axis, tuple(known), tuple(sizes))

    def _inside(self, start: IndexFact | None, length: int, size: int, row_axis: bool) -> IndexFact | None:
        """A start that is known to be in bounds, so that no mode of any primitive moves or drops it."""
        if length == size:
            return 0
        if isinstance(start, int):
            return start if 0 <= start <= size - length else None
        rows = row_axis and length == 1
        return start if isinstance(start, SlotIndex) and rows and self.facts.sizes[start.map] <= size else None


def _starts(eqn: ir.JaxprEqn, facts: IndexFacts) -> tuple[list[IndexFact | None], tuple[int, ...]] | None:
    name, params = eqn.primitive.name, eqn.params
    if name == "slice":
        if any(stride != 1 for stride in params["strides"] or ()):
            return None
        return [int(start) for start in params["start_indices"]], shape(eqn.outvars[0])
    if name == "dynamic_slice":
        return [facts.of(atom) for atom in eqn.invars[1:]], shape(eqn.outvars[0])
    if name == "dynamic_update_slice":
        return [facts.of(atom) for atom in eqn.invars[2:]], shape(eqn.invars[1])
    window = window_of(eqn)
    rows = shape(eqn.invars[1])
    if window is None or rows[:-1] != (1,) * (len(rows) - 1):
        return None
    starts: list[IndexFact | None] = [0] * len(window.sizes)
    for dim, fact in zip(window.indexed, facts.columns(eqn.invars[1]), strict=True):
        starts[dim] = fact
    return starts, window.sizes


def pool_names(graph: Graph, positions: Iterable[int]) -> str:
    """The groups of input pools, for a report."""
    names: dict[str, None] = {}
    for i in positions:
        entry = graph.bound.inputs[i].entry
        if isinstance(entry, Pool):
            names[repr(entry.group)] = None
    return ("pool " if len(names) == 1 else "pools ") + ", ".join(names)
