"""Correspondence of all lanes' equal equations."""

from collections import Counter, defaultdict
from collections.abc import Hashable
from typing import cast

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import computing_params
from ir_passes.jaxpr.dtypes import to_numpy
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.jaxpr.primitives import WRITES
from ir_passes.rewrites.lane_owners import Box, LaneOwners


class Different(Exception):
    """Two lanes differ, or their work cannot be batched; the message has the line."""


_Key = tuple[Hashable, ...]
"""Primitive, types, box, parameters and operands of an equation, and the number of the lane's equations like it."""


class SameWork:
    """Corresponding equations of all lanes in one level.

    Attributes:
        lanes: lane -> equations by key; after `match`, each has a counterpart in every lane.
        lane_of: id of an equation -> lane.
        writes: version of a pool -> lane and equation that made it.
        count: number of lane 0's matched equations, except those that select parts of arrays.
    """

    count = 0

    def __init__(self, owners: LaneOwners) -> None:
        self.owners, self.lane_of = owners, dict[int, int]()
        self.lanes: list[dict[_Key, ir.JaxprEqn]] = [{} for _ in range(owners.lanes)]
        self.writes: dict[ir.Var, tuple[int, ir.JaxprEqn]] = {}
        self._numbers: dict[_Key, int] = {}
        self._forms: dict[ir.Var, Hashable] = {}  # equal for corresponding variables
        self._by_lane = defaultdict[Hashable, dict[int, ir.Var]](dict)  # form -> lane -> variable
        self._counts = Counter[Hashable]()  # lane -> inputs; lane and key -> equations

    def add(self, eqn: ir.JaxprEqn, lane: int) -> None:
        """Add the next equation of a lane."""
        box, operands = self.box(eqn), cast(list[Hashable], [None] * len(eqn.invars))
        for i in range(len(operands))[updates_of(eqn) if box else slice(None)]:
            operands[i] = self._form(eqn.invars[i], lane)
        if box:
            operands[0] = self.first_version(eqn.invars[0], lane)
        params = None if box else fingerprint(computing_params(eqn))
        key: _Key = eqn.primitive.name, tuple(ir.types([*eqn.invars, *eqn.outvars])), box, params, *operands
        self._counts[lane, key] += 1
        key = *key, self._counts[lane, key]
        self.lanes[lane][key] = eqn
        self.lane_of[id(eqn)] = lane
        if box and eqn.primitive.name in WRITES:
            self.writes[eqn.outvars[0]] = lane, eqn
        number = self._numbers.setdefault(key, len(self._numbers))
        for index, var in enumerate(eqn.outvars):
            self._record(var, (number, index), lane)

    def match(self) -> None:
        """Keep the work that every lane does, and the equations that it needs.

        Some lanes may have more: lane 0 has the first equation of a sum over lanes.

        Raises:
            Different: work of every lane, or a write of a pool, has no counterpart.
        """
        common = set.intersection(*map(set, self.lanes))
        self._check([[(key, eqn) for key, eqn in eqns.items() if key not in common] for eqns in self.lanes])
        matched = {key: eqn for key, eqn in self.lanes[0].items() if key in common}
        self.count = sum(self.owners.selected.isdisjoint(eqn.outvars) for eqn in matched.values())
        needed, keys = set[ir.Var](), list[_Key]()
        for key, eqn in reversed(matched.items()):
            if self.owners.is_work(eqn) or not needed.isdisjoint(eqn.outvars):
                needed.update(self.operands(eqn))
                keys.append(key)
        self.lanes = [{key: eqns[key] for key in reversed(keys)} for eqns in self.lanes]
        self.lane_of = {id(eqn): lane for lane, eqns in enumerate(self.lanes) for eqn in eqns.values()}

    def box(self, eqn: ir.JaxprEqn) -> Box | None:
        return self.owners.boxes.get(id(eqn))

    def operands(self, eqn: ir.JaxprEqn) -> list[ir.Var]:
        """Return the variables that an equation uses, of an access only the updates."""
        return ir.variables(eqn.invars[updates_of(eqn)] if self.box(eqn) else eqn.invars)

    def inputs(self) -> dict[ir.Var, tuple[list[ir.Var], int | None]]:
        """Return the arrays of all lanes for each input of lane 0.

        Returns:
            Variable of lane 0 -> the array with the lanes' entries and its lane axis; without such an array the lanes'
            variables, and None.
        """
        eqns, owners = self.lanes[0].values(), self.owners
        results = {var for eqn in eqns for var in eqn.outvars}
        used = dict.fromkeys(var for eqn in eqns for var in self.operands(eqn))
        entries = {var: owners.entry(var) for var in used if var in owners.lane_of and var not in results}
        return {var: ([entry[0]], entry[1]) if entry else (self.by_lane(var), None) for var, entry in entries.items()}

    def by_lane(self, var: ir.Var) -> list[ir.Var]:
        """Return the variables of all lanes that correspond to one of them."""
        lanes = self._by_lane[self._forms[var]]
        return [lanes[lane] for lane in range(self.owners.lanes)]

    def first_version(self, version: ir.Atom, lane: int = 0) -> tuple[ir.Var, int]:
        """Return a pool's version before this work, and the lane's number of writes since."""
        writes = 0
        while version in self.writes:
            writer, eqn = self.writes[version]
            writes, version = writes + (writer == lane), eqn.invars[0]
        return version, writes

    def last_versions(self) -> dict[ir.Var, ir.Var]:
        """Return the last version of each written pool by its first.

        Raises:
            Different: accesses that have another order if all lanes write at once.
        """
        last, updated = dict[ir.Var, ir.Var](), set[ir.Atom]()
        for version, (_, eqn) in self.writes.items():
            if eqn.invars[0] in updated:
                raise Different(f"a version of a pool is written twice at {ir.source_of(eqn)}")
            updated.add(eqn.invars[0])
            last[self.first_version(version)[0]] = version
        maps, counts = dict[ir.Var, ir.Var | None](), Counter[ir.Var]()
        for eqn in self.lanes[0].values():
            box, place = self.box(eqn), ir.source_of(eqn)
            first, count = self.first_version(eqn.invars[0]) if box else (None, 0)
            if box is None or first not in last:
                continue
            if maps.setdefault(first, box.map) is not box.map:
                raise Different(f"rows of two slot maps are used at {place}")
            if count != counts[first]:
                raise Different(f"an old version of a row is read at {place}")
            counts[first] += eqn.primitive.name in WRITES
        jaxpr, middle = self.owners.graph.program.jaxpr, self.writes.keys() & updated
        unmatched = [(eqn.invars, ir.source_of(eqn)) for eqn in jaxpr.eqns if id(eqn) not in self.lane_of]
        for atoms, place in (*unmatched, (jaxpr.outvars, "the end")):
            if not middle.isdisjoint(ir.variables(atoms)):
                raise Different(f"a version of a pool in between is read at {place}")
        return last

    def _form(self, atom: ir.Atom, lane: int) -> Hashable:
        """Return a key of a value, equal for the corresponding values of all lanes.

        Equal values of no lane have equal keys. Entries correspond if they are of one array; other inputs in the order
        of their first use.
        """
        if isinstance(atom, ir.Literal):
            return to_numpy(atom.val).tobytes()
        if atom not in self.owners.lane_of:
            return "shared", self.owners.value(atom).number
        if atom not in self._forms:
            entry = self.owners.entry(atom)
            self._counts[lane] += entry is None
            self._record(atom, (entry or self._counts[lane], *ir.types([atom])), lane)
        return self._forms[atom]

    def _record(self, var: ir.Var, form: Hashable, lane: int) -> None:
        self._forms[var] = form
        self._by_lane[form][lane] = var

    def _check(self, single: list[list[tuple[_Key, ir.JaxprEqn]]]) -> None:
        """Raise Different if equations without a counterpart are every lane's work, or a write."""
        work = [[(key, eqn) for key, eqn in eqns if self.owners.is_work(eqn)] for eqns in single]
        if not all(work) and not any(eqn.outvars[0] in self.writes for eqns in work for _, eqn in eqns):
            return
        for lane, eqns in enumerate(work):
            for (key, _), (other_key, other) in zip(work[0], eqns, strict=False):
                if key != other_key:
                    difference, place = _difference(key, other_key), f"{other_key[0]} at {ir.source_of(other)}"
                    raise Different(f"lanes 0 and {lane} differ in {difference} of {place}")
            if len(eqns) != len(work[0]):
                raise Different(f"lane 0 has {len(self.lanes[0])} equations, lane {lane} has {len(self.lanes[lane])}")


def _difference(key: _Key, other: _Key) -> str:
    place = next(i for i, (a, b) in enumerate(zip(key, other, strict=False)) if a != b)
    labels = f"{key[0]} instead", "the types", "the box", "the parameters"
    return labels[place] if place < len(labels) else f"operand {place - len(labels)}"


def updates_of(eqn: ir.JaxprEqn) -> slice:
    """Return the slice of an access's operands that are updates, empty for a read."""
    if eqn.primitive.name == "dynamic_update_slice":
        return slice(1, 2)
    return slice(2, 3) if eqn.primitive.name in WRITES else slice(0, 0)
