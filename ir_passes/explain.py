"""The equations around a fault, with what the proof knew of every variable in them."""

from collections.abc import Iterable
from typing import Any

from ir_passes import ir
from ir_passes.violations import Violation


def explain(violation: Violation, around: int) -> str:
    """A violation in context."""
    place = violation.place
    if place is None:
        return str(violation)
    names, told = _Names(), set[Any]()
    lines = [str(violation), ""]

    def tell(atoms: Iterable[Any]) -> None:
        for var in ir.variables(list(atoms)):
            if var not in told and var in place.values:
                told.add(var)
                lines.append(f"                 {names.of(var)}: {place.values[var]}")

    eqns = place.jaxpr.eqns
    first, last = max(0, place.index - around), min(len(eqns), place.index + around + 1)
    for index in range(first, last):
        eqn, mark = eqns[index], ">" if index == place.index else " "
        lines.append(f"{mark} {index:5d}  {_equation(eqn, names)}")
        tell([*eqn.invars, *eqn.outvars])
    if place.index == len(eqns):
        lines.append("> returned " + " ".join(names.of(atom) for atom in place.jaxpr.outvars))
        tell(place.jaxpr.outvars)
    return "\n".join(lines)


class _Names:
    """Short names of variables, in order of appearance."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}

    def of(self, atom: Any) -> str:
        if isinstance(atom, ir.Literal):
            return str(atom.val)
        if isinstance(atom, ir.DropVar):
            return "_"
        return self._names.setdefault(atom, f"v{len(self._names)}")


def _equation(eqn: Any, names: _Names) -> str:
    results = " ".join(f"{names.of(var)}:{var.aval.str_short(short_dtypes=True)}" for var in eqn.outvars)
    operands = " ".join(names.of(atom) for atom in eqn.invars)
    return f"{results} = {eqn.primitive.name} {operands}  # {ir.source_of(eqn)}"
