"""Runs of equations that occur several times in a program, as those of the layers of a model do.

`ir.inline` puts the body of a call in the place of each call, so that a layer which occurs 18 times is a run of the
same equations 18 times.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import params_key

MIN_EQUATIONS = 8
"""Shorter runs are interpreted: renaming takes as long."""


@dataclass(frozen=True)
class Run:
    """Equations of a program that came of one call.

    Attributes:
        first, end: their place in the program, the end excluded.
        kind: equal for runs of the same equations.
        given: variables that it uses and does not make, in the order in which it uses them.
        made: variables that it makes.
        used: places among these of those that are used behind it.
        followed: whether another run of the kind follows.
    """

    first: int
    end: int
    kind: int
    given: tuple[Any, ...]
    made: tuple[Any, ...]
    used: tuple[int, ...]
    followed: bool


def runs_of(jaxpr: Any) -> list[Run]:
    """Return the runs of a program of which there are three or more of a kind, in program order.

    There are none in a program on a mesh, where values say which equation on which device made them.
    """
    if any(eqn.primitive.name == "shard_map" for eqn in ir.all_eqns(jaxpr)):
        return []
    last_use = {atom: len(jaxpr.eqns) for atom in ir.variables(jaxpr.outvars)}
    calls: list[tuple[Any, int, int]] = []
    for index in range(len(jaxpr.eqns) - 1, -1, -1):
        for atom in jaxpr.eqns[index].invars:
            if not isinstance(atom, ir.Literal):
                last_use.setdefault(atom, index)
    for index, eqn in enumerate(jaxpr.eqns):
        call = ir.call_of(eqn)
        if calls and calls[-1][0] is call:
            calls[-1] = call, calls[-1][1], index + 1
        else:
            calls.append((call, index, index + 1))
    kinds, found = _Kinds(), list[Run]()
    for _, first, end in calls:
        if end - first >= MIN_EQUATIONS:
            kind, given, made = kinds.of(jaxpr.eqns[first:end])
            used = tuple(place for place, var in enumerate(made) if last_use.get(var, -1) >= end)
            found.append(Run(first, end, kind, given, made, used, False))
    count = Counter(run.kind for run in found)
    left, repeated = Counter(count), list[Run]()
    for run in found:
        left[run.kind] -= 1
        if count[run.kind] > 2:
            repeated.append(replace(run, followed=left[run.kind] > 0))
    return repeated


class _Kinds:
    """The kinds of runs of one program."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, int] = {}
        self._types: dict[Any, int] = {}
        self._params: dict[Hashable, int] = {}
        self._known: dict[int, tuple[Any, int]] = {}
        self._alive: dict[int, Any] = {}

    def of(self, eqns: Sequence[Any]) -> tuple[int, tuple[Any, ...], tuple[Any, ...]]:
        """Return the kind of a run, the variables that it is given, and those that it makes.

        Equations that came of one body share their literals.
        """
        places: dict[Any, int] = {}
        given, made, signature = list[Any](), list[Any](), list[Hashable]()
        for eqn in eqns:
            signature += (self._id(eqn.primitive), self._params_of(eqn), len(eqn.invars), len(eqn.outvars))
            signature.append(frozenset(eqn.effects))
            for atom in eqn.invars:
                if isinstance(atom, ir.Literal):
                    signature.append(("literal", self._id(atom)))
                    continue
                place = places.get(atom)
                if place is None:
                    place = places[atom] = len(places)
                    given.append(atom)
                    signature.append(("type", self._types.setdefault(atom.aval, len(self._types))))
                signature.append(place)
            for var in eqn.outvars:
                places[var] = len(places)
                made.append(var)
                signature += (self._id(var.aval), isinstance(var, ir.DropVar))
        return self._kinds.setdefault(tuple(signature), len(self._kinds)), tuple(given), tuple(made)

    def _id(self, what: Any) -> int:
        """The id of an object, which stays its own."""
        self._alive[id(what)] = what
        return id(what)

    def _params_of(self, eqn: Any) -> int:
        """A number for an equation's parameters; equal ones have one."""
        params = eqn.params
        found = self._known.get(id(params))
        if found is None:
            key = params_key(params)
            key = ("no other", id(params)) if key is None else key
            found = self._known[id(params)] = params, self._params.setdefault(key, len(self._params))
        return found[1]
