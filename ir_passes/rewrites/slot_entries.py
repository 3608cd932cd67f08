"""Constants and slot-map entries among indices, from the abstract values of the lane proof."""

import math
from dataclasses import dataclass

from ir_passes.contract.contract import SlotMap
from ir_passes.jaxpr import ir
from ir_passes.proof.lane_proof import walk
from ir_passes.proof.owners import OneLane
from ir_passes.proof.prover import Prover
from ir_passes.proof.values import Columns, SlotEntry, Value
from ir_passes.rewrites.graph import Graph


@dataclass(frozen=True)
class SlotIndex:
    """One lane's entry of the slot map at input position `map`."""

    map: int
    lane: int


IndexFact = int | SlotIndex
"""The value of all elements of an index: an integer, or an entry of a slot map."""


class IndexFacts:
    """Facts about the indices of a graph, proved or not.

    Attributes:
        sizes: position of each slot map among the inputs -> size. Entries are in [0, size).
    """

    def __init__(self, graph: Graph) -> None:
        self._prover = Prover(graph.bound)
        walk(self._prover, graph.program)
        self._env = self._prover.values[graph.program.jaxpr]
        inputs = enumerate(graph.bound.inputs)
        self.sizes = {i: leaf.entry.size for i, leaf in inputs if isinstance(leaf.entry, SlotMap)}

    def value(self, atom: ir.Atom) -> Value:
        """Return the proof's abstract value."""
        return self._prover.read(self._env, atom)

    def of(self, atom: ir.Atom) -> IndexFact | None:
        """Return the constant or slot-map entry; None for other values."""
        return _fact(self.value(atom), math.prod(ir.shape_of(atom)))

    def columns(self, atom: ir.Atom) -> tuple[IndexFact | None, ...]:
        """Return the fact of each component (last dimension) of an index array."""
        value, shape = self.value(atom), ir.shape_of(atom)
        if isinstance(value.fact, Columns) and len(value.fact.values) == shape[-1]:
            return tuple(_fact(part, math.prod(shape[:-1])) for part in value.fact.values)
        fact = self.of(atom)
        return (fact if shape[-1] == 1 or isinstance(fact, int) else None,) * shape[-1]


def _fact(value: Value, elements: int) -> IndexFact | None:
    owner, fact = value.owner, value.fact
    if isinstance(fact, SlotEntry) and fact == SlotEntry(fact.leaf) and isinstance(owner, OneLane) and elements == 1:
        lane = owner.lane if owner == OneLane(owner.lane) else None
        return SlotIndex(fact.leaf, lane) if isinstance(lane, int) else None
    low, high = value.range or (0, 1)
    return low if low == high else None
