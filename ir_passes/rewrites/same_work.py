"""The one-to-one correspondence of lanes' equations, where lanes do the same work."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import computing_params
from ir_passes.jaxpr.dtypes import to_numpy
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.rewrites.lane_owners import LaneOwners
from ir_passes.rewrites.pool_access import WRITES, Box
from ir_passes.rewrites.slot_entries import SlotIndex


class Different(Exception):
    """Two lanes do not do the same; says where they differ."""


@dataclass(frozen=True)
class SameWork:
    """Equations of every lane that correspond.

    Attributes:
        lanes: lane -> its equations; the k-th of each lane correspond.
        named: equations of lane 0 that name parts these work on, in order.
        first: variable of any lane -> the variable of lane 0 that it corresponds to.
        alike: variable of lane 0 -> those of all lanes that correspond to it.
    """

    lanes: tuple[tuple[ir.JaxprEqn, ...], ...]
    named: tuple[ir.JaxprEqn, ...]
    first: dict[ir.Var, ir.Var]
    alike: dict[ir.Var, list[ir.Var]]

    @cached_property
    def equations(self) -> frozenset[int]:
        """The identities of all equations."""
        return frozenset(id(eqn) for eqns in self.lanes for eqn in eqns)


def same_work(owners: LaneOwners, lanes: Sequence[Sequence[ir.JaxprEqn]], first: dict[ir.Var, ir.Var]) -> SameWork:
    """The correspondence of the lanes' equations.

    Raises:
        Different: there is none.
    """
    equal = _Equal(owners, dict(first))
    for lane, eqns in enumerate(lanes):
        for one, other in zip(lanes[0], eqns, strict=False):
            equal.require(one, other, lane)
        if len(eqns) != len(lanes[0]):
            raise Different(f"lane 0 has {len(lanes[0])} equations, lane {lane} has {len(eqns)}")
    alike: dict[ir.Var, list[ir.Var]] = {}
    for var, one in equal.first.items():
        alike.setdefault(one, []).append(var)
    for found in alike.values():
        found.sort(key=lambda var: owners.lane_of.get(var, 0))
    return SameWork(tuple(tuple(eqns) for eqns in lanes), tuple(equal.named), equal.first, alike)


@dataclass(frozen=True)
class _Equal:
    """The comparison of two lanes' equations, which collects the variables that correspond."""

    owners: LaneOwners
    first: dict[ir.Var, ir.Var]
    named: list[ir.JaxprEqn] = field(default_factory=list)

    def require(self, one: ir.JaxprEqn, other: ir.JaxprEqn, lane: int) -> None:
        """Record the results of `other` as corresponding to those of `one`, an equation of lane 0."""
        self._compare(one, other, lane)
        self.first.update(zip(other.outvars, one.outvars, strict=True))

    def _compare(self, one: ir.JaxprEqn, other: ir.JaxprEqn, lane: int) -> None:

        def differ(what: str) -> Different:
            return Different(f"lanes 0 and {lane} differ in {what} of {other.primitive.name} at {ir.source_of(other)}")

        if one.primitive is not other.primitive:
            raise differ(f"{one.primitive.name} instead")
        if ir.types([*one.invars, *one.outvars]) != ir.types([*other.invars, *other.outvars]):
            raise differ("the types")
        roots = self.owners.roots
        if one.outvars[0] in roots or other.outvars[0] in roots:
            if not self._same_roots(one, other, lane):
                raise differ("the part")
            return
        mine, theirs = self.owners.own.get(id(one)), self.owners.own.get(id(other))
        if (mine is None) != (theirs is None):
            raise differ("the row")
        compared = list(range(len(one.invars)))
        if mine is not None and theirs is not None:
            if not _same_box(mine, theirs, lane):
                raise differ("the box")
            compared = operands_of_access(one, mine)
        if one.primitive.name == "slice" and mine is not None:
            return
        if one.params is not other.params:
            if fingerprint(computing_params(one)) != fingerprint(computing_params(other)):
                raise differ("the parameters")
        for place in compared:
            if not self._same(one.invars[place], other.invars[place]):
                raise differ(f"operand {place}")

    def _same(self, a: ir.Atom, b: ir.Atom) -> bool:
        if isinstance(a, ir.Literal) or isinstance(b, ir.Literal):
            both = isinstance(a, ir.Literal) and isinstance(b, ir.Literal)
            return both and to_numpy(a.val).tobytes() == to_numpy(b.val).tobytes()
        if b in self.owners.lane_of:
            return self._same_name(a, b) if b not in self.first else self.first[b] is a
        value = self.owners.accesses.facts.value
        return a not in self.owners.lane_of and ir.types([a]) == ir.types([b]) and value(a).number == value(b).number

    def _same_name(self, a: ir.Var, b: ir.Var) -> bool:
        """Whether the parts of two lanes that two variables name correspond."""
        owners, made_by = self.owners, self.owners.accesses.made_by
        if a not in owners.names or b not in owners.names:
            return False
        mine, theirs = owners.accesses.facts.of(a), owners.accesses.facts.of(b)
        if isinstance(mine, SlotIndex) and isinstance(theirs, SlotIndex) and a not in owners.roots:
            same = (mine.map, mine.lane, theirs.lane) == (theirs.map, 0, owners.lane_of[b])
            if not same or ir.types([a]) != ir.types([b]):
                return False
            self.first[b] = a
        else:
            self.require(made_by[a], made_by[b], owners.lane_of[b])
        if a is b and a in made_by:
            self.named.append(made_by[a])
        return self.first[b] is a

    def _same_roots(self, one: ir.JaxprEqn, other: ir.JaxprEqn, lane: int) -> bool:
        a, b = self.owners.roots.get(one.outvars[0]), self.owners.roots.get(other.outvars[0])
        if a is None or b is None or (a.dim, a.lane, b.lane) != (b.dim, 0, lane) or not self._same(a.source, b.source):
            return False
        if one.primitive.name == "slice":
            return _without(one.params["start_indices"], a.dim) == _without(other.params["start_indices"], a.dim)
        starts = zip(_without(one.invars[1:], a.dim), _without(other.invars[1:], a.dim), strict=True)
        return all(self._same(x, y) for x, y in starts)


def _without(items: Sequence[Any], place: int) -> list[Any]:
    return [item for i, item in enumerate(items) if i != place]


def _same_box(one: Box, other: Box, lane: int) -> bool:
    """A box of lane 0's row and the corresponding one of another lane's."""
    mine, theirs = one.row, other.row
    if isinstance(mine, SlotIndex):
        rows = isinstance(theirs, SlotIndex) and (mine.map, mine.lane, theirs.lane) == (theirs.map, 0, lane)
    else:
        rows = (mine, theirs) == (0, lane)
    return rows and one.sizes == other.sizes and _without(one.starts, one.axis) == _without(other.starts, other.axis)


def operands_of_access(eqn: ir.JaxprEqn, box: Box) -> list[int]:
    """Operands of an access that its box does not hold, the pool aside: updates, and unknown starts."""
    name = eqn.primitive.name
    boxed = name in ("dynamic_slice", "dynamic_update_slice")
    arrays = [1] if name == "dynamic_update_slice" else [2] if name in WRITES else []
    if None not in box.starts:
        return arrays
    first = 1 + len(arrays)
    return arrays + ([first + dim for dim in range(len(box.starts)) if dim != box.axis] if boxed else [1])
