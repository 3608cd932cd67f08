"""Indices that are constants or entries of a slot map, by the lane proof's abstract values."""

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
    """The only element is the entry of a lane in the slot map that is this input."""

    map: int
    lane: int


IndexFact = int | SlotIndex
"""The integer that every element is, or an entry of a slot map."""


class IndexFacts:
    """The facts known of the index values of a jaxpr.

    Attributes:
        sizes: slot maps among the step's inputs: position -> size. Their entries are in [0, size).
    """

    def __init__(self, prover: Prover, jaxpr: ir.Jaxpr) -> None:
        self._prover, self._env = prover, prover.values[jaxpr]
        inputs = enumerate(prover.bound.inputs)
        self.sizes = {i: one.entry.size for i, one in inputs if isinstance(one.entry, SlotMap)}

    def value(self, atom: ir.Atom) -> Value:
        """All that the proof knows of a value."""
        return self._prover.read(self._env, atom)

    def of(self, atom: ir.Atom) -> IndexFact | None:
        """Return the constant or slot-map entry that a value is; None if it is neither."""
        return _fact(self.value(atom), math.prod(shape(atom)))

    def columns(self, atom: ir.Atom) -> tuple[IndexFact | None, ...]:
        """The components of an index array, one for each element of its last dimension."""
        value, count = self.value(atom), shape(atom)[-1]
        if isinstance(value.fact, Columns) and len(value.fact.values) == count:
            return tuple(_fact(part, math.prod(shape(atom)[:-1])) for part in value.fact.values)
        whole = self.of(atom)
        return (whole,) * count if count == 1 or isinstance(whole, int) else (None,) * count


def facts_of(graph: Graph) -> IndexFacts:
    """Return the facts known of the values of a graph, which need not be proved."""
    prover = Prover(graph.bound)
    walk(prover, graph.program)
    return IndexFacts(prover, graph.program.jaxpr)


def shape(atom: ir.Atom) -> tuple[int, ...]:
    """The shape of a value."""
    return tuple(atom.aval.shape)


def _fact(value: Value, elements: int) -> IndexFact | None:
    owner, fact = value.owner, value.fact
    if isinstance(fact, SlotEntry) and fact == SlotEntry(fact.leaf) and isinstance(owner, OneLane) and elements == 1:
        return (
            SlotIndex(fact.leaf, owner.lane) if isinstance(owner.lane, int) and owner == OneLane(owner.lane) else None
        )
    if value.range is not None and value.range[0] == value.range[1]:
        return value.range[0]
    return None
