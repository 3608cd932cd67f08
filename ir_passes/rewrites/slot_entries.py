"""Which values are constants and which are entries of a slot map, as far as equations on indices show it.

JAX spells `pool[slots[2]]` with a slice, a squeeze and the wrap of negative indices. Entries of a slot map are in
[0, size) by contract, so a wrap, a lower clamp at zero and an upper one above the last slot leave them as they are.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import numpy as jnp

from ir_passes import ir
from ir_passes.contract import SlotMap
from ir_passes.graph import Graph


@dataclass(frozen=True)
class Constant:
    """Every element is this integer."""

    value: int


@dataclass(frozen=True)
class Entry:
    """The only element is the entry of a lane in the slot map that is this input."""

    map: int
    lane: int


@dataclass(frozen=True)
class Entries:
    """Element i along `dim` is entry i of the slot map; the other dimensions have length 1."""

    map: int
    dim: int


@dataclass(frozen=True)
class Columns:
    """Along the last dimension stand the components of an index vector, each of which may be known."""

    parts: tuple["Fact | None", ...]


Fact = Constant | Entry | Entries | Columns


class IndexFacts:
    """What is known of the integers of a jaxpr.

    Attributes:
        lanes: N.
        sizes: slot maps among the inputs: position -> size.
    """

    def __init__(self, jaxpr: ir.Jaxpr, lanes: int, sizes: Mapping[int, int]) -> None:
        self.lanes = lanes
        self.sizes = sizes
        self._facts: dict[ir.Var, Fact] = {}
        for i in sizes:
            self._facts[jaxpr.invars[i]] = Entries(i, 0) if lanes > 1 else Entry(i, 0)
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in ("split", "unstack"):
                self._split(eqn)
            rule = RULES.get(eqn.primitive.name)
            if rule is not None:
                fact = rule(self, eqn, [self.of(atom) for atom in eqn.invars])
                if fact is not None:
                    self._facts[eqn.outvars[0]] = fact

    def _split(self, eqn: ir.JaxprEqn) -> None:
        """One entry of a slot map for each result."""
        fact = self.of(eqn.invars[0])
        if isinstance(fact, Entries) and eqn.params["axis"] == fact.dim and len(eqn.outvars) == self.lanes:
            self._facts.update((var, Entry(fact.map, lane)) for lane, var in enumerate(eqn.outvars))

    def of(self, atom: ir.Atom) -> Fact | None:
        """What is known of a value."""
        if isinstance(atom, ir.Literal):
            whole = np.ndim(atom.val) == 0 and np.result_type(atom.val).kind in "iub"
            return Constant(int(atom.val)) if whole else None
        return self._facts.get(atom)

    def columns(self, atom: ir.Atom) -> tuple[Fact | None, ...]:
        """The components of an index array, one for each element of its last dimension."""
        fact, count = self.of(atom), shape(atom)[-1]
        if isinstance(fact, Columns):
            return fact.parts
        if isinstance(fact, Constant):
            return (fact,) * count
        return (fact,) if count == 1 else (None,) * count

    def size(self, fact: Fact | None) -> int | None:
        """The bound of a slot map's entries: they are in [0, size)."""
        return self.sizes[fact.map] if isinstance(fact, Entry | Entries) else None


def facts_of(graph: Graph) -> IndexFacts:
    """What is known of the integers of a graph."""
    sizes = {i: one.entry.size for i, one in enumerate(graph.bound.inputs) if isinstance(one.entry, SlotMap)}
    return IndexFacts(graph.program.jaxpr, graph.bound.lanes, sizes)


Rule = Callable[[IndexFacts, ir.JaxprEqn, list[Fact | None]], Fact | None]


def shape(atom: ir.Atom) -> tuple[int, ...]:
    """The shape of a value."""
    return tuple(atom.aval.shape)


def _reshaped(_: IndexFacts, eqn: ir.JaxprEqn, known: list[Fact | None]) -> Fact | None:
    old, new = shape(eqn.invars[0]), shape(eqn.outvars[0])
    fact = known[0]
    if isinstance(fact, Constant):
        return fact
    if math.prod(old) != math.prod(new):
        return None
    if isinstance(fact, Entry):
        return fact
    if isinstance(fact, Entries):
        return Entries(fact.map, next(d for d, size in enumerate(new) if size > 1))
    if isinstance(fact, Columns) and new[-1:] == old[-1:]:
        return Columns(tuple(None if isinstance(part, Entries) else part for part in fact.parts))
    return None


def _converted(facts: IndexFacts, eqn: ir.JaxprEqn, known: list[Fact | None]) -> Fact | None:
    fact = known[0]
    size = fact.value + 1 if isinstance(fact, Constant) else facts.size(fact)
    if size is None or not is_integer(eqn.invars[0]):
        return None
    return fact if _holds(eqn.outvars[0], size - 1) else None


def _sliced(facts: IndexFacts, eqn: ir.JaxprEqn, known: list[Fact | None]) -> Fact | None:
    if any(stride != 1 for stride in eqn.params["strides"] or ()):
        return None
    starts = eqn.params["start_indices"]
    return _part(known[0], starts, shape(eqn.invars[0]), shape(eqn.outvars[0]))


def _dynamically_sliced(facts: IndexFacts, eqn: ir.JaxprEqn, known: list[Fact | None]) -> Fact | None:
    starts = [fact.value if isinstance(fact, Constant) else None for fact in known[1:]]
    old, new = shape(eqn.invars[0]), shape(eqn.outvars[0])
    clamped = [
        0 if length == size else None if start is None else min(max(start, 0), size - length)
        for start, size, length in zip(starts, old, new, strict=True)
    ]
    return None if None in clamped else _part(known[0], [start or 0 for start in clamped], old, new)


def _part(fact: Fact | None, starts: Any, old: tuple[int, ...], new: tuple[int, ...]) -> Fact | None:
    if isinstance(fact, Constant):
        return fact
    if isinstance(fact, Entries) and new[fact.dim] == 1:
        return Entry(fact.map, int(starts[fact.dim]))
    if isinstance(fact, Columns) and new[-1] == 1:
        return fact.parts[starts[-1]] if new[:-1] == old[:-1] else None
    return fact if new == old else None


def _joined(facts: IndexFacts, eqn: ir.JaxprEqn, known: list[Fact | None]) -> Fact | None:
    """Concatenated or stacked: a slot map put together again, or the components of an index vector."""
    stacked = eqn.primitive.name == "stack"
    dim = eqn.params["axis" if stacked else "dimension"]
    first = known[0]
    if isinstance(first, Entry) and facts.lanes > 1:
        if known == [Entry(first.map, lane) for lane in range(facts.lanes)]:
            return Entries(first.map, dim)
    if dim != len(shape(eqn.outvars[0])) - 1:
        return None
    if not stacked:
        return Columns(tuple(part for atom in eqn.invars for part in facts.columns(atom)))
    return Columns(tuple(fact if isinstance(fact, Constant | Entry) else None for fact in known))


def _compared(_: IndexFacts, eqn: ir.JaxprEqn, known: list[Fact | None]) -> Fact | None:
    left, right = known
    if isinstance(left, Constant) and isinstance(right, Constant):
        return Constant(int(left.value < right.value))
    negative = isinstance(right, Constant) and right.value <= 0
    return Constant(0) if isinstance(left, Entry | Entries) and negative else None


def _selected(_: IndexFacts, eqn: ir.JaxprEqn, known: list[Fact | None]) -> Fact | None:
    which, *cases = known
    return cases[which.value] if isinstance(which, Constant) and 0 <= which.value < len(cases) else None


def _folded(operation: Callable[[int, int], int]) -> Rule:
    def rule(facts: IndexFacts, eqn: ir.JaxprEqn, known: list[Fact | None]) -> Fact | None:
        left, right = known
        if not isinstance(left, Constant) or not isinstance(right, Constant):
            return None
        value = operation(left.value, right.value)
        return Constant(value) if _holds(eqn.outvars[0], value) else None

    return rule


def _bounded(lower: bool) -> Rule:
    """max with a constant that is not above any entry, min with one that is not below any."""

    def rule(facts: IndexFacts, eqn: ir.JaxprEqn, known: list[Fact | None]) -> Fact | None:
        for fact, other in (known, known[::-1]):
            size = facts.size(fact)
            if size is not None and isinstance(other, Constant):
                if other.value <= 0 if lower else other.value >= size - 1:
                    return fact
        return _folded(max if lower else min)(facts, eqn, known)

    return rule


def _clamped(facts: IndexFacts, eqn: ir.JaxprEqn, known: list[Fact | None]) -> Fact | None:
    low, fact, high = known
    size = facts.size(fact)
    if not isinstance(low, Constant) or not isinstance(high, Constant) or size is None:
        return None
    return fact if low.value <= 0 and high.value >= size - 1 else None


def _holds(atom: ir.Atom, value: int) -> bool:
    """Whether an integer is one of its dtype's."""
    return is_integer(atom) and jnp.iinfo(atom.aval.dtype).min <= value <= jnp.iinfo(atom.aval.dtype).max


def is_integer(atom: ir.Atom) -> bool:
    """Whether a value is an array of integers; bools are none."""
    return jnp.issubdtype(atom.aval.dtype, np.integer)


RULES: Mapping[str, Rule] = {
    "add": _folded(lambda a, b: a + b),
    "broadcast_in_dim": _reshaped,
    "clamp": _clamped,
    "concatenate": _joined,
    "convert_element_type": _converted,
    "copy": _reshaped,
    "dynamic_slice": _dynamically_sliced,
    "expand_dims": _reshaped,
    "lt": _compared,
    "max": _bounded(lower=True),
    "min": _bounded(lower=False),
    "mul": _folded(lambda a, b: a * b),
    "reshape": _reshaped,
    "select_n": _selected,
    "slice": _sliced,
    "squeeze": _reshaped,
    "stack": _joined,
    "sub": _folded(lambda a, b: a - b),
}
